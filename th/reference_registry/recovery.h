// What a server without memory learns from its workers: buffers and what they hold, versions,
// roots, who fills from whom, results that another reign gave. The same reconciles a worker that
// was away for a moment with what the server thought of it.
//
// Two deadlines run from a restart. Until the recovery window ends, what must resolve a version
// waits. Until adoption ends, at the earliest with the lease, ranks may come back with what they
// held, and what is known in part makes a replica a holder.
#ifndef TH_REFERENCE_REGISTRY_RECOVERY_H_
#define TH_REFERENCE_REGISTRY_RECOVERY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/state.h"
#include "th/reference_registry/turn.h"

namespace th::registry {

// At the server's start: what is durable comes alive, and when it recovers the deadlines are set.
void BeginReign(RegistryState& state, const RegistryStart& start);

// A worker has come back. What it says of versions beyond the high-water mark, and of roll-backs,
// is learned durably: the state was lost, or is older than its own latest reign. When it is the
// first of a reign that this state knows nothing of (see claims.h), others come too: the recovery
// window and the adoption begin again.
void LearnFrom(Turn& turn, const Worker& worker, const JoinRequest& request);

// Whether a worker's operation numbers mean something here.
enum class Numbering : uint8_t {
  kOther = 1,           // of another generation of the group, or none
  kOfThisReign = 2,     // the server gave every result itself
  kOfEarlierReign = 3,  // the worker may know results that the server does not
};

// All that a (re)joining worker has.
void AnnounceAll(Turn& turn, Worker& worker, const JoinRequest& request);
// One buffer, announced for the first time or again.
void Announce(Turn& turn, Worker& worker, const AnnouncedBuffer& announced, Numbering numbering);

// What one registered buffer holds, in its worker's words. A version that a roll-back withdrew, or
// bytes that differ from what the version is known to hold, are refused (PublicationRefused).
void ReconcileContent(Turn& turn, Buffer& buffer, const std::optional<HeldVersion>& held);

// What waited for the first of them is answered.
void EndRecoveryWindow(Turn& turn);
// Whoever has not come back by now is gone: replicas that are not whole are no sources, operations
// that need a missing rank end, edges to strangers go.
void EndAdoption(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RECOVERY_H_
