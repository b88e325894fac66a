#include "th/protocol/messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

std::string Describe(const ProtocolHello& hello) {
  return absl::StrCat("versions ", hello.min_version, " to ", hello.max_version,
                      hello.software.empty() ? "" : absl::StrCat(" (", hello.software, ")"));
}

}  // namespace

absl::StatusOr<uint32_t> AgreeOnVersion(const ProtocolHello& own, const ProtocolHello& peer) {
  const uint32_t lowest = std::max({own.min_version, peer.min_version, uint32_t{1}});
  const uint32_t highest = std::min(own.max_version, peer.max_version);
  if (lowest <= highest) return highest;
  return absl::FailedPreconditionError(
      absl::StrCat("no protocol version in common: this side speaks ", Describe(own),
                   ", the peer speaks ", Describe(peer), "; upgrade the older of the two"));
}

}  // namespace th
