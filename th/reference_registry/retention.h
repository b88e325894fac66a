// Retention: which versions have to stay fetchable, and which replica is the last to hold one.
//
// A version is retained in a form while it is pinned there, or while it is one of the form's
// `keep_latest` newest complete versions of the current history. A replica *stays* while all its
// ranks hold their shards and are connected, and it neither drains nor moves on. Spot workers, and
// workers with a notice (Preempt), never count as staying.
//
// An operation that would remove the last replica that stays ends with `must_offload` instead. The
// ranks then copy their shards into offload buffers, by an update to exactly this version, and
// repeat the operation. A group with a notice does the same; its copy lasts until it leaves.
// copy_release.h decides when a copy may go.
//
// Offload copies and site copies share one limit of memory, and site copies are released first.
// Until there is room the operation has not begun. It is evaluated again when replicas that stay,
// retention or room have changed.
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

// It follows the name of a rank, or of a version that nobody has brought back.
inline constexpr char kNotBackSinceRestart[] = "has not come back since the server restarted";

// O(newer versions of the model, up to keep_latest complete ones).
bool IsRetained(const Version& version, const std::string& form);

// The forms of a published version of which some shard is neither held nor being received, by name;
// an empty name where no form is known. None while ranks may come back after a restart.
std::vector<std::string> FormsWithoutHolder(const RegistryState& state, const Version& version);
// Returns the FormsWithoutHolder in which the version is pinned, or one of the `keep_latest` newest
// published ones. A policy counts versions here that had no holder when it was set.
std::vector<std::string> LostForms(const RegistryState& state, const Version& version);

// True when `transaction` may not go on yet, since it would take away the last replica of a
// retained version with what `replica` holds. Then it has ended here, with must_offload and OK or a
// FAILED_PRECONDITION naming the first rank that has no memory for a copy, or it waits for room
// (Model::waiting_for_room).
bool DeferToOffload(Turn& turn, Replica& replica, Transaction& transaction);

// True when the last operation ended with must_offload and OK, and its copy is not complete yet:
// the room that it needs is not taken, and not free either. A copy that no rank registers is
// awaited for kCopyAwaitedFor.
bool AwaitsCopy(const Turn& turn, const Replica& replica);
// Call when the last rank has unregistered `copy`: nothing awaits it any more.
void StopAwaiting(const Replica& copy);

// At a turn's end: notes each version that has lost its last holder in it, a retained one as
// kRetainedVersionLost, the latest one, where no operation removed it, as kLatestVersionLost. A
// replica that is still filling counts as a holder. Not while ranks may come back after a restart.
void ReportLosses(Turn& turn);
// Notes kLatestVersionLost where nobody holds the latest version and nothing retains it. `how` says
// what became of its last replica. Nothing is noted of a model that no worker uses.
void ReportLatestWithoutHolder(Turn& turn, const Model& model, const std::string& how);
// Once no rank may come back after a restart: notes the latest and the retained versions that
// nobody has brought back. Some may have been noted in an earlier epoch.
void ReportLostSinceRestart(Turn& turn, Model& model);
// Notes kRetainedVersionAtRisk for each retained version whose last replica goes with a worker that
// leaves in `notice`. Call before the worker is marked as leaving.
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
