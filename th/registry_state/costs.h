// The costs of operations, added up for each model: the ranks' claims, as far as they can be true,
// and what the server sees itself. They are for people alone: nothing is decided by them.
#ifndef TH_REGISTRY_STATE_COSTS_H_
#define TH_REGISTRY_STATE_COSTS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/cost.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// A rank receives its shard once, and again as often as the sources' list of sums was wrong.
inline constexpr uint64_t kMaxShardsReceived = 16;
// A reader's claim of bytes thrown away is believed up to this many shards: every source may send
// it up to a segment in vain.
inline constexpr uint64_t kMaxShardsReread = 64;
inline constexpr uint32_t kMaxReroutesClaimed = 1'000'000;

// OK for what one fill may be read over; INVALID_ARGUMENT naming what is absurd.
absl::Status CheckReportedTransports(const TransportsUsed& used);

// OK when a rank with `shard_bytes` may have had such a cost in an operation of at most `longest`;
// INVALID_ARGUMENT naming what is absurd.
absl::Status CheckCost(const RankCost& cost, uint64_t shard_bytes, absl::Duration longest);

// Records over which transports `buffer` is filled, in the operation `event`. For a transport that
// is passed over for a reason that is new for its replica an event is noted, so that a link that
// breaks is not lost among reasons that are always there.
void NoteTransports(Turn& turn, Buffer& buffer, TransportsUsed used, EventId event);

// A rank is done with its part of an update or unpublish. A claim that CheckCost refuses is counted
// as refused and otherwise left out.
void CountRankDone(Turn& turn, Buffer& buffer, const Transaction& transaction,
                   Participant& participant, const RankCost& cost);
// The group has moved: what its ranks waited for each other, and the copies that they received.
void CountMoved(Turn& turn, const Replica& replica, const Transaction& transaction);
// The operation ends badly: so much time of its ranks was for nothing.
void CountFailed(Turn& turn, const Replica& replica, const Transaction& transaction,
                 const absl::Status& status);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_COSTS_H_
