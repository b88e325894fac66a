// A descriptor that is readable once something has happened, for poll and event loops.
#ifndef TH_C_INTERFACE_EVENT_FD_H_
#define TH_C_INTERFACE_EVENT_FD_H_

#include <memory>

#include "absl/status/statusor.h"

namespace th::c {

// Thread-safe, but for its end.
class EventFd {
 public:
  // RESOURCE_EXHAUSTED: the process has no descriptor left.
  static absl::StatusOr<std::unique_ptr<EventFd>> Make();
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  int fd() const { return fd_; }
  void Set();
  void Clear();

 private:
  explicit EventFd(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace th::c

#endif  // TH_C_INTERFACE_EVENT_FD_H_
