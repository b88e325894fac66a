// Runs a blocking function that cannot be cancelled, as getaddrinfo, on a detached thread of its
// own, and lets the caller wait for the result for a limited time. The thread ends when the
// function returns; how many of them there may be is the caller's to limit.
//
//   const auto asked = DetachedCall<int>::Start([] { return Ask(); });
//   std::optional<int> answer = asked->AwaitFor(absl::Seconds(1));   // none: not yet
//
// Thread-safe.
#ifndef TH_CLIENT_DETACHED_CALL_H_
#define TH_CLIENT_DETACHED_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/client/task_loop.h"

namespace th {

template <typename Result>
class DetachedCall {
 public:
  // The call is shared with the thread, and lives until both have released it.
  static std::shared_ptr<DetachedCall> Start(std::function<Result()> call) {
    auto started = std::make_shared<DetachedCall>();
    const SignalsBlocked blocked;  // the host's signals are not handled on this thread
    std::thread([started, call = std::move(call)] {
      Result result = call();
      absl::MutexLock lock(&started->mu_);
      started->result_ = std::move(result);
    }).detach();
    return started;
  }

  // Returns the result, or nothing if there is none within `timeout`. The first call that gets the
  // result takes it.
  std::optional<Result> AwaitFor(absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    const auto is_there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return result_.has_value(); };
    mu_.AwaitWithTimeout(absl::Condition(&is_there), timeout);
    return std::exchange(result_, std::nullopt);
  }

 private:
  absl::Mutex mu_;
  std::optional<Result> result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th

#endif  // TH_CLIENT_DETACHED_CALL_H_
