// The time by which the server's loop has heard what workers had sent: leases and deadlines are
// judged by it, so that the loop's own slowness is nobody's silence, and delays no judgement for
// ever.
//
//   HeardUntil heard(now);
//   heard.TakeInbox(now);              // then handle all that was in it
//   registry.HandleTick(heard.time());
//   heard.EndTurn(now);                // the streams are read on from here
//
// While a turn lasts, a stream has one message in the inbox at most. After a slow turn what a
// worker sent meanwhile may still be unread, so the clock stands still until the streams have been
// read for kCatchUp. Where one slow turn follows the other, it moves with the end of the turn
// before.
//
// Pure, owned by the loop's thread.
#ifndef TH_REGISTRY_STATE_HEARD_UNTIL_H_
#define TH_REGISTRY_STATE_HEARD_UNTIL_H_

#include <algorithm>

#include "absl/time/time.h"

namespace th {

// A turn that takes longer is slow. A live worker may seem silent for so much longer than it is.
inline constexpr absl::Duration kSlowTurn = absl::Milliseconds(500);
// For the streams to be read after a slow turn. Shorter than one, or the clock would not move while
// every turn is slow.
inline constexpr absl::Duration kCatchUp = absl::Milliseconds(100);

class HeardUntil {
 public:
  explicit HeardUntil(absl::Time now) : time_(now), turn_began_(now) {}

  absl::Time time() const { return time_; }

  void TakeInbox(absl::Time now) {
    turn_began_ = now;
    if (now < caught_up_at()) return;
    time_ = std::max(time_, now);
    resumed_ = absl::InfinitePast();
  }
  // The inbox still holds an event that arrived at `oldest`: nothing later counts as heard.
  void LeftInInbox(absl::Time oldest) { time_ = std::min(time_, oldest); }

  void EndTurn(absl::Time now) {
    if (now - turn_began_ <= kSlowTurn) return;
    time_ = std::max(time_, resumed_);
    resumed_ = now;
  }

  // Before this nothing more is judged.
  absl::Time caught_up_at() const { return resumed_ + kCatchUp; }

 private:
  absl::Time time_;
  absl::Time turn_began_;
  // The end of the last slow turn, until the streams have been read for kCatchUp.
  absl::Time resumed_ = absl::InfinitePast();
};

}  // namespace th

#endif  // TH_REGISTRY_STATE_HEARD_UNTIL_H_
