// Sees that another process of this host has ended, by a descriptor of the process, so that a
// number which the kernel gave to another process is not taken for it.
//
//   const ProcessWatch watch(pid);
//   ... later ...
//   if (watch.HasEnded()) DropWhatIsKeptFor(watch.process());
//
// Where there is no such descriptor (a kernel before Linux 5.3, a seccomp filter, no descriptor
// left) the number is looked at: then a process has ended once its parent has taken note and no
// other process has its number. Thread-safe.
#ifndef TH_TRANSFER_SAME_HOST_PROCESS_WATCH_H_
#define TH_TRANSFER_SAME_HOST_PROCESS_WATCH_H_

#include <sys/types.h>

#include "th/transfer/stream/socket.h"

namespace th::same_host {

class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t process);

  pid_t process() const { return process_; }
  // Does not block.
  bool HasEnded() const;

 private:
  const pid_t process_;
  const stream::Socket descriptor_;  // readable once the process has ended; may not be open
};

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_PROCESS_WATCH_H_
