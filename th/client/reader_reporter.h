// Hands what readers of this process do to the user's function, for logs: never two calls at once,
// none after Disable.
#ifndef TH_CLIENT_READER_REPORTER_H_
#define TH_CLIENT_READER_REPORTER_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/client/client.h"
#include "th/client/runtime.h"

namespace th {

// Reports that may wait for a slow function; further ones are dropped.
inline constexpr size_t kMaxReaderReportsWaiting = 1024;

// Thread-safe. Shared: a call of the user's function may be posted when the membership ends.
class ReaderReporter : public std::enable_shared_from_this<ReaderReporter> {
 public:
  using Function = std::function<void(const ReaderReport&)>;
  ReaderReporter(std::shared_ptr<Runtime> runtime, Function function)
      : runtime_(std::move(runtime)), function_(std::move(function)) {}

  // Runs the function on th-callback.
  void Report(ReaderReport report);
  // Returns when no call is under way and none will come. Not from within the function.
  void Disable();

 private:
  const std::shared_ptr<Runtime> runtime_;
  std::atomic<size_t> waiting_{0};
  absl::Mutex mu_;
  Function function_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th

#endif  // TH_CLIENT_READER_REPORTER_H_
