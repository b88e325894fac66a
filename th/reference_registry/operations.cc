#include "th/reference_registry/operations.h"

#include "absl/strings/str_cat.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/copy_release.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/reference_registry/unpublishing.h"
#include "th/reference_registry/updating.h"

namespace th::registry {

void EvaluateHead(Turn& turn, Replica& replica) {
  Transaction* head = HeadOf(replica);
  if (head == nullptr) return;
  replica.group->model->waiting_for_room.erase(replica.id);
  switch (head->kind()) {
    case OperationKind::kPublish:
      return EvaluatePublish(turn, replica, *head);
    case OperationKind::kUnpublish:
      return EvaluateUnpublish(turn, replica, *head);
    case OperationKind::kUpdate:
      return EvaluateUpdate(turn, replica, *head);
  }
}

absl::Status CompleteRank::CanApply(const RegistryState& state) const {
  const auto own = FindOwnOperation(state, buffer, message.key.number);
  if (!own.ok()) {
    return DrainsLate(state, buffer, message.key.number) ? absl::OkStatus() : own.status();
  }
  switch (own->transaction->kind()) {
    case OperationKind::kUnpublish:
      return CompleteDrain{buffer, message}.CanApply(state);
    case OperationKind::kUpdate:
      return CompleteFill{buffer, message}.CanApply(state);
    case OperationKind::kPublish:
      break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(*own->buffer).ToString(), " says that it is done with a publish"));
}

void CompleteRank::Apply(Turn& turn) const {
  const auto own = FindOwnOperation(turn.state, buffer, message.key.number);
  if (!own.ok()) return DropContent(turn, *FindBuffer(turn.state, buffer));
  if (own->transaction->if_unpublish() != nullptr) {
    CompleteDrain{buffer, message}.Apply(turn);
  } else {
    CompleteFill{buffer, message}.Apply(turn);
  }
}

void FinishTurn(Turn& turn) {
  while (!turn.roots_to_settle.empty() || !turn.to_evaluate.empty() || !turn.to_review.empty() ||
         !turn.to_assign.empty() || !turn.to_move.empty()) {
    if (!turn.roots_to_settle.empty()) {
      const auto [key, sequence] = *turn.roots_to_settle.begin();
      turn.roots_to_settle.erase(turn.roots_to_settle.begin());
      Model* model = FindModel(turn.state, key);
      Version* version = model == nullptr ? nullptr : FindVersion(*model, sequence);
      if (version != nullptr) SettleRootsByFirstPublishers(turn, *version);
      continue;
    }
    // Operations first: a replica that stops being a source must not be assigned in the same turn.
    if (!turn.to_evaluate.empty()) {
      const ReplicaId next = *turn.to_evaluate.begin();
      turn.to_evaluate.erase(turn.to_evaluate.begin());
      if (Replica* replica = FindReplica(turn.state, next)) EvaluateHead(turn, *replica);
      continue;
    }
    if (!turn.to_review.empty()) {
      const ModelKey next = *turn.to_review.begin();
      turn.to_review.erase(turn.to_review.begin());
      if (Model* model = FindModel(turn.state, next)) ReviewOffloads(turn, *model);
      continue;
    }
    const bool assigns = !turn.to_assign.empty();  // before others move: they have sources
    absl::btree_set<BufferAddress>& readers = assigns ? turn.to_assign : turn.to_move;
    const BufferAddress next = *readers.begin();
    readers.erase(readers.begin());
    Buffer* buffer = FindBuffer(turn.state, next);
    if (buffer == nullptr) continue;
    if (assigns) {
      AssignFill(turn, *buffer);
    } else {
      MoveFill(turn, *buffer);
    }
  }
  ReportLosses(turn);
}

}  // namespace th::registry
