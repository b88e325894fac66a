// The clock of the data plane: never steps back, whatever happens to the wall clock.
#ifndef TH_TRANSFER_MONOTONIC_CLOCK_H_
#define TH_TRANSFER_MONOTONIC_CLOCK_H_

#include <time.h>

#include "absl/time/time.h"

namespace th {

// Comparable only with itself: the origin is the machine's boot.
inline absl::Time MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::UnixEpoch() + absl::DurationFromTimespec(now);
}

}  // namespace th

#endif  // TH_TRANSFER_MONOTONIC_CLOCK_H_
