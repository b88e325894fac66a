// The process's file descriptors: how many it may have, and whether there are some left.
//
//   TH_ASSIGN_OR_RETURN(const RaisedLimit raised, RaiseDescriptorLimit());
//   const uint64_t workers = ConnectionLimit(DescriptorLimit());
//   if (DescriptorsExhausted()) ...      // nobody else is accepted
//
// The last ones are reserved for what the server cannot live without, above all writes of its
// state: connections of workers are refused before they would take them.
#ifndef TH_MONITORING_DESCRIPTORS_H_
#define TH_MONITORING_DESCRIPTORS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace th {

// Reserved for the state, the status page's connections (kMaxHttpConnections) and gRPC's own; a
// quarter of a limit that is low.
inline constexpr uint64_t kReservedDescriptors = 320;

// A listener that has no descriptor for a connection tries again after this time: the connection
// stays in the backlog, so that poll would return at once.
inline constexpr absl::Duration kAcceptRetry = absl::Milliseconds(100);

struct RaisedLimit {
  uint64_t before = 0;
  uint64_t now = 0;
};
// Raises the soft limit of this process to the hard one. INTERNAL: the system refuses.
absl::StatusOr<RaisedLimit> RaiseDescriptorLimit();

// The soft limit as it is now.
uint64_t DescriptorLimit();
// Open now; looks at each of them.
uint64_t OpenDescriptors();
// How many of `limit` are reserved, and the most connections, which take the others.
constexpr uint64_t ReservedDescriptors(uint64_t limit) {
  return limit / 4 < kReservedDescriptors ? limit / 4 : kReservedDescriptors;
}
constexpr uint64_t ConnectionLimit(uint64_t limit) { return limit - ReservedDescriptors(limit); }
// True for a new descriptor that should have stayed free. The system gives the lowest free number,
// so that a high one means that those below are taken.
bool IsReserved(int fd);
// True for the error of a call that lacks a descriptor, or memory for one.
bool IsShortage(int error);
// True while a new connection would be refused. Costs two system calls.
bool DescriptorsExhausted();

}  // namespace th

#endif  // TH_MONITORING_DESCRIPTORS_H_
