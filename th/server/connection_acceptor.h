// Accepts the connections of workers and controllers, and hands them to gRPC.
//
//   TH_ASSIGN_OR_RETURN(std::vector<BoundSocket> sockets, BindAndListenEverywhere(address));
//   ConnectionAcceptor acceptor(std::move(sockets), {.accepted = [&](int listener, int fd) { … },
//                                                    .short_of = [&](const std::string& what) { …
//                                                    }},
//                               &metrics);
//
// gRPC's own listener gives up for good at the first accept that fails for want of a descriptor,
// and tells nobody. This one closes connections beyond what the limit of open files allows (their
// peers try again), goes on once some have ended, and says so.
//
// One thread. The sockets are its own.
#ifndef TH_SERVER_CONNECTION_ACCEPTOR_H_
#define TH_SERVER_CONNECTION_ACCEPTOR_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "th/monitoring/listen_address.h"
#include "th/server/server_metrics.h"

namespace th {

// How often a shortage that lasts is told again.
inline constexpr absl::Duration kShortageReported = absl::Seconds(10);
// A peer that acknowledges nothing for so long is cut off by the system.
inline constexpr absl::Duration kUnacknowledged = absl::Seconds(2);

class ConnectionAcceptor {
 public:
  struct Handlers {  // both are called on the acceptor's thread
    // Takes over `fd`, which is non-blocking and close-on-exec.
    std::function<void(int listener, int fd)> accepted;
    // Connections are being refused: what for, and what to do. Not more often than
    // kShortageReported.
    std::function<void(const std::string& why)> short_of;
  };
  // `metrics` outlives it. The thread starts at once.
  ConnectionAcceptor(std::vector<BoundSocket> sockets, Handlers handlers, ServerMetrics* metrics);
  ~ConnectionAcceptor();  // accepts nothing any more, and closes the sockets
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

 private:
  void Run();
  void AcceptFrom(int listener);
  void NoteShortage(const std::string& why);

  const std::vector<BoundSocket> sockets_;
  const Handlers handlers_;
  ServerMetrics* const metrics_;
  const int wake_fd_;  // readable: stop
  // The thread's own.
  absl::Time accept_again_at_ = absl::InfinitePast();
  absl::Time reported_at_ = absl::InfinitePast();
  std::thread thread_;
};

// "1019 of at most 1024 file descriptors are open, …", with what to do.
std::string ShortageText();

}  // namespace th

#endif  // TH_SERVER_CONNECTION_ACCEPTOR_H_
