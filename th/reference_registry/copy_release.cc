#include "th/reference_registry/copy_release.h"

#include <algorithm>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/seeding.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

// True when the copy is of use: it stays and no other group does, or it is on its way. Its own
// group made it in order to leave, and may do so at any moment.
bool IsNeeded(const RegistryState& state, const Replica& replica) {
  if (replica.role == BufferRole::kSiteCopy && IsLastCopyOfRetained(replica)) return true;
  if (replica.role == BufferRole::kSiteCopy && !SiteCopyIsOfUse(replica)) return false;
  if (replica.role == BufferRole::kSiteCopy && replica.phase == ReplicaPhase::kHolding) return true;
  if (VersionHeldWhole(replica) != nullptr) return IsLastCopyOfRetained(replica);
  if (state.adopting || !replica.pending.empty()) return true;
  if (replica.phase == ReplicaPhase::kFilling) return true;
  const bool holds =
      std::any_of(replica.buffers.begin(), replica.buffers.end(),
                  [](const auto& entry) { return entry.second->content.has_value(); });
  return !holds && !replica.finished_here;
}

void Release(Turn& turn, Replica& replica) {
  Note(turn, replica.group->model->key,
       {EventKind::kOffloadReleased, EventId(), replica.group->name}, replica.buffer_name);
  ++turn.state.counters.offloads_released;
  replica.released = true;
  while (!replica.pending.empty()) {
    FailOperation(turn, replica, replica.pending.begin()->first,
                  absl::AbortedError("nobody needs this copy any more"));
  }
  if (replica.phase == ReplicaPhase::kHolding) {
    SetPhase(turn, replica, ReplicaPhase::kDraining, replica.version);
  }
  for (const auto& [rank, buffer] : replica.buffers) RepeatRelease(turn, *buffer);
}

}  // namespace

void ReviewOffloads(Turn& turn, Model& model) {
  const absl::btree_set<ReplicaId> copies = model.host_copies;  // a copy: one may go
  for (const ReplicaId id : copies) {
    Replica& replica = *FindReplica(turn.state, id);
    if (!replica.released && !IsNeeded(turn.state, replica)) Release(turn, replica);
  }
  turn.to_evaluate.insert(model.waiting_for_room.begin(), model.waiting_for_room.end());
}

void RepeatRelease(Turn& turn, const Buffer& buffer) {
  if (!buffer.replica->released) return;
  Send(turn, *buffer.worker, OffloadReleased{buffer.address.buffer});
}

}  // namespace th::registry
