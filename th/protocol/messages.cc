#include "th/protocol/messages.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

std::string Describe(const ProtocolHello& hello) {
  return absl::StrCat("versions ", hello.min_version, " to ", hello.max_version,
                      hello.software.empty() ? "" : absl::StrCat(" (", hello.software, ")"));
}

}  // namespace

absl::string_view OperationKindName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPublish:
      return "publish";
    case OperationKind::kUnpublish:
      return "unpublish";
    case OperationKind::kUpdate:
      return "update";
  }
  return "unknown";
}

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

absl::StatusOr<uint32_t> AgreeOnVersion(const ProtocolHello& own, const ProtocolHello& peer) {
  const uint32_t lowest = std::max({own.min_version, peer.min_version, uint32_t{1}});
  const uint32_t highest = std::min(own.max_version, peer.max_version);
  if (lowest <= highest) return highest;
  return absl::FailedPreconditionError(
      absl::StrCat("no protocol version in common: this side speaks ", Describe(own),
                   ", the peer speaks ", Describe(peer), "; upgrade the older of the two"));
}

}  // namespace th
