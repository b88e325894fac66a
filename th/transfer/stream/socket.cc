#include "th/transfer/stream/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace th::stream {
namespace {

constexpr int kListenBacklog = 1024;

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

absl::StatusOr<SocketAddress> SocketAddress::OfUnixName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxUnixNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a Unix socket's name has 1 to ",
                                                   kMaxUnixNameBytes, " bytes, not ", name.size()));
  }
  SocketAddress address;
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  // A first byte of zero: the abstract namespace.
  std::memcpy(unix_address.sun_path + 1, name.data(), name.size());
  std::memcpy(&address.storage_, &unix_address, sizeof(unix_address));
  address.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
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
  if (family() == AF_UNIX) {
    const auto* named = reinterpret_cast<const sockaddr_un*>(&storage_);
    const size_t before = offsetof(sockaddr_un, sun_path) + 1;
    if (size_ <= before) return "@";
    return absl::StrCat("@", absl::string_view(named->sun_path + 1, size_ - before));
  }
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

std::string PeerName(int fd) {
  const SocketAddress address = SocketAddress::OfPeer(fd);
  if (address.family() == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return absl::StrCat("process ", peer.pid);
  }
  std::string name = address.ToString();
  name.resize(name.rfind(':'));
  return name;
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
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto failed = [&] {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for data on ", address.ToString(), ": ", ErrnoText(errno)));
  };
  if (!socket.open()) return failed();
  const int one = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(socket.fd(), address.get(), address.size()) != 0) return failed();
  if (listen(socket.fd(), kListenBacklog) != 0) return failed();
  return socket;
}

absl::StatusOr<Socket> BeginConnect(const SocketAddress& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
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

}  // namespace th::stream
