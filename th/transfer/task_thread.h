// A thread that runs tasks in order and at their time: on one of them, th-fill, all fills of a
// process decide, keep time and call their observers. Named, all signals blocked. Thread-safe.
#ifndef TH_TRANSFER_TASK_THREAD_H_
#define TH_TRANSFER_TASK_THREAD_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace th {

class TaskThread {
 public:
  explicit TaskThread(std::string name);
  // Ends the thread after the running task. Tasks that have not begun are destroyed without being
  // run, due or not. May be called on the thread itself.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Runs `task` after those that were posted before it, never inline. A task may block only where
  // nothing else that the thread is given is urgent; tasks of th-fill, which all fills share, must
  // not.
  void Post(std::function<void()> task) { PostAt(absl::InfinitePast(), std::move(task)); }
  // `when` on MonotonicNow's clock; in order of their times.
  void PostAt(absl::Time when, std::function<void()> task);

 private:
  // Shared with the thread, which may outlive the TaskThread by the task at hand.
  struct Queue {
    absl::Mutex mu;
    std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> tasks ABSL_GUARDED_BY(mu);
    uint64_t next ABSL_GUARDED_BY(mu) = 0;
    bool ending ABSL_GUARDED_BY(mu) = false;
    absl::CondVar changed;
  };

  static void Run(const std::string& name, const std::shared_ptr<Queue>& queue);
  static bool TakeDue(Queue& queue, std::function<void()>* task);

  const pid_t process_;
  const std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

// The process's thread for fills, started when nobody has it yet; the last one to drop it ends it.
std::shared_ptr<TaskThread> SharedFillThread();

}  // namespace th

#endif  // TH_TRANSFER_TASK_THREAD_H_
