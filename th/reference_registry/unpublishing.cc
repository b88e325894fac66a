#include "th/reference_registry/unpublishing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/costs.h"
#include "th/registry_state/holders.h"

namespace th::registry {
namespace {

absl::Status NothingToUnpublish(const Replica& replica) {
  return absl::FailedPreconditionError(absl::StrCat("buffer ", replica.buffer_name, " of group ",
                                                    replica.group->name,
                                                    " is not published; publish or update first"));
}

// After a restart a rank that drains already says that it holds nothing. A rank whose publication
// was refused has drained of itself.
bool MayHold(const Replica& replica) {
  if (replica.group->adopted && !replica.finished_here) return true;
  return std::any_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
    const std::optional<Content>& content = entry.second->content;
    return (content.has_value() && !content->refused) || entry.second->drained_while_away;
  });
}

// The number of the version that the ranks hold, also when the replica is invalid as a whole.
VersionSequence HeldVersionOf(const Replica& replica) {
  VersionSequence held;
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->content.has_value()) held = std::max(held, buffer->content->version);
  }
  return held;
}

// Those that have not drained of themselves wait for it.
void SendMayDrain(Turn& turn, const Buffer& buffer, const Transaction& transaction) {
  Send(turn, *buffer.worker,
       OperationResolved{.key = {buffer.address.buffer, transaction.number},
                         .event = transaction.event});
}

void End(Turn& turn, Replica& replica, const Transaction& transaction) {
  const Version* version = FindVersion(*replica.group->model, transaction.version);
  FinishedOperation result;
  if (version != nullptr) result.version = version->info;
  SetPhase(turn, replica, ReplicaPhase::kIdle);
  for (auto& [rank, buffer] : replica.buffers) buffer->drained_while_away = false;
  Note(turn, replica.group->model->key,
       {EventKind::kUnpublished, transaction.event, replica.group->name},
       result.version.ToString());
  FinishOperation(turn, replica, transaction.number, std::move(result));
}

void CountReadersCut(Turn& turn, const Buffer& buffer, const Transaction& transaction,
                     uint32_t readers_cut) {
  if (readers_cut == 0) return;
  Model& model = *buffer.replica->group->model;
  model.totals.readers_cut += readers_cut;
  Note(turn, model.key, {EventKind::kReadersCut, transaction.event, NameOf(buffer).ToString()},
       absl::StrCat(readers_cut, readers_cut == 1 ? " reader" : " readers",
                    " had not let go by the drain's deadline"));
}

}  // namespace

void EvaluateUnpublish(Turn& turn, Replica& replica, Transaction& transaction) {
  const UnpublishOperation& unpublish = transaction.unpublish();
  if (!transaction.has_begun()) {
    if (!MayHold(replica)) {
      return FailOperation(turn, replica, transaction.number, NothingToUnpublish(replica));
    }
    const bool early = turn.state.recovering || SomeRankMayKnow(turn.state, replica, transaction);
    if (unpublish.phase == UnpublishPhase::kKeeping && early) return WaitForRecovery(turn, replica);
    if (DeferToOffload(turn, replica, transaction)) return;
    BeginWith(replica, transaction, HeldVersionOf(replica));
    SetPhase(turn, replica, ReplicaPhase::kDraining, transaction.version);
  }
  for (const Rank rank : std::exchange(transaction.arrivals, {})) {
    Buffer& buffer = *replica.buffers.at(rank);
    // It may have drained while an earlier operation was still under way.
    if (transaction.participants.at(rank).done_at().has_value()) {
      ClearContent(turn, buffer);
    } else {
      SendMayDrain(turn, buffer, transaction);
    }
  }
  if (unpublish.ranks_done >= replica.group->ranks) End(turn, replica, transaction);
}

absl::Status CompleteDrain::CanApply(const RegistryState& state) const {
  const auto own = FindOwnOperation(state, buffer, message.key.number);
  if (!own.ok()) return own.status();
  if (own->transaction->if_unpublish() != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(*own->buffer).ToString(), " has drained for operation ",
                   message.key.number.value, ", which is no unpublish"));
}

void CompleteDrain::Apply(Turn& turn) const {
  const OwnOperation own = *FindOwnOperation(turn.state, buffer, message.key.number);
  UnpublishOperation& unpublish = own.transaction->unpublish();
  UnpublishParticipant& participant = own.participant->unpublish();
  if (!participant.done_at.has_value()) {
    participant.done_at = turn.now;
    ++unpublish.ranks_done;
    CountRankDone(turn, *own.buffer, *own.transaction, *own.participant, message.cost);
    CountReadersCut(turn, *own.buffer, *own.transaction, message.readers_cut);
  }
  unpublish.StopKeeping();
  own.transaction->arrivals.insert(RankOf(*own.buffer));
  turn.to_evaluate.insert(own.buffer->replica->id);
}

}  // namespace th::registry
