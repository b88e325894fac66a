// The addresses of this machine, as text.
#ifndef TH_CLIENT_LOCAL_ADDRESSES_H_
#define TH_CLIENT_LOCAL_ADDRESSES_H_

#include <sys/socket.h>

#include <string>
#include <vector>

namespace th {

// "10.0.0.7", "fe80::7%eth0"; empty where it has no such form.
std::string NumericAddress(const sockaddr* address, socklen_t size);

// One address of a network interface of this machine that is up.
struct LocalAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric
};
// In the system's order; empty where it does not say.
std::vector<LocalAddress> LocalAddresses();

}  // namespace th

#endif  // TH_CLIENT_LOCAL_ADDRESSES_H_
