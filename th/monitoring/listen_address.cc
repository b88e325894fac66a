#include "th/monitoring/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

// A fleet that comes back after a restart connects at once; the system caps it at somaxconn.
constexpr int kBacklog = 4096;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> LookUp(const ListenAddress& address) {
  const addrinfo hints{.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error == 0) return AddressList(found, &freeaddrinfo);
  return absl::NotFoundError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", gai_strerror(error),
                   "; name an address of this host (ip address), or a name that leads to one"));
}

absl::string_view Remedy(int error) {
  switch (error) {
    case EADDRINUSE:
      return "; choose another port, or 0, or end what listens there (ss -ltnp)";
    case EADDRNOTAVAIL:
      return "; this host has no such address; name one of its own (ip address)";
    case EACCES:
      return "; choose a port from 1024 up, or give the program CAP_NET_BIND_SERVICE";
    default:
      return "";
  }
}

absl::Status SystemError(const ListenAddress& address) {
  const int error = errno;
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", address.ToString()));
  return absl::Status(status.code(), absl::StrCat(status.message(), Remedy(error)));
}

uint16_t PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) < 0) return 0;
  // Both families keep the port in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

// The system's number of what went wrong stays in errno.
absl::StatusOr<BoundSocket> BindTo(const addrinfo& to, const ListenAddress& address) {
  const int fd = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(address);
  const int on = 1;  // a port whose old connections linger is free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, to.ai_addr, to.ai_addrlen) < 0 || listen(fd, kBacklog) < 0) {
    const int error = errno;
    absl::Status status = SystemError(address);
    close(fd);
    errno = error;
    return status;
  }
  return BoundSocket{fd, PortOf(fd)};
}

// Both families keep the port in the same place.
void SetPort(const addrinfo& to, uint16_t port) {
  reinterpret_cast<sockaddr_in*>(to.ai_addr)->sin_port = htons(port);
}

}  // namespace

std::string ListenAddress::ToString() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  uint32_t port = 0;
  bool good = colon != absl::string_view::npos && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
              port <= 0xffff;
  if (good) {
    absl::string_view host = text.substr(0, colon);
    const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
    good = !host.empty() && (bracketed || host.find(':') == absl::string_view::npos);
    address = {std::string(host), static_cast<uint16_t>(port)};
  }
  if (good) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text),
      " is no address to listen on; give HOST:PORT, such as 127.0.0.1:7077, with a port up to "
      "65535 (0: the system chooses)"));
}

std::string WhyNoListenAddress(const std::string& text) {
  return std::string(ParseListenAddress(text).status().message());
}

absl::StatusOr<BoundSocket> BindAndListen(const ListenAddress& address) {
  TH_ASSIGN_OR_RETURN(const AddressList list, LookUp(address));
  return BindTo(*list, address);
}

absl::StatusOr<std::vector<BoundSocket>> BindAndListenEverywhere(const ListenAddress& address) {
  TH_ASSIGN_OR_RETURN(const AddressList list, LookUp(address));
  std::vector<BoundSocket> sockets;
  absl::Status why;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    if (!sockets.empty()) SetPort(*one, sockets.front().port);
    absl::StatusOr<BoundSocket> bound = BindTo(*one, address);
    const bool no_such_family = !bound.ok() && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL);
    if (bound.ok()) {
      sockets.push_back(*bound);
    } else if (why.ok() || !no_such_family) {
      why = bound.status();
    }
    if (bound.ok() || no_such_family) continue;
    for (const BoundSocket& socket : sockets) close(socket.fd);
    return why;
  }
  if (sockets.empty()) return why;
  return sockets;
}

}  // namespace th
