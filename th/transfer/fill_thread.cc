#include "th/transfer/fill_thread.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "th/transfer/monotonic_clock.h"

namespace th {

std::shared_ptr<FillThread> FillThread::Shared() {
  // Never destroyed: fills may still be there while statics go.
  static absl::Mutex* const mu = new absl::Mutex;
  static auto* const shared = new std::weak_ptr<FillThread>;
  absl::MutexLock lock(mu);
  std::shared_ptr<FillThread> thread = shared->lock();
  if (thread == nullptr) {
    thread.reset(new FillThread);
    *shared = thread;
  }
  return thread;
}

FillThread::FillThread() : process_(getpid()), queue_(std::make_shared<Queue>()) {
  // A new thread inherits the mask: no signal of the host's is ever handled on it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([queue = queue_] { Run(queue); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

FillThread::~FillThread() {
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

void FillThread::PostAt(absl::Time when, std::function<void()> task) {
  absl::MutexLock lock(&queue_->mu);
  queue_->tasks.emplace(std::make_pair(when, queue_->next++), std::move(task));
  queue_->changed.Signal();
}

// Waits for a task that is due. False: the thread ends.
bool FillThread::TakeDue(Queue& queue, std::function<void()>* task) {
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

void FillThread::Run(const std::shared_ptr<Queue>& queue) {
  pthread_setname_np(pthread_self(), "th-fill");
  std::function<void()> task;
  while (TakeDue(*queue, &task)) {
    task();
    task = nullptr;  // what it holds is let go of before the next wait
  }
}

}  // namespace th
