// The words for what an update does while its site is being seeded: in flags, scenario files and
// messages to a controlled rank.
//
//   WhenSeedingName(WhenSeeding::kSkip)   // "skip"
//   TH_ASSIGN_OR_RETURN(options.when_seeding, ParseWhenSeeding("copy"));
#ifndef TH_PROTOCOL_WHEN_SEEDING_NAME_H_
#define TH_PROTOCOL_WHEN_SEEDING_NAME_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/protocol/messages.h"

namespace th {

// "wait", "skip", "copy"; "unknown" for a value that is none of them. Of static lifetime. Pure,
// thread-safe, as is the next one.
absl::string_view WhenSeedingName(WhenSeeding when_seeding);

// INVALID_ARGUMENT naming the words that there are.
absl::StatusOr<WhenSeeding> ParseWhenSeeding(absl::string_view word);

}  // namespace th

#endif  // TH_PROTOCOL_WHEN_SEEDING_NAME_H_
