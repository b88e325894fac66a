#include "th/protocol/cost.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

bool SameKind(const ReceivedBytes& a, const ReceivedBytes& b) {
  return a.transport == b.transport && a.distance == b.distance && a.publisher == b.publisher;
}

void AddName(const std::string& name, std::vector<std::string>& to) {
  if (std::find(to.begin(), to.end(), name) == to.end()) to.push_back(name);
}

}  // namespace

absl::string_view StallPhaseName(StallPhase phase) {
  static constexpr absl::string_view kNames[kStallPhases] = {
      "resolve", "queue", "transfer", "verify", "apply", "drain", "failed"};
  const auto index = static_cast<size_t>(phase);
  return index < kStallPhases ? kNames[index] : "unknown";
}

absl::Duration SumOf(const StallByPhase& stall) {
  return std::accumulate(stall.begin(), stall.end(), absl::ZeroDuration());
}

std::map<std::string, double> SecondsByPhaseName(const StallByPhase& stall) {
  std::map<std::string, double> seconds;
  for (size_t i = 0; i < kStallPhases; ++i) {
    seconds.emplace(StallPhaseName(static_cast<StallPhase>(i)), absl::ToDoubleSeconds(stall[i]));
  }
  return seconds;
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

void AddPassedOver(const PassedOver& passed_over, std::vector<PassedOver>& to) {
  PassedOver kind = passed_over;
  kind.reason.resize(std::min(kind.reason.size(), kMaxPassedOverReasonBytes));
  const auto find = [&] {
    return std::find_if(to.begin(), to.end(), [&](const PassedOver& one) {
      return one.transport == kind.transport && one.reason == kind.reason;
    });
  };
  auto found = find();
  // The last place is for "other".
  if (found == to.end() && to.size() + 1 >= kMaxPassedOverKinds) {
    kind.transport = kind.reason = "other";
    found = find();
  }
  if (found == to.end()) {
    to.push_back(std::move(kind));
  } else {
    found->sources += passed_over.sources;
  }
}

void AddFillCost(const FillCost& cost, FillCost& to) {
  for (const ReceivedBytes& one : cost.received) AddReceived(one, to.received);
  for (const PassedOver& one : cost.passed_over) AddPassedOver(one, to.passed_over);
  to.unchanged_bytes += cost.unchanged_bytes;
  to.rerouted_bytes += cost.rerouted_bytes;
  to.reread_bytes += cost.reread_bytes;
  to.reroutes += cost.reroutes;
}

std::string DescribePassedOver(absl::Span<const PassedOver> passed_over) {
  return absl::StrJoin(passed_over, "; ", [](std::string* text, const PassedOver& one) {
    absl::StrAppend(text, one.transport, ": ", one.reason);
  });
}

TransportsUsed TransportsUsed::Of(const FillCost& cost) {
  TransportsUsed of_fill;
  for (const ReceivedBytes& received : cost.received) AddName(received.transport, of_fill.names);
  for (const PassedOver& one : cost.passed_over) AddPassedOver(one, of_fill.passed_over);
  return of_fill;
}

void TransportsUsed::Add(const TransportsUsed& other) {
  for (const std::string& name : other.names) AddName(name, names);
  for (const PassedOver& one : other.passed_over) AddPassedOver(one, passed_over);
}

std::string TransportsUsed::ToString() const {
  if (names.empty()) return "";
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const std::string reasons = DescribePassedOver(passed_over);
  return absl::StrCat(absl::StrJoin(sorted, ", "),
                      reasons.empty() ? "" : absl::StrCat(" (", reasons, ")"));
}

}  // namespace th
