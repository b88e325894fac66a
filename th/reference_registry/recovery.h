// Recovery: what a restarted server learns from its workers (buffers and their content, versions,
// roots, the edges of the fill graph, results of earlier epochs). The same code reconciles a worker
// that reconnects.
//
// Two deadlines follow a restart. Until the recovery window ends, operations that must resolve a
// version wait. Until adoption ends (no earlier than the lease), ranks may bring back content, and
// a replica counts as a holder when only some of its ranks have come back.
#ifndef TH_REFERENCE_REGISTRY_RECOVERY_H_
#define TH_REFERENCE_REGISTRY_RECOVERY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// At the server's start: what is durable comes alive, and when it recovers the deadlines are set.
void BeginEpoch(RegistryState& state, const RegistryStart& start);

// A worker has come back. What it says of versions beyond the high-water mark, and of roll-backs,
// is learned durably: the state was lost, or is older than its own latest epoch. When it is the
// first of an epoch that this state knows nothing of (see claims.h), others come too: the recovery
// window and the adoption begin again.
void LearnFrom(Turn& turn, const Worker& worker, const JoinRequest& request);

// The meaning that a worker's operation numbers have here.
enum class Numbering : uint8_t {
  kOther = 1,           // of another generation of the group, or none
  kOfThisEpoch = 2,     // the server gave every result itself
  kOfEarlierEpoch = 3,  // the worker may know results that the server does not
};

// All that a (re)joining worker has.
void AnnounceAll(Turn& turn, Worker& worker, const JoinRequest& request);
// One buffer, announced for the first time or again.
void Announce(Turn& turn, Worker& worker, const AnnouncedBuffer& announced, Numbering numbering);

// Takes over what one registered buffer holds, in its worker's words. A version that a roll-back
// withdrew, or bytes that differ from what the version is known to hold, are refused
// (PublicationRefused).
void ReconcileContent(Turn& turn, Buffer& buffer, const std::optional<HeldVersion>& held);

// Ends the recovery window, and evaluates the operations that waited for it.
void EndRecoveryWindow(Turn& turn);
// Ends adoption: replicas that are not whole stop being sources, operations that need a missing
// rank end, and edges to sources that have not come back are dropped.
void EndAdoption(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RECOVERY_H_
