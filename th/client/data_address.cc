#include "th/client/data_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

absl::Status BadAddress(absl::string_view address) {
  return absl::InvalidArgumentError(
      absl::StrCat("server address ", Quoted(address), " is not of the form host:port"));
}

constexpr int64_t kMostPort = 65535;

// The error of a port; what else is wrong with the address comes first.
absl::Status BadPort(absl::string_view whose, absl::string_view address, int64_t port) {
  return absl::InvalidArgumentError(absl::StrCat(
      whose, " address ", Quoted(address), " has the port ", port, ": ports are 1 to ", kMostPort));
}

// The address that a datagram to `to` would leave from; nothing is sent.
absl::StatusOr<std::string> SourceAddressOf(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  if (connect(fd, to.ai_addr, to.ai_addrlen) != 0) return absl::UnavailableError(strerror(errno));
  sockaddr_storage local;
  socklen_t length = sizeof(local);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  std::array<char, NI_MAXHOST> host;
  if (getnameinfo(reinterpret_cast<sockaddr*>(&local), length, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return absl::UnavailableError("the local address has no numeric form");
  }
  return std::string(host.data());
}

// Also with a scope, as link-local addresses have.
bool IsNumericHost(const std::string& host) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

}  // namespace

absl::StatusOr<std::string> ParseDataAddress(absl::string_view address) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("data address ", Quoted(address),
                   " is no numeric address, such as 10.0.0.7, 10.0.0.7:4711 or [::1]:0"));
  const size_t colon = address.rfind(':');
  const bool bare_v6 = colon != address.find(':') && !absl::StartsWith(address, "[");
  const bool has_port =
      colon != absl::string_view::npos && !bare_v6 && !absl::EndsWith(address, "]");
  std::string host(has_port ? address.substr(0, colon) : address);
  int64_t port = 0;
  if (has_port && !absl::SimpleAtoi(address.substr(colon + 1), &port)) return bad;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty() || !IsNumericHost(host)) return bad;
  if (port < 0 || port > kMostPort) return BadPort("data", address, port);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return BadAddress(address);
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port = address.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return BadAddress(address);
  }
  int64_t number = 0;
  if (host.empty() || !absl::SimpleAtoi(port, &number)) return BadAddress(address);
  if (number < 1 || number > kMostPort) return BadPort("server", address, number);
  return HostPort{std::string(host), std::string(port)};
}

absl::StatusOr<std::string> LocalAddressTowards(absl::string_view server, absl::Duration timeout) {
  TH_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(server));
  const absl::StatusOr<Addresses> found = ResolveHost(target, SOCK_DGRAM, timeout);
  if (!found.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", Quoted(server), ": ", found.status().message()));
  }
  absl::Status why = absl::UnavailableError("no address");
  for (const addrinfo* each = found->get(); each != nullptr; each = each->ai_next) {
    auto source = SourceAddressOf(*each);
    if (source.ok()) return source;
    why = source.status();
  }
  return absl::UnavailableError(absl::StrCat("no route to ", Quoted(server), ": ", why.message()));
}

std::string MachineIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  if (file >> boot_id) return boot_id;
  return HostName();
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "";
}

}  // namespace th
