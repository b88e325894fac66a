#include "th/doctor/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/client/local_addresses.h"
#include "th/transfer/monotonic_clock.h"

namespace th::doctor {
namespace {

// How the system shows an IPv4 peer of a socket that listens on IPv6 too.
constexpr char kIpv4WithinIpv6[] = "::ffff:";

// For poll: -1 is without end; rounded up, so that no wait ends before its deadline.
int MillisecondsUntil(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return -1;
  const absl::Duration left = LeftUntil(deadline);
  return static_cast<int>(std::min<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), INT_MAX));
}

SocketAddress EndOf(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  SocketAddress end;
  end.size = sizeof end.storage;
  if (ask(fd, end.get(), &end.size) != 0) return {};
  return end;
}

}  // namespace

std::string SocketAddress::Host() const {
  const std::string host = NumericAddress(get(), size);
  const bool ipv4 = absl::StartsWith(host, kIpv4WithinIpv6) && absl::StrContains(host, '.');
  return ipv4 ? host.substr(strlen(kIpv4WithinIpv6)) : host;
}

uint16_t SocketAddress::Port() const {
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string SocketAddress::ToString() const {
  const std::string host = Host();
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", Port())
                                      : absl::StrCat(host, ":", Port());
}

SocketAddress SocketAddress::WithPort(uint16_t port) const {
  SocketAddress other = *this;
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&other.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&other.storage)->sin_port = htons(port);
  }
  return other;
}

std::optional<SocketAddress> NumericSocketAddress(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  SocketAddress address;
  memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address.WithPort(port);
}

SocketAddress LocalEnd(int fd) { return EndOf(fd, getsockname); }
SocketAddress RemoteEnd(int fd) { return EndOf(fd, getpeername); }

std::string NetDeviceOf(const std::string& address) {
  for (const LocalAddress& local : LocalAddresses()) {
    if (local.address == address) return local.interface;
  }
  return "";
}

int AwaitReady(int fd, short events, const WaitLimit& limit) {
  for (;;) {
    std::array<pollfd, 2> waited = {
        {{.fd = fd, .events = events, .revents = 0},
         {.fd = limit.stop_fd, .events = POLLIN, .revents = 0}}};  // poll passes over -1
    const int ready = poll(waited.data(), waited.size(), MillisecondsUntil(limit.deadline));
    if (ready < 0 && errno != EINTR) return errno;
    if (ready > 0 && waited[1].revents != 0) return ECANCELED;
    if (ready > 0) return 0;
    if (MonotonicNow() >= limit.deadline) return ETIMEDOUT;
  }
}

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

stream::Socket MakeTcpSocket(const SocketAddress& address) {
  stream::Socket made(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  const int on = 1;  // lines are short, and each waits for its answer
  if (made.fd() >= 0) setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return made;
}

int Connect(int fd, const SocketAddress& address, const WaitLimit& limit) {
  if (connect(fd, address.get(), address.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const int waited = AwaitReady(fd, POLLOUT, limit);
  if (waited != 0) return waited;
  return stream::TakeSocketError(fd);
}

absl::StatusOr<stream::Socket> ListenOn(const SocketAddress& address, int backlog) {
  stream::Socket listener = MakeTcpSocket(address);
  const int on = 1;
  if (listener.fd() < 0 ||
      setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(listener.fd(), address.get(), address.size) != 0 ||
      listen(listener.fd(), backlog) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  return listener;
}

stream::Socket Accept(int listener) {
  stream::Socket accepted(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int on = 1;
  if (accepted.fd() >= 0) setsockopt(accepted.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return accepted;
}

}  // namespace th::doctor
