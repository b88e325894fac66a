#include "th/client/local_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace th {

std::string NumericAddress(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  const int failure =
      getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? std::string(host.data()) : "";
}

std::vector<LocalAddress> LocalAddresses() {
  std::vector<LocalAddress> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  const absl::Cleanup free_all = [all] { freeifaddrs(all); };
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::string address = NumericAddress(each->ifa_addr, size);
    if (!address.empty()) found.push_back({each->ifa_name, std::move(address)});
  }
  return found;
}

}  // namespace th
