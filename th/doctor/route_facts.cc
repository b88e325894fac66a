#include "th/doctor/route_facts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/client/local_addresses.h"

namespace th::doctor {
namespace {

using Outcome = RouteFacts::Outcome;

Outcome OutcomeOf(int error) {
  switch (error) {
    case ECONNREFUSED:
      return Outcome::kRefused;
    case EHOSTUNREACH:
    case ENETUNREACH:
      return Outcome::kUnreachable;
    case ETIMEDOUT:
      return Outcome::kTimedOut;
    default:
      return Outcome::kFailed;
  }
}

// 0 or the errno.
int ConnectWithin(int fd, const addrinfo& address, absl::Duration timeout) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting = {.fd = fd, .events = POLLOUT, .revents = 0};
  const int ready = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (ready == 0) return ETIMEDOUT;
  if (ready < 0) return errno;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string NetDeviceOf(const std::string& address) {
  for (const LocalAddress& local : LocalAddresses()) {
    if (local.address == address) return local.interface;
  }
  return "";
}

void DescribeConnection(int fd, RouteFacts* route) {
  sockaddr_storage self = {};
  socklen_t size = sizeof self;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size) == 0) {
    route->source_address = NumericAddress(reinterpret_cast<sockaddr*>(&self), size);
    route->net_device = NetDeviceOf(route->source_address);
  }
  int mtu = 0;
  size = sizeof mtu;
  const bool v6 = self.ss_family == AF_INET6;
  if (getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &mtu, &size) == 0) {
    route->path_mtu = static_cast<uint32_t>(mtu);
  }
  tcp_info info = {};
  size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
    route->round_trip_us = info.tcpi_rtt;
}

// One of the host's addresses.
void TryAddress(const addrinfo& address, absl::Duration timeout, RouteFacts* route) {
  route->peer_address = NumericAddress(address.ai_addr, address.ai_addrlen);
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  const int error = fd < 0 ? errno : ConnectWithin(fd, address, timeout);
  if (error == 0) {
    route->outcome = Outcome::kConnected;
    route->error.clear();
    DescribeConnection(fd, route);
  } else {
    route->outcome = OutcomeOf(error);
    route->error = strerror(error);
  }
  if (fd >= 0) close(fd);
}

}  // namespace

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "expected HOST:PORT with a port from 1 to 65535, as in node7:7077 or [fd00::7]:7077, not '",
      text, "'"));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong;
  HostAndPort parsed = {.host = text.substr(0, colon), .port = text.substr(colon + 1)};
  uint32_t port = 0;
  const bool digits = parsed.port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(parsed.port, &port) || port == 0 || port > UINT16_MAX) {
    return wrong;
  }
  if (parsed.host.front() == '[' && parsed.host.back() == ']') {
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  } else if (parsed.host.find(':') != std::string::npos) {
    return wrong;  // an IPv6 address without brackets: its end could be meant as the port
  }
  if (parsed.host.empty()) return wrong;
  return parsed;
}

RouteFacts ProbeRoute(const HostAndPort& target, absl::Duration timeout) {
  RouteFacts route;
  route.target = absl::StrCat(target.host, ":", target.port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (error != 0) {
    route.outcome = Outcome::kUnknownHost;
    route.error = gai_strerror(error);
    return route;
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    TryAddress(*each, timeout, &route);
    if (route.outcome == Outcome::kConnected) break;
  }
  return route;
}

}  // namespace th::doctor
