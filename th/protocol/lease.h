// The times of a lease that both sides go by. The server drops a worker after a lease without a
// message (Joined::lease); everything else follows from its length:
//
//   0 ------- lease/3 ------- lease/2 ------------------- lease
//             a worker that   the server gives it         the server
//             has nothing     only to readers that        drops it
//             to say speaks   have no other source
//
// A worker that runs is therefore never suspected as long as its message takes less than a sixth of
// the lease: the network, the server's queue and a slow turn of its loop (kSlowTurn in
// th/reference_registry) together.
#ifndef TH_PROTOCOL_LEASE_H_
#define TH_PROTOCOL_LEASE_H_

#include "absl/time/time.h"

namespace th {

inline constexpr absl::Duration kDefaultLease = absl::Seconds(5);

// The longest that a worker that runs is silent. It is computed in whole nanoseconds: sessions ask
// after every event, and a Duration divides slowly.
inline absl::Duration HeartbeatInterval(absl::Duration lease) {
  return absl::Nanoseconds(absl::ToInt64Nanoseconds(lease) / 3);
}

// The silence after which a worker may not run any more.
inline absl::Duration SuspectAfter(absl::Duration lease) { return lease / 2; }

}  // namespace th

#endif  // TH_PROTOCOL_LEASE_H_
