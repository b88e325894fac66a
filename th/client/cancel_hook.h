// The hooks by which calls that wait hear of the cancellation of their thread (cancellation.h).
#ifndef TH_CLIENT_CANCEL_HOOK_H_
#define TH_CLIENT_CANCEL_HOOK_H_

#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/client/cancellation.h"

namespace th {

// True when the calls of this thread are cancelled.
bool CallsAreCancelled();
// CANCELLED once they are, saying what becomes of `what`: "the version was not waited for".
absl::Status CheckNotCancelled(absl::string_view what);

// While it lives, `end` runs once when the calls of the thread that made it are cancelled: on the
// thread that cancels, or in the constructor. `end` must not block, and takes no lock under which a
// hook is made or destroyed.
class CancelHook {
 public:
  explicit CancelHook(std::function<void()> end);
  // Returns when `end` does not run any more.
  ~CancelHook();
  CancelHook(const CancelHook&) = delete;
  CancelHook& operator=(const CancelHook&) = delete;

 private:
  friend class Cancellation;

  Cancellation* const cancellation_;  // of this thread; null: none
  const std::function<void()> end_;
  std::list<CancelHook*>::iterator place_;
  bool registered_ = false;
};

// Something that happens once; absl::Notification with a wait that a cancellation ends.
class Signal {
 public:
  void Notify();
  bool HasBeenNotified() const;
  // False: `time` has passed.
  bool Wait(absl::Duration time) const;
  // False also when the calls of this thread are cancelled.
  bool WaitUnlessCancelled(absl::Duration time) const;

 private:
  mutable absl::Mutex mu_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace th

#endif  // TH_CLIENT_CANCEL_HOOK_H_
