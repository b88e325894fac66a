#include "th/protocol/when_seeding_name.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th {

absl::string_view WhenSeedingName(WhenSeeding when_seeding) {
  switch (when_seeding) {
    case WhenSeeding::kWait:
      return "wait";
    case WhenSeeding::kSkip:
      return "skip";
    case WhenSeeding::kCopy:
      return "copy";
  }
  return "unknown";
}

absl::StatusOr<WhenSeeding> ParseWhenSeeding(absl::string_view word) {
  for (const WhenSeeding known : {WhenSeeding::kWait, WhenSeeding::kSkip, WhenSeeding::kCopy}) {
    if (word == WhenSeedingName(known)) return known;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", word, "\" is none of wait, skip, copy: what to do while a site is seeded"));
}

}  // namespace th
