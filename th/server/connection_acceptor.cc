#include "th/server/connection_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "th/monitoring/descriptors.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// Connections of one listener before the others are looked at.
constexpr int kAcceptsInARow = 256;

// Sets the options that gRPC sets for connections of its own listeners.
void Prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const unsigned timeout_ms = static_cast<unsigned>(absl::ToInt64Milliseconds(kUnacknowledged));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

}  // namespace

std::string ShortageText() {
  const uint64_t limit = DescriptorLimit();
  return absl::StrCat(
      OpenDescriptors(), " of at most ", limit, " file descriptors are open and ",
      ReservedDescriptors(limit), " are reserved for the server's own files, so that no further ",
      "worker can connect: start the server with a higher hard limit of open files (ulimit -Hn, ",
      "LimitNOFILE= of systemd), one for each worker and controller and ", kReservedDescriptors,
      " more");
}

ConnectionAcceptor::ConnectionAcceptor(std::vector<BoundSocket> sockets, Handlers handlers,
                                       ServerMetrics* metrics)
    : sockets_(std::move(sockets)),
      handlers_(std::move(handlers)),
      metrics_(metrics),
      wake_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_([this] { Run(); }) {
  PCHECK(wake_fd_ >= 0) << "cannot create an eventfd";
}

ConnectionAcceptor::~ConnectionAcceptor() {
  eventfd_write(wake_fd_, 1);
  thread_.join();
  close(wake_fd_);
  for (const BoundSocket& socket : sockets_) close(socket.fd);
}

void ConnectionAcceptor::Run() {
  for (;;) {
    const absl::Duration pause = accept_again_at_ - MonotonicNow();
    const bool accepts = pause <= absl::ZeroDuration();
    std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
    for (const BoundSocket& socket : sockets_) {
      fds.push_back({accepts ? socket.fd : -1, POLLIN, 0});
    }
    const int timeout_ms = accepts ? -1 : static_cast<int>(absl::ToInt64Milliseconds(pause)) + 1;
    if (poll(fds.data(), fds.size(), timeout_ms) < 0) continue;
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) AcceptFrom(fds[i].fd);
    }
  }
}

void ConnectionAcceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && !IsReserved(fd)) {
      Prepare(fd);
      handlers_.accepted(listener, fd);
    } else if (fd >= 0) {
      close(fd);
      NoteShortage(ShortageText());
    } else if (IsShortage(errno)) {
      const int error = errno;
      accept_again_at_ = MonotonicNow() + kAcceptRetry;
      NoteShortage(absl::StrCat(absl::ErrnoToStatus(error, "cannot accept").message(), "; ",
                                ShortageText()));
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

void ConnectionAcceptor::NoteShortage(const std::string& why) {
  metrics_->connections_refused.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = MonotonicNow();
  if (now - reported_at_ < kShortageReported) return;
  reported_at_ = now;
  handlers_.short_of(why);
}

}  // namespace th
