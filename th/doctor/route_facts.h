// How packets reach another host.
#ifndef TH_DOCTOR_ROUTE_FACTS_H_
#define TH_DOCTOR_ROUTE_FACTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/doctor/facts.h"

namespace th::doctor {

struct HostAndPort {
  std::string host;
  std::string port;
};

// "node7:7077", "10.0.0.1:7077", "[::1]:7077". INVALID_ARGUMENT saying what is expected.
absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text);

// The host of an address without one: every IPv4 address of this host.
inline constexpr char kAnyHost[] = "0.0.0.0";

// An address to listen on. The same, but the host may be left out, and port 0 is the system's
// choice: ":0", "10.0.0.2:7099".
absl::StatusOr<HostAndPort> ParseListenAddress(const std::string& text);

// Connects over TCP and closes at once. Resolving a name may take as long as the system's resolver
// does; connecting takes `timeout` at most, for each of the host's addresses, of which the first
// that answers counts. Thread-safe.
RouteFacts ProbeRoute(const HostAndPort& target, absl::Duration timeout);

}  // namespace th::doctor

#endif  // TH_DOCTOR_ROUTE_FACTS_H_
