// Retention: which versions have to stay fetchable, and which replica is the last to hold one.
//
// A version is retained in a form while it is pinned there, or one of the form's `keep_latest`
// newest complete versions of the current history. A replica *stays* while all its ranks hold their
// shards, are connected, and it neither drains nor moves on; spot workers and those that leave (see
// Preempt) never count. When an operation would take away the last one, it ends with
// `must_offload` instead: the ranks copy their shards into offload buffers (an update like any
// other, to exactly this version), and ask again. When such a copy may go: copies.h.
//
// A group with a notice does the same: its copy goes when it leaves, and until then it is there for
// whoever asks. Which versions go with it is told at the notice.
//
// Copies that seed a site are under the same limit, and go first where the room is short. Meanwhile
// the operation waits: nothing of it has begun. It is looked at again whenever it has changed who
// stays, what is retained, or how much room there is.
#ifndef TH_REFERENCE_REGISTRY_RETENTION_H_
#define TH_REFERENCE_REGISTRY_RETENTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// O(newer versions of the model, up to keep_latest complete ones).
bool IsRetained(const Version& version, const std::string& form);

// The forms in which nobody has the published version or is receiving it, by name; an empty name
// where no form of it is known. None while ranks may come back after a restart.
std::vector<std::string> FormsThatNobodyHas(const RegistryState& state, const Version& version);
// Those of them in which it is retained.
std::vector<std::string> LostForms(const RegistryState& state, const Version& version);

// True when `transaction` may not go on yet, since it would take away the last replica of a
// retained version with what `replica` holds. Then it has ended here, with must_offload and OK or a
// FAILED_PRECONDITION naming the first rank that has no memory for a copy, or it waits for room
// (Model::waiting_for_room).
bool DeferToOffload(Turn& turn, Replica& replica, Transaction& transaction);

// True when the last operation was ended so, and some rank has yet to register its copy: the room
// that it needs is not taken, and not free either. A copy is awaited until its update has ended or
// nobody has it any more; one that nobody registers, for kCopyAwaitedFor.
bool AwaitsCopy(const Turn& turn, const Replica& replica);
// The last rank has unregistered `copy`: whoever awaits it does so no more.
void StopAwaiting(const Replica& copy);

// At a turn's end: tells which retained versions have lost their last holder in it. Who fills yet
// counts as one. Not while ranks may come back after a restart.
void ReportLosses(Turn& turn);
// Then: which of those that the server knows of nobody has brought back. The loss may have been
// told in an earlier epoch.
void ReportLostSinceRestart(Turn& turn, Model& model);
// Says which retained versions go with a worker that leaves in `notice`, unless somebody takes them
// by then. Before it is marked.
void WarnOfLastReplicas(Turn& turn, const Worker& worker, absl::Duration notice);

// FAILED_PRECONDITION naming the first rank whose limit has no room for `copies` more of its shard,
// one of them of `version`.
absl::Status HasRoomForCopy(const Replica& replica, const Version& version, uint64_t copies = 1);

// The version that the replica holds whole; null when it does not, and for staged copies.
const Version* VersionHeldWhole(const Replica& replica);
// The same; null where a rank is spot, whose replicas are not offloaded.
const Version* VersionToOffload(const Replica& replica);

// True when no other group has what `replica`, a copy, holds and something retains. Also where a
// rank has a notice: until it leaves, the copy may be all that there is.
bool IsLastCopyOfRetained(const Replica& replica);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RETENTION_H_
