#include "th/simulator/scenarios/stall_clock.h"

namespace th {

absl::string_view StallCauseName(StallCause cause) {
  static constexpr absl::string_view kNames[kStallCauses] = {"server", "drain", "source",  "bytes",
                                                             "sums",   "group", "members", "copy"};
  return kNames[static_cast<size_t>(cause)];
}

absl::Duration StallTimes::total() const {
  absl::Duration total;
  for (absl::Duration time : times_) total += time;
  return total;
}

void StallTimes::Add(const StallTimes& other) {
  for (size_t i = 0; i < kStallCauses; ++i) times_[i] += other.times_[i];
}

void StallClock::Begin(StallCause cause, absl::Time now) {
  End(now);
  running_ = true;
  cause_ = cause;
  since_ = now;
}

void StallClock::Switch(StallCause cause, absl::Time now) {
  if (running_) Begin(cause, now);
}

void StallClock::End(absl::Time now) {
  if (running_) times_.Add(cause_, now - since_);
  running_ = false;
}

}  // namespace th
