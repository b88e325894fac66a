#include "th/transfer/same_host/process_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace th::same_host {

ProcessWatch::ProcessWatch(pid_t process)
    : process_(process), descriptor_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))) {}

bool ProcessWatch::HasEnded() const {
  if (!descriptor_.open()) return kill(process_, 0) != 0 && errno == ESRCH;
  pollfd polled{.fd = descriptor_.fd(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace th::same_host
