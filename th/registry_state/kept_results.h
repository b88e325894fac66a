// Results of group operations: how an operation ended is sent to every rank, and kept for ranks
// that ask later or again. A replica keeps kMaxResultsKept of them.
#ifndef TH_REGISTRY_STATE_KEPT_RESULTS_H_
#define TH_REGISTRY_STATE_KEPT_RESULTS_H_

#include "absl/status/status.h"
#include "th/protocol/event.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"
#include "th/weights/version.h"

namespace th::registry {

// To the rank of this buffer. `event` names the operation. A result that shows that the rank's own
// buffer holds a version of the present lineage lifts the roll-back fence of its worker.
void SendFinished(Turn& turn, const Buffer& buffer, const FinishedOperation& result, EventId event);
void SendResult(Turn& turn, const Buffer& buffer, const KeptResult& kept);

// Keeps it, and raises `finished` over all operations that have ended.
void RememberResult(Replica& replica, FinishedOperation result, EventId event);

// Why the result of the operation cannot be that of what this rank asks for; OK: it can.
absl::Status CheckAnswer(const Buffer& buffer, const FinishedOperation& result,
                         const StartOperation& request);
// INVALID_ARGUMENT: it was ended as something else than this rank calls it.
absl::Status EndedAsAnotherKind(const Buffer& buffer, const FinishedOperation& result,
                                OperationKind asked);
// ABORTED: its group moves to `version`, which is older than this rank accepts.
absl::Status OlderThanAskedFor(const Buffer& buffer, VersionSequence version,
                               const StartOperation& request);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_KEPT_RESULTS_H_
