#include "th/client/task_loop.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

std::atomic<int> running_threads{0};

}  // namespace

int TaskLoopThreadCount() { return running_threads.load(); }

struct SignalsBlocked::Mask {
  sigset_t set;
};

SignalsBlocked::SignalsBlocked() : before_(std::make_unique<Mask>()) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_->set);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_->set, nullptr); }

struct TaskLoop::State {
  void Run(const std::string& name);
  // The next task that is due; empty when the loop has stopped and nothing is posted any more.
  Task Next();
  Task TakeDueTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void WaitForWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  absl::Mutex mu;
  absl::CondVar changed;
  std::deque<Task> posted ABSL_GUARDED_BY(mu);
  std::map<std::pair<absl::Time, uint64_t>, Task> timers ABSL_GUARDED_BY(mu);
  uint64_t last_timer ABSL_GUARDED_BY(mu) = 0;
  bool stopping ABSL_GUARDED_BY(mu) = false;
};

TaskLoop::Task TaskLoop::State::TakeDueTimer() {
  if (stopping || timers.empty() || timers.begin()->first.first > MonotonicNow()) return nullptr;
  Task task = std::move(timers.begin()->second);
  timers.erase(timers.begin());
  return task;
}

void TaskLoop::State::WaitForWork() {
  if (timers.empty()) {
    changed.Wait(&mu);
  } else {
    changed.WaitWithTimeout(&mu, timers.begin()->first.first - MonotonicNow());
  }
}

TaskLoop::Task TaskLoop::State::Next() {
  absl::MutexLock lock(&mu);
  for (;;) {
    if (Task due = TakeDueTimer()) return due;
    if (!posted.empty()) {
      Task task = std::move(posted.front());
      posted.pop_front();
      return task;
    }
    if (stopping) return nullptr;
    WaitForWork();
  }
}

void TaskLoop::State::Run(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  // Each task is destroyed before the next one is waited for: what it keeps alive must end then.
  for (;;) {
    Task task = Next();
    if (task == nullptr) break;
    task();
  }
  std::map<std::pair<absl::Time, uint64_t>, Task> dropped;
  {
    absl::MutexLock lock(&mu);
    dropped.swap(timers);
  }
}

TaskLoop::TaskLoop(std::string name) : state_(std::make_shared<State>()) {
  SignalsBlocked blocked;
  ++running_threads;
  thread_ = std::thread([state = state_, name = std::move(name)]() mutable {
    state->Run(name);
    state.reset();
    --running_threads;
  });
}

TaskLoop::~TaskLoop() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->stopping = true;
    state_->changed.SignalAll();
  }
  if (OnLoop()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void TaskLoop::Post(Task task) {
  absl::MutexLock lock(&state_->mu);
  state_->posted.push_back(std::move(task));
  state_->changed.Signal();
}

TaskLoop::TimerId TaskLoop::PostAfter(absl::Duration delay, Task task) {
  absl::MutexLock lock(&state_->mu);
  const TimerId id(++state_->last_timer);
  state_->timers[{MonotonicNow() + std::max(delay, absl::ZeroDuration()), id.value}] =
      std::move(task);
  state_->changed.Signal();
  return id;
}

void TaskLoop::Cancel(TimerId timer) {
  Task dropped;  // destroyed outside of the lock
  absl::MutexLock lock(&state_->mu);
  for (auto it = state_->timers.begin(); it != state_->timers.end(); ++it) {
    if (it->first.second != timer.value) continue;
    dropped = std::move(it->second);
    state_->timers.erase(it);
    return;
  }
}

bool TaskLoop::OnLoop() const { return std::this_thread::get_id() == thread_.get_id(); }

}  // namespace th
