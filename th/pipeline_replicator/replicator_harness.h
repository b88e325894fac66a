// The harness of the tests of a whole fill: a replicator of a small shard, whose sources are played
// by hand on a clock of whole milliseconds.
#ifndef TH_PIPELINE_REPLICATOR_REPLICATOR_HARNESS_H_
#define TH_PIPELINE_REPLICATOR_REPLICATOR_HARNESS_H_

#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/pipeline_replicator.h"

namespace th {

inline constexpr SourceIndex kA(0), kB(1), kC(2);
inline constexpr uint64_t kSegmentBytes = 1024;
inline constexpr uint64_t kSegments = 32;

inline absl::Time At(int64_t milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}
inline SegmentIndex S(uint64_t i) { return SegmentIndex(i); }
inline SegmentRange R(uint64_t begin, uint64_t end) { return {S(begin), S(end)}; }
inline SegmentChecksum ChecksumFor(uint64_t i) { return 1000 + i; }

inline PipelineReplicator::Spec SpecOf(uint64_t segments) {
  return {.segment_count = segments,
          .segment_bytes = kSegmentBytes,
          .total_bytes = segments * kSegmentBytes};
}
// Four segments a request.
inline ReplicatorLimits SmallRequests() {
  ReplicatorLimits limits;
  limits.request_bytes = 4 * kSegmentBytes;
  limits.requests_at_first = limits.requests_in_flight;
  return limits;
}

class ReplicatorHarness : public ::testing::Test {
 protected:
  using Verdict = PipelineReplicator::SegmentVerdict;

  std::vector<SegmentRange> Ask(SourceIndex source, absl::Time now = At(0)) {
    std::vector<SegmentRange> asked;
    while (auto request = fill_.PollRequest(source, now)) asked.push_back(request->range);
    return asked;
  }
  Verdict Give(SourceIndex source, uint64_t i, absl::Time now = At(0)) {
    return fill_.HandleSegment(source, S(i), ChecksumFor(i), ChecksumFor(i), now);
  }
  Verdict GiveCorrupt(SourceIndex source, uint64_t i, absl::Time now = At(0)) {
    return fill_.HandleSegment(source, S(i), ChecksumFor(i), ChecksumFor(i) ^ 1, now);
  }
  // Serves everything that is asked of `source` until nothing more is.
  void GiveAll(SourceIndex source, absl::Time now = At(0)) {
    for (auto asked = Ask(source, now); !asked.empty(); asked = Ask(source, now)) {
      for (const SegmentRange& range : asked) {
        for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) Give(source, i.value, now);
      }
    }
  }

  PipelineReplicator fill_{SpecOf(kSegments), SmallRequests()};
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_REPLICATOR_HARNESS_H_
