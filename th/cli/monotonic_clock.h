// A clock that only moves forward and is the same for all processes of the machine.
#ifndef TH_CLI_MONOTONIC_CLOCK_H_
#define TH_CLI_MONOTONIC_CLOCK_H_

#include <ctime>

#include "absl/time/time.h"

namespace th {

// The time since the machine's start, as if that had been the Unix epoch.
inline absl::Time MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace th

#endif  // TH_CLI_MONOTONIC_CLOCK_H_
