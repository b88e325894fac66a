// The clock of deadlines and measurements: never steps back, whatever happens to the wall clock,
// and is the same for all processes of a machine.
#ifndef TH_TRANSFER_MONOTONIC_CLOCK_H_
#define TH_TRANSFER_MONOTONIC_CLOCK_H_

#include <time.h>

#include <algorithm>

#include "absl/time/time.h"

namespace th {

// Comparable only with itself and on one machine: the origin is its boot.
inline absl::Time MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::UnixEpoch() + absl::DurationFromTimespec(now);
}

// How long it is until `deadline`, of that clock; zero once that has passed.
inline absl::Duration LeftUntil(absl::Time deadline) {
  return std::max(deadline - MonotonicNow(), absl::ZeroDuration());
}

}  // namespace th

#endif  // TH_TRANSFER_MONOTONIC_CLOCK_H_
