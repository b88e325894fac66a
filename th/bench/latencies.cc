#include "th/bench/latencies.h"

#include <algorithm>
#include <cstddef>

namespace th {
namespace {

// `sorted` is not empty; the share in thousandths, so that no rounding moves the rank.
absl::Duration Percentile(const std::vector<absl::Duration>& sorted, size_t thousandths) {
  const size_t rank = (sorted.size() * thousandths + 999) / 1000;
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

LatencySummary Latencies::Summarize() const {
  if (values_.empty()) return {};
  std::vector<absl::Duration> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  return {.samples = sorted.size(),
          .median = Percentile(sorted, 500),
          .p99 = Percentile(sorted, 990),
          .p999 = Percentile(sorted, 999),
          .max = sorted.back()};
}

}  // namespace th
