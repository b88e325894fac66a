#include "th/registry_state/transaction.h"

namespace th::registry {

std::optional<absl::Time> Participant::done_at() const {
  if (const auto* unpublish = std::get_if<UnpublishParticipant>(&part)) return unpublish->done_at;
  if (const auto* update = if_update()) return update->done_at;
  return std::nullopt;
}

void UnpublishOperation::StopKeeping() {
  if (phase == UnpublishPhase::kKeeping) phase = UnpublishPhase::kDropping;
}

OperationKind Transaction::kind() const {
  return std::visit([](const auto& operation) { return operation.kKind; }, part);
}

bool Transaction::has_begun() const {
  return std::visit([](const auto& operation) { return operation.phase == operation.kBegun; },
                    part);
}

void Transaction::AddParticipant(Rank rank, absl::Time asked) {
  std::visit(
      [&]<typename Operation>(const Operation&) {
        participants.try_emplace(rank, Participant{typename Operation::Part(), asked});
      },
      part);
}

bool MayDemandOffload(const Transaction& transaction) {
  if (const UnpublishOperation* unpublish = transaction.if_unpublish()) {
    return unpublish->phase == UnpublishPhase::kKeeping;
  }
  const UpdateOperation* update = transaction.if_update();
  return update != nullptr && update->phase == UpdatePhase::kAsked &&
         update->keep_retained.value_or(false);
}

}  // namespace th::registry
