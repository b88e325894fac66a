// A descriptor that threads of a transport make readable when something has ended, for the event
// loop that waits for it.
//
//   const auto bell = std::make_shared<const Bell>();   // a thread that rings shares it
//   if (!bell->valid()) ...                             // no descriptor was left
//   loop.Add(bell->fd());
//   bell->Ring();    // on any thread
//   bell->Clear();   // on the loop, before it looks at what has ended
//
// Thread-safe.
#ifndef TH_TRANSFER_STREAM_BELL_H_
#define TH_TRANSFER_STREAM_BELL_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "th/transfer/stream/socket.h"

namespace th::stream {

class Bell {
 public:
  Bell() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  bool valid() const { return event_.open(); }
  int fd() const { return event_.fd(); }
  void Ring() const {
    // Whoever has rung before is seen by the same look.
    if (rung_.exchange(true)) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_.fd(), &one, sizeof(one));
  }
  void Clear() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_.fd(), &count, sizeof(count));
    // After the read: a ring in between is seen by the look that follows, and one whose write comes
    // late wakes the loop once more.
    rung_.exchange(false);
  }

 private:
  const Socket event_;  // the owner of a descriptor
  mutable std::atomic<bool> rung_{false};
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_BELL_H_
