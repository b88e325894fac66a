// At which address of this machine other workers can reach it.
#ifndef TH_CLIENT_DATA_ADDRESS_H_
#define TH_CLIENT_DATA_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/name_resolution.h"

namespace th {

// "host:port" or "[v6]:port". INVALID_ARGUMENT saying what is expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// Where a data plane is to listen, as "host:port" or "[v6]:port": from a numeric address with or
// without a port, which is 0 (the system's choice) then. INVALID_ARGUMENT saying what is expected.
absl::StatusOr<std::string> ParseDataAddress(absl::string_view address);

// The local address of the route to `server` ("host:port"): who reaches the server comes this way.
// Numeric, without a port. Blocks while the name is resolved, for `timeout` at most. UNAVAILABLE
// when it cannot be, or nothing leads there; INVALID_ARGUMENT.
absl::StatusOr<std::string> LocalAddressTowards(absl::string_view server, absl::Duration timeout);

// A stable identity of this machine: its boot id, else its host name.
std::string MachineIdentity();
// The name of this machine, for people; empty where the system does not say.
std::string HostName();

}  // namespace th

#endif  // TH_CLIENT_DATA_ADDRESS_H_
