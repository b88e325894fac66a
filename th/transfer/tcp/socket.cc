#include "th/transfer/tcp/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace th::tcp {
namespace {

constexpr int kListenBacklog = 1024;
// A peer host that answers nothing (or whose reader takes nothing) for so long is given up by TCP.
constexpr unsigned int kUserTimeoutMs = 30'000;
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;
// On loopback there is no delay to fill, and what the system would let queue up (megabytes a
// connection) has left the cache when the reader comes to it.
constexpr int kLoopbackSendBufferBytes = 256 << 10;

void SetInt(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

std::string ErrnoText(int error) {
  char text[128];
  return absl::StrCat(strerror_r(error, text, sizeof(text)), " (", error, ")");
}

void Socket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  const size_t colon = text.rfind(':');
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat("'", text,
                                                   "' is no numeric address with a port, such as "
                                                   "10.0.0.7:4711 or [::1]:0"));
  };
  if (colon == absl::string_view::npos) return bad();
  int port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 || port > 65535) return bad();
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_family = bracketed ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return bad();
  }
  SocketAddress address;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  address.size_ = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

SocketAddress SocketAddress::OfPeer(int fd) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_);
  return address;
}

SocketAddress SocketAddress::OfSelf(int fd) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_);
  return address;
}

std::string SocketAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
    return absl::StrCat(host, ":", port());
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  if (family() == AF_INET6) inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
  return absl::StrCat("[", host, "]:", port());
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return 0;
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool SocketAddress::IsWildcard() const {
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

absl::StatusOr<Socket> ListenOn(const SocketAddress& address) {
  Socket socket(
      ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  const auto failed = [&] {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for data on ", address.ToString(), ": ", ErrnoText(errno)));
  };
  if (!socket.open()) return failed();
  SetInt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.fd(), address.get(), address.size()) != 0) return failed();
  if (listen(socket.fd(), kListenBacklog) != 0) return failed();
  return socket;
}

absl::StatusOr<Socket> BeginConnect(const SocketAddress& address) {
  Socket socket(
      ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.open()) return absl::UnavailableError(ErrnoText(errno));
  if (connect(socket.fd(), address.get(), address.size()) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(ErrnoText(errno));
  }
  return socket;
}

int TakeSocketError(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void TuneConnection(int fd, const std::string& congestion_control) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
  std::string chosen = congestion_control;
  if (SocketAddress::OfPeer(fd).IsLoopback()) {
    if (chosen.empty()) chosen = "cubic";
    SetInt(fd, SOL_SOCKET, SO_SNDBUF, kLoopbackSendBufferBytes);
  }
  // Where it is not to be had the system's choice stays: slower at worst.
  if (!chosen.empty()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, chosen.data(),
               static_cast<socklen_t>(chosen.size()));
  }
}

}  // namespace th::tcp
