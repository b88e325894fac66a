// Tells a pause of the server's whole process from the slowness of one of its threads.
//
//   PauseWatch watch(now);
//   const absl::Duration pause = watch.Pulse(now);   // by whichever thread runs, often
//   if (pause > absl::ZeroDuration()) registry.HandlePause(pause, now);
//
// Every thread that runs shows it by a pulse, one of them on a timer. Where none came for
// kMaxPulseGap the process was stopped (SIGSTOP, a paused machine) or starved, so what workers sent
// meanwhile is unread and their silence is not theirs. A turn of the loop that takes long is no
// pause: the timer goes on, and so do the threads that read what workers send.
//
// Pure. The caller's lock guards it.
#ifndef TH_REGISTRY_STATE_PAUSE_WATCH_H_
#define TH_REGISTRY_STATE_PAUSE_WATCH_H_

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace th {

// A longer time without any pulse is a pause. Below a third of the default lease, so that a shorter
// one, which is not forgiven, costs no worker its membership.
inline constexpr absl::Duration kMaxPulseGap = absl::Milliseconds(500);

class PauseWatch {
 public:
  explicit PauseWatch(absl::Time now) : last_pulse_(now) {}

  // The length of the pause that has just ended; zero: there was none.
  absl::Duration Pulse(absl::Time now) {
    const absl::Duration gap = now - std::exchange(last_pulse_, std::max(now, last_pulse_));
    return gap > kMaxPulseGap ? gap : absl::ZeroDuration();
  }

 private:
  absl::Time last_pulse_;
};

}  // namespace th

#endif  // TH_REGISTRY_STATE_PAUSE_WATCH_H_
