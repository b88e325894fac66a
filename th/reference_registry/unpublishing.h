// Unpublishing: a replica stops being a source at its first rank's request, and is free to be
// written when every rank's buffer is drained.
#ifndef TH_REFERENCE_REGISTRY_UNPUBLISHING_H_
#define TH_REFERENCE_REGISTRY_UNPUBLISHING_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Takes the replica's unpublish, its first pending operation, as far as it goes.
// FAILED_PRECONDITION when no rank holds anything.
void EvaluateUnpublish(Turn& turn, Replica& replica, Transaction& transaction);

// A rank's buffer is drained.
struct CompleteDrain {
  BufferAddress buffer;
  RankDone message;

  // FAILED_PRECONDITION: its unpublish is not pending.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_UNPUBLISHING_H_
