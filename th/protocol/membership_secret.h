// Which state of a server a membership comes from, and the proof that it was given to this worker.
//
// A worker id is no secret: `List` shows it to everybody. At every join the server hands out a
// secret beside it, and takes a worker back under its id only with it. The secret is a code of the
// worker id and of the epoch that confirmed the membership last, under a key of the server's
// durable state, so that a restarted server knows it again and keeps none.
#ifndef TH_PROTOCOL_MEMBERSHIP_SECRET_H_
#define TH_PROTOCOL_MEMBERSHIP_SECRET_H_

#include <array>
#include <cstdint>

#include "th/identifiers/identifiers.h"

namespace th {

// A durable state of a server, and all that follow from it; random. 0: none is known.
using ClusterId = StrongInt<struct ClusterIdTag>;
// One opening of such a state; random. Two servers that went on from one state (a backup that was
// restored) may have equal epochs and never have equal ids. 0: none is known.
using EpochId = StrongInt<struct EpochIdTag>;

// The key of a cluster, 32 bytes. It never leaves the cluster's state.
struct ClusterKey {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const ClusterKey&, const ClusterKey&) = default;
};

struct MembershipSecret {
  std::array<uint8_t, 16> bytes{};
  // In constant time.
  friend bool operator==(const MembershipSecret& a, const MembershipSecret& b);
};

MembershipSecret DeriveMembershipSecret(const ClusterKey& key, WorkerId worker, EpochId epoch_id);

}  // namespace th

#endif  // TH_PROTOCOL_MEMBERSHIP_SECRET_H_
