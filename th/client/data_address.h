// At which address of this machine other workers can reach it.
#ifndef TH_CLIENT_DATA_ADDRESS_H_
#define TH_CLIENT_DATA_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/local_addresses.h"
#include "th/client/name_resolution.h"

namespace th {

// "host:port" or "[v6]:port". INVALID_ARGUMENT saying what is expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// Where a data plane is to listen: on the first free one of some ports.
struct DataAddress {
  std::string host;  // numeric, in brackets where it is IPv6
  uint16_t first_port = 0;
  uint16_t last_port = 0;  // both 0: the system's choice

  std::string WithPort(uint16_t port) const;
  std::string ToString() const;  // "10.0.0.7:4711-4720"
};
// From HOST, HOST:PORT or HOST:FIRST-LAST, where HOST is a numeric address, a network interface
// (its first IPv4 address, else its first IPv6 one that is no link-local one) or a network such as
// 10.1.0.0/16 (the first address in it that is among `local`). INVALID_ARGUMENT saying what is
// expected, or which interfaces and addresses there are.
absl::StatusOr<DataAddress> ParseDataAddress(absl::string_view address,
                                             const std::vector<LocalAddress>& local);

// The local address of the route to `server` ("host:port"): who reaches the server comes this way.
// Numeric, without a port. Blocks while the name is resolved, for `timeout` at most. UNAVAILABLE
// when it cannot be, or nothing leads there; INVALID_ARGUMENT.
absl::StatusOr<std::string> LocalAddressTowards(absl::string_view server, absl::Duration timeout);

// A stable identity of this machine: its boot id, else its host name.
std::string MachineIdentity();

}  // namespace th

#endif  // TH_CLIENT_DATA_ADDRESS_H_
