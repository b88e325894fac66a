// The names of copies in host memory that the ranks of a group make of what their buffers hold.
#ifndef TH_PROTOCOL_COPY_NAME_H_
#define TH_PROTOCOL_COPY_NAME_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"

namespace th {

// The purpose of a copy in host memory: to keep what is retained and would go, or to seed the site
// of this worker.
enum class CopyFor : uint8_t { kRetention, kSite };

// The name of the copy of `version`, which the buffers named `buffer` hold, that the group makes
// for its operation `number` on them: the same for all its ranks.
std::string CopyName(absl::string_view buffer, CopyFor purpose, VersionSequence version,
                     GroupGeneration generation, OperationNumber number);

}  // namespace th

#endif  // TH_PROTOCOL_COPY_NAME_H_
