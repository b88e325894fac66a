// Hands the progress of one update to the user's function, never two calls at once, none after
// Disable.
#ifndef TH_CLIENT_PROGRESS_REPORTER_H_
#define TH_CLIENT_PROGRESS_REPORTER_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/client/client.h"
#include "th/client/runtime.h"

namespace th {

// Thread-safe. Shared: a call of the user's function may be posted when the update ends.
class ProgressReporter : public std::enable_shared_from_this<ProgressReporter> {
 public:
  using Function = std::function<void(const UpdateProgress&)>;
  ProgressReporter(std::shared_ptr<Runtime> runtime, Function function)
      : runtime_(std::move(runtime)), function_(std::move(function)) {}

  // Runs the function on th-callback with what `compose` returns there. Dropped while the one
  // before is still waiting: progress is a picture, not a log.
  void Report(std::function<UpdateProgress()> compose);
  // Returns when no call is under way and none will come. Not from within the function.
  void Disable();

 private:
  const std::shared_ptr<Runtime> runtime_;
  std::atomic<bool> waiting_{false};
  absl::Mutex mu_;
  Function function_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th

#endif  // TH_CLIENT_PROGRESS_REPORTER_H_
