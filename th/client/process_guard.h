// Remembers in which process an object was made. A fork copies the memory but none of the threads:
// the child must not touch a lock, a socket or a gRPC object of its parent.
#ifndef TH_CLIENT_PROCESS_GUARD_H_
#define TH_CLIENT_PROCESS_GUARD_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/status/status.h"

namespace th {

class ProcessGuard {
 public:
  ProcessGuard() : pid_(getpid()) {}

  bool forked() const { return getpid() != pid_; }
  // FAILED_PRECONDITION in a child of the process that made this.
  absl::Status Check() const;

 private:
  pid_t pid_;
};

// The process that uses an object which lives as long as the process, and which a fork copies with
// its locks as they are: another process must not take them. Thread-safe.
class OwningProcess {
 public:
  void TakeOver() { pid_ = getpid(); }
  // False before the first TakeOver, and in a child of the process that took it over last.
  bool IsThis() const { return pid_ == getpid(); }

 private:
  std::atomic<pid_t> pid_{0};
};

// The destructor's part in a forked child: the object's threads exist in the parent only, and its
// locks may be held by them for ever, so its memory is given up as it is.
template <typename Pointer>
void LeaveBehind(Pointer pointer) {
  new Pointer(std::move(pointer));
}

// Notes that this process uses TensorHub. FAILED_PRECONDITION in a child of a process that did so.
absl::Status ClaimProcess();

}  // namespace th

#endif  // TH_CLIENT_PROCESS_GUARD_H_
