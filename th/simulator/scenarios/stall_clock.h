// How long a rank waits within its calls, and for what.
//
//   StallClock clock;
//   clock.Begin(StallCause::kServer, now);
//   clock.Switch(StallCause::kBytes, now);
//   clock.End(now);
//   clock.times().of(StallCause::kBytes)
//
// Not thread-safe.
#ifndef TH_SIMULATOR_SCENARIOS_STALL_CLOCK_H_
#define TH_SIMULATOR_SCENARIOS_STALL_CLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

enum class StallCause : uint8_t {
  kServer,     // which version it is
  kDrain,      // readers of its own buffer
  kSource,     // somebody to pull from
  kBytes,      // the segments
  kChecksums,  // the publisher's sums
  kGroup,      // the other ranks of its group
  kMembers,    // everybody else in a broadcast
  kCopy,       // a copy of its own weights
};
inline constexpr size_t kStallCauses = 8;

// "server", "drain", "source", "bytes", "sums", "group", "members", "copy".
absl::string_view StallCauseName(StallCause cause);

class StallTimes {
 public:
  absl::Duration of(StallCause cause) const { return times_[static_cast<size_t>(cause)]; }
  absl::Duration total() const;
  void Add(StallCause cause, absl::Duration time) { times_[static_cast<size_t>(cause)] += time; }
  void Add(const StallTimes& other);

 private:
  std::array<absl::Duration, kStallCauses> times_ = {};
};

// `now` never goes back.
class StallClock {
 public:
  void Begin(StallCause cause, absl::Time now);   // ends what went on
  void Switch(StallCause cause, absl::Time now);  // nothing while no stall goes on
  void End(absl::Time now);                       // likewise

  bool running() const { return running_; }
  const StallTimes& times() const { return times_; }

 private:
  StallTimes times_;
  bool running_ = false;
  StallCause cause_ = StallCause::kServer;
  absl::Time since_;
};

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_STALL_CLOCK_H_
