#include "th/scheduler/slow_source.h"

#include <algorithm>

#include "tools/mutation/mutation.h"

namespace th {

Throughput ThroughputOf(uint64_t bytes, uint64_t segment_bytes, absl::Duration waited) {
  const double seconds = absl::ToDoubleSeconds(waited);
  const double arrived = static_cast<double>(bytes);
  return {.least = arrived / seconds,
          .most = (arrived + static_cast<double>(segment_bytes)) / seconds};
}

double PassingThroughput(double least, uint64_t segment_bytes, absl::Duration waited) {
  const double in_passing = static_cast<double>(kSegmentsInPassing * segment_bytes);
  return std::max(0.0, least - in_passing / absl::ToDoubleSeconds(waited));
}

SourceVerdict JudgeSource(const SlowSourceEvidence& evidence, double fraction) {
  if (evidence.waited < kLeastWaited) return SourceVerdict::kKeep;
  const double worth = absl::ToDoubleSeconds(kWorthLeaving);
  if (static_cast<double>(evidence.bytes_missing) <= evidence.source.most * worth) {
    return SourceVerdict::kKeep;
  }
  if (!evidence.comparable.has_value()) return SourceVerdict::kUnknown;
  const double enough = *evidence.comparable * TH_MUTATE(kLeaveWhoIsHardlySlower, fraction, 1.0);
  const double uplink = evidence.source.most * std::max(1u, evidence.source_readers);
  const bool shares = TH_MUTATE(kBlameASharedUplink, uplink >= enough, false);
  if (evidence.reader_most >= enough || shares) return SourceVerdict::kKeep;
  if (evidence.source_whole) return SourceVerdict::kLeave;
  if (!evidence.source_intake.has_value()) return SourceVerdict::kUnknown;
  const bool gives_what_it_has = *evidence.source_intake < evidence.source.most * kFasterBy;
  return TH_MUTATE(kBlameARelayForItsSource, gives_what_it_has, false) ? SourceVerdict::kKeep
                                                                       : SourceVerdict::kLeave;
}

bool WouldBeFaster(const SlowSourceEvidence& evidence, const OtherSource& other) {
  const double wanted = evidence.source.most * kFasterBy;
  const double share = evidence.comparable.value_or(0) / (other.readers + 1);
  const bool receives = other.whole || !other.intake.has_value() || *other.intake >= wanted;
  return TH_MUTATE(kLeaveForAnyOther, share >= wanted && receives, true);
}

}  // namespace th
