// How long things took, in buckets, for metrics. A value.
#ifndef TH_PROTOCOL_SECONDS_HISTOGRAM_H_
#define TH_PROTOCOL_SECONDS_HISTOGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace th {

struct SecondsHistogram {
  // Upper bounds in seconds, from a small model within a host to a large one across sites; a last
  // bucket holds the rest.
  static constexpr std::array<double, 12> kBounds = {0.01, 0.05, 0.1, 0.25, 0.5, 1,
                                                     2.5,  5,    10,  30,   60,  300};

  std::array<uint64_t, kBounds.size() + 1> counts{};  // of each bucket alone
  absl::Duration sum;

  void Record(absl::Duration duration) {
    const double seconds = absl::ToDoubleSeconds(duration);
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += duration;
  }
  // The count of one bucket alone; `bucket` <= kBounds.size().
  uint64_t Count(size_t bucket) const { return counts[bucket]; }
  double SumSeconds() const { return absl::ToDoubleSeconds(sum); }
  friend bool operator==(const SecondsHistogram&, const SecondsHistogram&) = default;
};

}  // namespace th

#endif  // TH_PROTOCOL_SECONDS_HISTOGRAM_H_
