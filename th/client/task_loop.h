// One named thread that runs tasks in the order of their posting, and timers.
//
//   TaskLoop control("th-control");
//   control.Post([] { ... });
//   TaskLoop::TimerId timer = control.PostAfter(absl::Milliseconds(50), [] { ... });
//   control.Cancel(timer);
//
// The thread has all signals blocked. Thread-safe. The destructor runs what is posted, drops the
// timers and joins; on the loop's own thread it lets the thread end by itself instead.
#ifndef TH_CLIENT_TASK_LOOP_H_
#define TH_CLIENT_TASK_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"

namespace th {

class TaskLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = StrongInt<struct TimerIdTag>;  // 0: none

  // `name`: at most 15 bytes, as `ps -L` shows it.
  explicit TaskLoop(std::string name);
  ~TaskLoop();
  TaskLoop(const TaskLoop&) = delete;
  TaskLoop& operator=(const TaskLoop&) = delete;

  void Post(Task task);
  TimerId PostAfter(absl::Duration delay, Task task);
  // A timer that has fired, or none, is ignored.
  void Cancel(TimerId timer);
  bool OnLoop() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive the loop
  std::thread thread_;
};

// Threads that TaskLoops have running in this process.
int TaskLoopThreadCount();

// Blocks all signals in this thread for its scope, so that threads started within inherit that.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  struct Mask;
  std::unique_ptr<Mask> before_;
};

}  // namespace th

#endif  // TH_CLIENT_TASK_LOOP_H_
