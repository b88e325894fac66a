// Joining: how ranks come to take part in a group operation. The first rank's request makes the
// operation, those of the others are compared with it, and a rank that asks late hears how it
// ended.
#ifndef TH_REFERENCE_REGISTRY_JOINING_H_
#define TH_REFERENCE_REGISTRY_JOINING_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// A rank's StartOperation. Build checks the message by itself, CanApply against the state.
struct JoinTransaction {
  BufferAddress buffer;
  StartOperation request;

  // INVALID_ARGUMENT: number 0, unknown kind, no time, no label where one is needed, attributes too
  // large.
  static absl::StatusOr<JoinTransaction> Build(const BufferAddress& buffer,
                                               const StartOperation& request);
  // NOT_FOUND: no such buffer. FAILED_PRECONDITION naming the expected number: skips ahead.
  // RESOURCE_EXHAUSTED: it would be more than kMaxQueuedOperations unfinished. INVALID_ARGUMENT
  // naming both kinds: the operation has ended and was of another kind. ABORTED: its result is
  // forgotten.
  absl::Status CanApply(const RegistryState& state) const;
  // Joins the rank to the operation, or sends the result that it has: ABORTED where that names
  // another version than this rank asks for. Ranks that disagree end it.
  void Apply(Turn& turn) const;
};

// The rank joins the update `number` without asking anything of it; it is the first if there is
// none.
void TakePart(Turn& turn, Buffer& buffer, OperationNumber number);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_JOINING_H_
