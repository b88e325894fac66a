#include "th/simulator/scenarios/scenario_result.h"

#include <algorithm>

namespace th {

StallTimes ScenarioResult::StallOf(bool trainer) const {
  StallTimes stall;
  for (const RankResult& rank : ranks) {
    if ((rank.role == GroupRole::kTrainer) == trainer) stall.Add(rank.stall);
  }
  return stall;
}

double ScenarioResult::CopiesSent() const {
  uint64_t bytes = 0;
  for (const RankResult& rank : ranks) {
    if (rank.role == GroupRole::kTrainer) bytes += rank.bytes_sent;
  }
  const double versions_bytes =
      static_cast<double>(replica_bytes) * static_cast<double>(versions.size());
  return versions_bytes > 0 ? static_cast<double>(bytes) / versions_bytes : 0;
}

absl::Duration ScenarioResult::SlowestRead() const {
  absl::Duration slowest;
  for (const ReadResult& read : reads) slowest = std::max(slowest, read.ended - read.began);
  return slowest;
}

absl::Duration ScenarioResult::LastRead() const {
  return reads.empty() ? absl::ZeroDuration() : reads.back().ended - reads.back().began;
}

}  // namespace th
