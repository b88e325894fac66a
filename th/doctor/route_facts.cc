#include "th/doctor/route_facts.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/doctor/sockets.h"
#include "th/transfer/monotonic_clock.h"

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

void DescribeConnection(int fd, RouteFacts* route) {
  const SocketAddress self = LocalEnd(fd);
  route->source_address = self.Host();
  route->net_device = NetDeviceOf(route->source_address);
  int mtu = 0;
  socklen_t size = sizeof mtu;
  const bool v6 = self.storage.ss_family == AF_INET6;
  if (getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &mtu, &size) == 0) {
    route->path_mtu = static_cast<uint32_t>(mtu);
  }
  tcp_info info = {};
  size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
    route->round_trip_us = info.tcpi_rtt;
}

// Tries one of the host's addresses.
void TryAddress(const addrinfo& found, absl::Duration timeout, RouteFacts* route) {
  SocketAddress address;
  memcpy(&address.storage, found.ai_addr, found.ai_addrlen);
  address.size = found.ai_addrlen;
  route->peer_address = address.Host();
  const stream::Socket socket = MakeTcpSocket(address);
  const int error = socket.fd() < 0
                        ? errno
                        : Connect(socket.fd(), address, {.deadline = MonotonicNow() + timeout});
  if (error == 0) {
    route->outcome = Outcome::kConnected;
    route->error.clear();
    DescribeConnection(socket.fd(), route);
  } else {
    route->outcome = OutcomeOf(error);
    route->error = strerror(error);
  }
}

// `least_port` is 0 where the system may choose one.
absl::StatusOr<HostAndPort> Parse(const std::string& text, uint32_t least_port,
                                  const absl::Status& wrong) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong;
  HostAndPort parsed = {.host = text.substr(0, colon), .port = text.substr(colon + 1)};
  uint32_t port = 0;
  const bool digits = parsed.port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(parsed.port, &port) || port < least_port || port > UINT16_MAX) {
    return wrong;
  }
  if (parsed.host.empty()) return parsed;
  if (parsed.host.front() == '[' && parsed.host.back() == ']') {
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (parsed.host.empty()) return wrong;
  } else if (parsed.host.find(':') != std::string::npos) {
    return wrong;  // an IPv6 address without brackets: its end could be meant as the port
  }
  return parsed;
}

}  // namespace

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "expected HOST:PORT with a port from 1 to 65535, as in node7:7077 or [fd00::7]:7077, not '",
      text, "'"));
  absl::StatusOr<HostAndPort> parsed = Parse(text, /*least_port=*/1, wrong);
  if (parsed.ok() && parsed->host.empty()) return wrong;
  return parsed;
}

absl::StatusOr<HostAndPort> ParseListenAddress(const std::string& text) {
  absl::StatusOr<HostAndPort> parsed = Parse(
      text, /*least_port=*/0,
      absl::InvalidArgumentError(absl::StrCat(
          "expected [HOST]:PORT with a port up to 65535, where 0 lets the system choose one, as in "
          "10.0.0.2:7099 or :0, not '",
          text, "'")));
  if (parsed.ok() && parsed->host.empty()) parsed->host = kAnyHost;
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
