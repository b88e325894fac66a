// Ends calls that wait, from another thread: a caller that is interrupted goes on at once.
//
//   th::Cancellation cancellation;
//   std::thread worker([&] {
//     const th::CancellationScope scope(&cancellation);
//     result = weights.Update(th::Latest());        // CANCELLED soon after Cancel
//   });
//   ...
//   cancellation.Cancel();
//
// What a call leaves behind that was cancelled:
//   Update, Apply, Stage, Receive, Attach: the operation ends CANCELLED for all ranks of the group.
//     A buffer that nothing was written into is as it was; else it is undefined. Nothing is staged
//     by a Stage. What was staged before an Apply stays.
//   AwaitPublished, AwaitSealed, WaitFor, AwaitForm, WaitApplied, AwaitEnded, questions: only
//     the wait ends. RollBack, Retain, Pin and Release may still take effect, once.
//   Publish with a snapshot: nothing is published.
//   Join, Register: there is no membership, no buffer.
//   Unpublish, Sleep, Wake, Rebind, Reset, Leave: not cancelled. The caller's memory is theirs
//     until they return, which they do within their times.
// A call ends within milliseconds of Cancel; of GPU memory within the time of one copy that a GPU
// has begun.
//
// Thread-safe. A Cancellation outlives the scopes that name it.
#ifndef TH_CLIENT_CANCELLATION_H_
#define TH_CLIENT_CANCELLATION_H_

#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace th {

class CancelHook;

class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Returns at once. Calls that begin later under this cancellation end at once. Idempotent.
  void Cancel();
  bool cancelled() const;

 private:
  friend class CancelHook;

  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::list<CancelHook*> hooks_ ABSL_GUARDED_BY(mu_);
};

// The calls that this thread makes while the scope lives are ended by `cancellation`. Null: they
// are ended by none. Scopes nest; the innermost counts.
class CancellationScope {
 public:
  explicit CancellationScope(Cancellation* cancellation);
  ~CancellationScope();
  CancellationScope(const CancellationScope&) = delete;
  CancellationScope& operator=(const CancellationScope&) = delete;

 private:
  Cancellation* const before_;
};

}  // namespace th

#endif  // TH_CLIENT_CANCELLATION_H_
