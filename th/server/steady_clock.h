// The server's clock: wall time at the start, moved on by the monotonic clock, so that a step of
// the wall clock expires no lease.
#ifndef TH_SERVER_STEADY_CLOCK_H_
#define TH_SERVER_STEADY_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace th {

// Thread-safe.
class SteadyClock {
 public:
  absl::Time Now() const {
    return wall_start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const absl::Time wall_start_ = absl::Now();
  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
};

}  // namespace th

#endif  // TH_SERVER_STEADY_CLOCK_H_
