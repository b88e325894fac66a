#include "th/protocol/cost.h"

#include <algorithm>
#include <numeric>

namespace th {
namespace {

bool SameKind(const ReceivedBytes& a, const ReceivedBytes& b) {
  return a.transport == b.transport && a.distance == b.distance && a.publisher == b.publisher;
}

}  // namespace

absl::string_view StallPhaseName(StallPhase phase) {
  static constexpr absl::string_view kNames[kStallPhases] = {
      "resolve", "queue", "transfer", "verify", "apply", "drain", "failed"};
  const auto index = static_cast<size_t>(phase);
  return index < kStallPhases ? kNames[index] : "unknown";
}

absl::Duration ModelTotals::stall_of_all() const {
  return std::accumulate(stall.begin(), stall.end(), absl::ZeroDuration());
}

uint64_t ModelTotals::bytes_received() const {
  uint64_t bytes = 0;
  for (const ReceivedBytes& received : fill.received) bytes += received.bytes;
  return bytes;
}

void AddReceived(const ReceivedBytes& received, std::vector<ReceivedBytes>& to) {
  ReceivedBytes kind = received;
  const auto find = [&] {
    return std::find_if(to.begin(), to.end(),
                        [&](const ReceivedBytes& one) { return SameKind(one, kind); });
  };
  auto found = find();
  // The last places are for "other": one a distance and kind of source.
  constexpr size_t kOthers = 12;
  if (found == to.end() && to.size() >= kMaxReceivedKinds - kOthers) {
    kind.transport = "other";
    found = find();
  }
  if (found == to.end()) {
    to.push_back(kind);
  } else {
    found->bytes += received.bytes;
  }
}

}  // namespace th
