#include "th/c_interface/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th::c {

absl::StatusOr<std::unique_ptr<EventFd>> EventFd::Make() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no descriptor for the operation's event: ", std::strerror(errno)));
  }
  return std::unique_ptr<EventFd>(new EventFd(fd));
}

EventFd::~EventFd() { close(fd_); }

// Neither can fail but where there is nothing to do.
void EventFd::Set() { (void)eventfd_write(fd_, 1); }

void EventFd::Clear() {
  eventfd_t count = 0;
  (void)eventfd_read(fd_, &count);
}

}  // namespace th::c
