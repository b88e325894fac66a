// Claims: what a worker says of the membership that it still lives in, and how far it is believed.
//
// A claim is *known* when this server's durable state has the epoch that confirmed it: its worker
// id and its group's generation mean here what they meant there. It is *foreign* when not: the
// state was lost, or replaced by another, or is older than what the worker has lived in. A foreign
// worker is taken back as well, but under a fresh id, and nothing that it counted is compared with
// what was counted here. docs/decisions/0019-a-server-that-knows-less-learns.md has the reasons.
#ifndef TH_REGISTRY_STATE_CLAIMS_H_
#define TH_REGISTRY_STATE_CLAIMS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"

namespace th::registry {

// An epoch that a claim has begun lasts at least this long before another claim may end it, so that
// claims of ever higher epochs cannot keep a server busy. The first one is heard at once: what is
// published before it would come before all that the fleet has.
inline constexpr absl::Duration kShortestEpoch = absl::Milliseconds(200);

// True when the claim is known: this state has the epoch that confirmed it.
bool IsKnown(const RegistryState& state, const ResumeClaim& claim);

// True when a worker of this lineage knows of every roll-back of the model that this state knows,
// and has what it knows from the process that runs. What this process learns of an earlier lineage
// then began before the worker came, and is no news to it.
bool IsUpToDate(const RegistryState& state, const std::optional<ResumeClaim>& came_with,
                Lineage lineage, const DurableModel& durable);

// True when a group can have reached this generation by the end of `epoch`.
bool CanHaveCome(GroupGeneration generation, Epoch epoch);

// INVALID_ARGUMENT: no server can have given it (its numbers contradict each other, or its epoch is
// beyond kLastEpoch). PERMISSION_DENIED: it is of this cluster and lacks the membership's secret.
absl::Status CheckClaim(const RegistryState& state, const ResumeClaim& claim);

// True when the claim shows that this server's epoch has begun, or was passed, elsewhere: its state
// is older than the claim. It has to begin again above it before it may believe it.
bool Outdoes(const RegistryState& state, const ResumeClaim& claim);

// Returns the member that the claim is of; null when there is none.
Worker* FindClaimed(const RegistryState& state, const ResumeClaim& claim, Worker* holder_of_rank);

// True when `holder` keeps the rank that the claim asks for: its membership is the later one.
// `holder` is not the worker that the claim is of.
bool StaysBefore(const RegistryState& state, const Worker& holder, const ResumeClaim& claim);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_CLAIMS_H_
