#include "th/doctor/network_checks.h"

#include <algorithm>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/command_line/quantity.h"

namespace th::doctor {
namespace {

using Outcome = RouteFacts::Outcome;

// Linux allows this by itself; a lower limit was set by somebody.
constexpr uint64_t kUsualBufferBytes = 4 << 20;
// A usual round trip between two sites of one region.
constexpr int64_t kExampleRoundTripMs = 10;
constexpr uint32_t kEthernetMtu = 1500;
constexpr uint32_t kLargestPacket = 65535;  // of IPv4

Finding Unreached(const RouteFacts& route) {
  Finding finding = {.check = "connect", .verdict = Verdict::kProblem};
  finding.found = absl::StrCat(route.target, ": ", route.error);
  finding.means = "nothing can be read from there, nor a server reached";
  switch (route.outcome) {
    case Outcome::kUnknownHost:
      finding.advice = "name an address, or a name that this host resolves (getent hosts NAME)";
      break;
    case Outcome::kRefused:
      finding.means = "the host answers, but nobody listens on this port";
      finding.advice =
          "start what should listen there, on an address that others reach (not "
          "127.0.0.1), or name its port";
      break;
    case Outcome::kUnreachable:
      finding.advice = absl::StrCat("give this host a route to ", route.peer_address,
                                    " (ip route get ", route.peer_address, ")");
      break;
    case Outcome::kTimedOut:
      finding.means = "no answer: a firewall drops the packets, or the host is down";
      finding.advice =
          "let the firewalls on the way pass the port (data planes take ports that the "
          "system chooses, unless --data-address names one), and look at the host";
      break;
    default:
      finding.advice = "look at the error above";
  }
  return finding;
}

std::string RoundTrip(uint32_t microseconds) {
  return microseconds == 0 ? "an unknown round trip"
                           : absl::StrFormat("a round trip of %.2f ms", microseconds / 1000.0);
}

Finding CheckPathMtu(const RouteFacts& route, const HostFacts& facts) {
  Finding finding = {.check = "path-mtu"};
  const auto device = facts.net_device_mtu.find(route.net_device);
  // Loopback's MTU is larger than any packet may be.
  const uint32_t device_mtu =
      device == facts.net_device_mtu.end() ? 0 : std::min(device->second, kLargestPacket);
  finding.found = absl::StrCat(route.path_mtu, " bytes a packet to ", route.target);
  if (route.path_mtu == 0) {
    finding.found = absl::StrCat("not known to ", route.target);
    finding.means = "the kernel does not say";
  } else if (route.path_mtu < device_mtu) {
    finding.verdict = Verdict::kNote;
    finding.means = absl::StrCat("something on the way carries smaller packets than ",
                                 route.net_device, " (", device_mtu, ")");
    finding.advice = "set the MTU of all hosts and switches on the way to the same value";
  } else if (route.path_mtu < kEthernetMtu) {
    finding.verdict = Verdict::kNote;
    finding.means =
        "smaller than Ethernet's: a tunnel or an overlay network takes its part, and more";
    finding.advice = "let data planes use the host's network (hostNetwork, --network host)";
  } else {
    finding.means = "as large as the network device sends, as far as the kernel knows";
  }
  return finding;
}

}  // namespace

Finding CheckCongestionControl(const TcpFacts& tcp) {
  Finding finding = {.check = "congestion-control", .found = tcp.congestion_control};
  if (tcp.congestion_control == "cubic" || tcp.congestion_control == "dctcp") {
    finding.means = "fit for fast, short links";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  if (tcp.congestion_control.empty()) {
    finding.found = "the kernel does not show it";
    finding.means = "nothing is known of TCP's throughput";
    finding.advice = "look at sysctl net.ipv4.tcp_congestion_control on the host";
    return finding;
  }
  finding.means = tcp.congestion_control == "bbr"
                      ? "bbr sends at a rate that it estimates: good on long links with losses, "
                        "slower than cubic within a data centre"
                      : "not measured with TensorHub; on fast links cubic is a good choice";
  finding.advice =
      absl::c_linear_search(tcp.available_controls, "cubic")
          ? "compare: sysctl net.ipv4.tcp_congestion_control=cubic"
          : "compare: modprobe tcp_cubic; sysctl net.ipv4.tcp_congestion_control=cubic";
  return finding;
}

Finding CheckSocketBuffers(const TcpFacts& tcp) {
  Finding finding = {.check = "socket-buffers"};
  if (!tcp.max_receive_bytes.has_value() || !tcp.max_send_bytes.has_value()) {
    finding.verdict = Verdict::kNote;
    finding.found = "the kernel does not show them";
    finding.means = "nothing is known of TCP's throughput over long links";
    finding.advice = "look at sysctl net.ipv4.tcp_rmem net.ipv4.tcp_wmem on the host";
    return finding;
  }
  const uint64_t window = std::min(*tcp.max_receive_bytes, *tcp.max_send_bytes);
  finding.found = absl::StrCat("at most ", FormatBytes(*tcp.max_receive_bytes), " to receive, ",
                               FormatBytes(*tcp.max_send_bytes), " to send");
  finding.means = absl::StrCat("one connection carries at most ",
                               FormatRate(window * 1000 / kExampleRoundTripMs),
                               " over a link with a round trip of ", kExampleRoundTripMs, " ms");
  if (window >= kUsualBufferBytes) return finding;
  finding.verdict = Verdict::kNote;
  finding.advice =
      "sysctl net.ipv4.tcp_rmem='4096 131072 33554432' net.ipv4.tcp_wmem='4096 16384 33554432'";
  return finding;
}

Finding CheckServer(const ServerFacts& server) {
  if (!server.error.empty()) {
    return {.check = "server",
            .verdict = Verdict::kProblem,
            .found = server.error,
            .means = "workers of this release cannot join",
            .advice =
                "name what tensorhub_server --listen, or the file of its --address-file, "
                "says; where releases differ, upgrade one step at a time"};
  }
  return {
      .check = "server",
      .found = absl::StrCat(server.server, " is a reference server, in its epoch ", server.epoch),
      .means = "it speaks a protocol of this release: workers and commands can use it"};
}

std::vector<Finding> CheckRoute(const RouteFacts& route, const HostFacts& facts) {
  if (route.outcome != Outcome::kConnected) return {Unreached(route)};
  const Finding connected = {
      .check = "connect",
      .found = absl::StrCat(route.target, " (", route.peer_address,
                            ") answers; packets leave from ", route.source_address,
                            route.net_device.empty() ? "" : absl::StrCat(" by ", route.net_device),
                            ", with ", RoundTrip(route.round_trip_us)),
      .means = "TCP reaches it; whether it reaches this host, its own th doctor says"};
  return {connected, CheckPathMtu(route, facts)};
}

}  // namespace th::doctor
