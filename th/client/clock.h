// The client's clock: monotonic, so that a step of the wall clock neither fires nor stalls a
// deadline.
#ifndef TH_CLIENT_CLOCK_H_
#define TH_CLIENT_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace th {

// Comparable only with other values of this process.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace th

#endif  // TH_CLIENT_CLOCK_H_
