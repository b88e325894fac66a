// How long many calls took, and what that comes to. Exact: every value is kept.
//
//   Latencies updates;
//   updates.Add(MonotonicNow() - began);
//   const LatencySummary summary = updates.Summarize();   // summary.p99, summary.max, ...
//
// Not thread-safe.
#ifndef TH_BENCH_LATENCIES_H_
#define TH_BENCH_LATENCIES_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace th {

// A percentile is the smallest value that so many of all do not exceed; of no value at all
// everything is 0.
struct LatencySummary {
  uint64_t samples = 0;
  absl::Duration median;
  absl::Duration p99;
  absl::Duration p999;  // 99.9 %
  absl::Duration max;
};

class Latencies {
 public:
  void Add(absl::Duration latency) { values_.push_back(latency); }
  uint64_t samples() const { return values_.size(); }
  LatencySummary Summarize() const;

 private:
  std::vector<absl::Duration> values_;
};

}  // namespace th

#endif  // TH_BENCH_LATENCIES_H_
