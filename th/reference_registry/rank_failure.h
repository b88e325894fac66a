// A rank that cannot do its part of an operation, so that the operation ends for its whole group.
#ifndef TH_REFERENCE_REGISTRY_RANK_FAILURE_H_
#define TH_REFERENCE_REGISTRY_RANK_FAILURE_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// A rank's part ended badly. That of a streaming reader may do so before it has started: the
// operation ends for all, and who asks later hears so. That of a publish may come when all ranks
// had asked already: then the rank holds nothing.
struct FailRank {
  BufferAddress buffer;
  RankFailed message;

  // FAILED_PRECONDITION: no such operation is pending or this rank is not part of it.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_RANK_FAILURE_H_
