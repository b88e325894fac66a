#include "th/transfer/task_thread.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "th/transfer/monotonic_clock.h"

namespace th {

TaskThread::TaskThread(std::string name) : process_(getpid()), queue_(std::make_shared<Queue>()) {
  // A new thread inherits the mask: no signal of the host's is ever handled on it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([queue = queue_, name = std::move(name)] { Run(name, queue); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TaskThread::~TaskThread() {
  if (getpid() != process_) {
    thread_.detach();  // a forked child has no such thread
    return;
  }
  {
    absl::MutexLock lock(&queue_->mu);
    queue_->ending = true;
    queue_->changed.Signal();
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void TaskThread::PostAt(absl::Time when, std::function<void()> task) {
  absl::MutexLock lock(&queue_->mu);
  queue_->tasks.emplace(std::make_pair(when, queue_->next++), std::move(task));
  queue_->changed.Signal();
}

// Waits for a task that is due. False: the thread ends.
bool TaskThread::TakeDue(Queue& queue, std::function<void()>* task) {
  absl::MutexLock lock(&queue.mu);
  while (!queue.ending) {
    const absl::Duration wait = queue.tasks.empty()
                                    ? absl::InfiniteDuration()
                                    : queue.tasks.begin()->first.first - MonotonicNow();
    if (wait > absl::ZeroDuration()) {
      queue.changed.WaitWithTimeout(&queue.mu, wait);
      continue;
    }
    *task = std::move(queue.tasks.begin()->second);
    queue.tasks.erase(queue.tasks.begin());
    return true;
  }
  return false;
}

void TaskThread::Run(const std::string& name, const std::shared_ptr<Queue>& queue) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  std::function<void()> task;
  while (TakeDue(*queue, &task)) {
    task();
    task = nullptr;  // what it holds is let go of before the next wait
  }
}

std::shared_ptr<TaskThread> SharedFillThread() {
  // Never destroyed: fills may still be there while statics go.
  static absl::Mutex* const mu = new absl::Mutex;
  static auto* const shared = new std::weak_ptr<TaskThread>;
  absl::MutexLock lock(mu);
  std::shared_ptr<TaskThread> thread = shared->lock();
  if (thread == nullptr) {
    thread = std::make_shared<TaskThread>("th-fill");
    *shared = thread;
  }
  return thread;
}

}  // namespace th
