// Decides what a connection does with the staging slots that it keeps while its reader takes
// nothing and others wait for a slot: the process has few of them, and a stopped reader would keep
// its share for as long as it is stopped.
//
//   state       | event                                    | step      | next state
//   ------------+------------------------------------------+-----------+------------
//   not stalled | HandleFull                               |           | stalled
//   stalled     | tick after kStalledTime, slot awaited    | kGiveBack | gave back
//   gave back   | tick, no slot awaited                    | kKeep     | stalled
//   gave back   | tick after kKeptTime more, slot awaited  | kCut      | gave back
//   any         | HandleTaken                              |           | not stalled
//   any         | any other tick                           | kKeep     | the same
//
// To give back what was staged ahead costs the reader a second copy when it goes on, and nothing
// else. A segment whose frame is half sent cannot be taken back without closing the connection;
// such segments alone can fill the pool, so their reader is cut. While nobody waits a reader keeps
// everything.
//
//   StallWatch watch;
//   watch.HandleFull(now);   // the reader is waited for; idempotent
//   watch.HandleTaken();     // it has taken bytes
//   switch (watch.HandleTick(now, staging.IsSlotAwaited())) { ... }   // each kStallTick
//
// Pure; not thread-safe.
#ifndef TH_TRANSFER_STREAM_STALL_WATCH_H_
#define TH_TRANSFER_STREAM_STALL_WATCH_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace th::stream {

// A reader that has taken nothing for so long gives back what is staged ahead for it, if a slot is
// awaited. The same time as a draining holder waits for a reader that takes nothing.
inline constexpr absl::Duration kStalledTime = absl::Milliseconds(500);
// Afterwards it keeps what has been begun for so long, while a slot is awaited all the time.
// Longer than kStalledTime: others that stand still and got slots meanwhile give back first.
inline constexpr absl::Duration kKeptTime = absl::Milliseconds(1000);
// The time between two looks at a stalled connection.
inline constexpr absl::Duration kStallTick = absl::Milliseconds(100);

class StallWatch {
 public:
  enum class Step : uint8_t { kKeep, kGiveBack, kCut };

  // There is something to take, and the reader takes no more.
  void HandleFull(absl::Time now) {
    if (stalled_since_ == absl::InfiniteFuture()) stalled_since_ = now;
  }
  // The time for which the reader has taken nothing; 0 while it is not stalled.
  absl::Duration StalledFor(absl::Time now) const {
    return std::max(now - stalled_since_, absl::ZeroDuration());
  }
  void HandleTaken() { stalled_since_ = gave_back_at_ = absl::InfiniteFuture(); }
  // `awaited`: somebody waits for a slot, and none is free.
  Step HandleTick(absl::Time now, bool awaited) {
    if (!awaited) gave_back_at_ = absl::InfiniteFuture();
    if (!awaited || now - stalled_since_ < kStalledTime) return Step::kKeep;
    if (gave_back_at_ == absl::InfiniteFuture()) {
      gave_back_at_ = now;
      return Step::kGiveBack;
    }
    return now - gave_back_at_ >= kKeptTime ? Step::kCut : Step::kKeep;
  }

 private:
  absl::Time stalled_since_ = absl::InfiniteFuture();
  absl::Time gave_back_at_ = absl::InfiniteFuture();
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_STALL_WATCH_H_
