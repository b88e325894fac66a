#include "th/worker_session/phase_names.h"

#include "th/worker_session/session_state.h"

namespace th::session {
namespace {

absl::string_view NameOfUpdate(UpdatePhase phase) {
  switch (phase) {
    case UpdatePhase::kAsked:
      return "update asked";
    case UpdatePhase::kBeginning:
      return "update beginning";
    case UpdatePhase::kDraining:
      return "update draining";
    case UpdatePhase::kFilling:
      return "update filling";
    case UpdatePhase::kShardDone:
      return "update shard done";
    case UpdatePhase::kHolding:
      return "update holding";
    case UpdatePhase::kStopping:
      return "update stopping";
  }
  return "update";
}

absl::string_view NameOfUnpublish(UnpublishPhase phase) {
  switch (phase) {
    case UnpublishPhase::kAsked:
    case UnpublishPhase::kMayDrain:
      return "unpublish asked";
    case UnpublishPhase::kCopying:
      return "unpublish copying";
    case UnpublishPhase::kCopyingAlone:
      return "unpublish copying alone";
    case UnpublishPhase::kDraining:
    case UnpublishPhase::kDrained:
      return "unpublish";
  }
  return "unpublish";
}

absl::string_view NameOf(const Operation& operation) {
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return "publish";
    case OperationKind::kUnpublish:
      return NameOfUnpublish(operation.unpublish().phase);
    case OperationKind::kUpdate:
      return WaitsForCopy(operation) ? "update copying" : NameOfUpdate(operation.update().phase);
  }
  return "unknown";
}

}  // namespace

PhaseNames PhasesOf(const Buffer& buffer) {
  PhaseNames names;
  for (const Operation& operation : buffer.operations) {
    if (!operation.detached) names.push_back(NameOf(operation));
  }
  return names;
}

}  // namespace th::session
