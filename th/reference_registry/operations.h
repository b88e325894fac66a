// The one place that knows all kinds of operation: who evaluates which, and whose RankDone it is.
#ifndef TH_REFERENCE_REGISTRY_OPERATIONS_H_
#define TH_REFERENCE_REGISTRY_OPERATIONS_H_

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// Takes the first pending operation of the replica as far as it goes.
void EvaluateHead(Turn& turn, Replica& replica);

// RankDone, for whichever operation it names, and for an unpublish that has ended meanwhile.
struct CompleteRank {
  BufferAddress buffer;
  RankDone message;

  // FAILED_PRECONDITION: not pending, a publish, or nothing that this rank could be done with.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

// Everything that the turn's changes left over: operations that may begin or end, readers that want
// sources. Each step ends an operation, begins one, or gives or denies a reader its sources.
void FinishTurn(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_OPERATIONS_H_
