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

// Connects over TCP and closes at once. Resolving a name may take as long as the system's resolver
// does; connecting takes `timeout` at most, for each of the host's addresses, of which the first
// that answers counts. Thread-safe.
RouteFacts ProbeRoute(const HostAndPort& target, absl::Duration timeout);

}  // namespace th::doctor

#endif  // TH_DOCTOR_ROUTE_FACTS_H_
