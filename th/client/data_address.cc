#include "th/client/data_address.h"

#include <arpa/inet.h>
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
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "th/monitoring/host_name.h"
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
  std::string host = NumericAddress(reinterpret_cast<sockaddr*>(&local), length);
  if (host.empty()) return absl::UnavailableError("the local address has no numeric form");
  return host;
}

// Also with a scope, as link-local addresses have.
bool IsNumericHost(const std::string& host) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

// The bytes of a numeric address: 4 of IPv4, 16 of IPv6; none where it is no such address.
std::string BytesOf(absl::string_view address) {
  std::array<char, sizeof(in6_addr)> bytes;
  const std::string text(address.substr(0, address.find('%')));
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) {
    return std::string(bytes.data(), sizeof(in_addr));
  }
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) {
    return std::string(bytes.data(), sizeof(in6_addr));
  }
  return "";
}

// True when the first `bits` bits are the same.
bool HasPrefix(absl::string_view address, absl::string_view network, size_t bits) {
  if (address.size() != network.size()) return false;
  for (size_t bit = 0; bit < bits; ++bit) {
    const int differing = address[bit / 8] ^ network[bit / 8];
    if ((differing & (0x80 >> (bit % 8))) != 0) return false;
  }
  return true;
}

absl::Status NoDataAddress(absl::string_view address) {
  return absl::InvalidArgumentError(
      absl::StrCat("data address ", Quoted(address),
                   " is no address of this machine: give a numeric one, an interface or a network, "
                   "and a port or a range of them, such as 10.0.0.7:4711, [::1]:0, eth1 or "
                   "10.1.0.0/16:4711-4720"));
}

absl::Status NotAmong(absl::string_view address, const std::vector<LocalAddress>& local) {
  std::vector<std::string> shown;
  shown.reserve(local.size());
  for (const LocalAddress& each : local) {
    shown.push_back(absl::StrCat(each.interface, " ", each.address));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "data address ", Quoted(address), " is no address of this machine, which has ",
      shown.empty() ? "no interface that is up" : absl::StrJoin(shown, ", "),
      ": give one, its interface or its network, such as 10.0.0.7:4711, eth1 or 10.1.0.0/16"));
}

absl::StatusOr<std::string> AddressInNetwork(absl::string_view address, absl::string_view host,
                                             const std::vector<LocalAddress>& local) {
  const size_t slash = host.find('/');
  const std::string network = BytesOf(host.substr(0, slash));
  size_t bits = 0;
  if (network.empty() || !absl::SimpleAtoi(host.substr(slash + 1), &bits) ||
      bits > network.size() * 8) {
    return NoDataAddress(address);
  }
  for (const LocalAddress& each : local) {
    if (HasPrefix(BytesOf(each.address), network, bits)) return each.address;
  }
  return NotAmong(address, local);
}

absl::StatusOr<std::string> AddressOfInterface(absl::string_view address, absl::string_view name,
                                               const std::vector<LocalAddress>& local) {
  const auto address_of = [&](size_t bytes) -> const LocalAddress* {
    for (const LocalAddress& each : local) {
      const std::string found = BytesOf(each.address);
      const bool link_local = bytes == sizeof(in6_addr) && HasPrefix(found, BytesOf("fe80::"), 10);
      if (each.interface == name && found.size() == bytes && !link_local) return &each;
    }
    return nullptr;
  };
  for (const size_t bytes : {sizeof(in_addr), sizeof(in6_addr)}) {
    if (const LocalAddress* found = address_of(bytes); found != nullptr) return found->address;
  }
  return NotAmong(address, local);
}

absl::StatusOr<std::string> NumericHost(absl::string_view address, absl::string_view host,
                                        const std::vector<LocalAddress>& local) {
  if (host.empty()) return NoDataAddress(address);
  if (IsNumericHost(std::string(host))) return std::string(host);
  if (absl::StrContains(host, '/')) return AddressInNetwork(address, host, local);
  return AddressOfInterface(address, host, local);
}

// "4711" or "4711-4720".
absl::Status ParsePorts(absl::string_view address, absl::string_view ports, DataAddress* parsed) {
  const std::vector<absl::string_view> ends = absl::StrSplit(ports, absl::MaxSplits('-', 1));
  int64_t first = 0;
  int64_t last = 0;
  if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) {
    return NoDataAddress(address);
  }
  for (const int64_t port : {first, last}) {
    if (port < 0 || port > kMostPort) return BadPort("data", address, port);
  }
  if (last < first || (first == 0 && last > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("data address ", Quoted(address),
                                                   " has the ports ", ports,
                                                   ": a range goes up, and does not begin with 0"));
  }
  parsed->first_port = static_cast<uint16_t>(first);
  parsed->last_port = static_cast<uint16_t>(last);
  return absl::OkStatus();
}

}  // namespace

std::string DataAddress::WithPort(uint16_t port) const { return absl::StrCat(host, ":", port); }

std::string DataAddress::ToString() const {
  return first_port == last_port ? WithPort(first_port)
                                 : absl::StrCat(WithPort(first_port), "-", last_port);
}

absl::StatusOr<DataAddress> ParseDataAddress(absl::string_view address,
                                             const std::vector<LocalAddress>& local) {
  const size_t colon = address.rfind(':');
  const bool bare_v6 = colon != address.find(':') && !absl::StartsWith(address, "[");
  const bool has_port =
      colon != absl::string_view::npos && !bare_v6 && !absl::EndsWith(address, "]");
  DataAddress parsed;
  if (has_port) TH_RETURN_IF_ERROR(ParsePorts(address, address.substr(colon + 1), &parsed));
  absl::string_view host = has_port ? address.substr(0, colon) : address;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  TH_ASSIGN_OR_RETURN(const std::string numeric, NumericHost(address, host, local));
  parsed.host = absl::StrContains(numeric, ':') ? absl::StrCat("[", numeric, "]") : numeric;
  return parsed;
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

}  // namespace th
