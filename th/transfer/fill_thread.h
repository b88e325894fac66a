// The thread on which fills decide, keep time and call their observers: one for all fills of a
// process, there while any of them is. Named th-fill, all signals blocked. Thread-safe.
#ifndef TH_TRANSFER_FILL_THREAD_H_
#define TH_TRANSFER_FILL_THREAD_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace th {

class FillThread {
 public:
  // The process's, started when nobody has it yet. The last one to drop it ends it (also on the
  // thread itself: then it ends after the task at hand).
  static std::shared_ptr<FillThread> Shared();
  ~FillThread();

  // In order, never inline. Tasks must not block.
  void Post(std::function<void()> task) { PostAt(absl::InfinitePast(), std::move(task)); }
  // `when` on MonotonicNow's clock; in order of their times.
  void PostAt(absl::Time when, std::function<void()> task);

 private:
  // Shared with the thread, which may outlive the FillThread by the task at hand.
  struct Queue {
    absl::Mutex mu;
    std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> tasks ABSL_GUARDED_BY(mu);
    uint64_t next ABSL_GUARDED_BY(mu) = 0;
    bool ending ABSL_GUARDED_BY(mu) = false;
    absl::CondVar changed;
  };

  FillThread();
  static void Run(const std::shared_ptr<Queue>& queue);
  static bool TakeDue(Queue& queue, std::function<void()>* task);

  const pid_t process_;
  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace th

#endif  // TH_TRANSFER_FILL_THREAD_H_
