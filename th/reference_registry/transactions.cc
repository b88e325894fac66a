#include "th/reference_registry/transactions.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/protocol/messages.h"
#include "th/registry_state/costs.h"
#include "th/registry_state/holders.h"
#include "th/registry_state/kept_results.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

Deadline DeadlineOf(const Replica& replica, const Transaction& transaction) {
  return {.at = transaction.ends_at(),
          .kind = DeadlineKind::kOperation,
          .replica = replica.id,
          .operation = transaction.number};
}

// Undoes a failed publish: nothing is left of a version that it was to begin.
void UndoPublish(Turn& turn, Replica& replica, VersionSequence version) {
  SetPhase(turn, replica, ReplicaPhase::kIdle);
  Version* record = FindVersion(*replica.group->model, version);
  if (record != nullptr && record->phase == VersionPhase::kPublishing) EraseVersion(turn, *record);
}

// Undoes a failed update: ends the fills, displaces content that the operation had not committed,
// and makes the replica idle. A rank then announces what it still holds.
void UndoUpdate(Turn& turn, Replica& replica) {
  for (auto& [rank, buffer] : replica.buffers) {
    ClearFill(turn, *buffer);
    const bool keep = buffer->content.has_value() && buffer->content->committed;
    if (!keep) DisplaceContent(turn, *buffer);
  }
  InvalidateReplica(turn, replica);
}

// True while another buffer of its own worker reads from it, as a copy does.
bool IsReadByItsWorker(const Buffer& buffer) {
  if (buffer.shard == nullptr) return false;
  const auto readers = buffer.shard->readers_of.find(buffer.address);
  if (readers == buffer.shard->readers_of.end()) return false;
  return std::any_of(readers->second.begin(), readers->second.end(),
                     [&](const auto& reader) { return reader.worker == buffer.address.worker; });
}

// True when the rank may still drain for the unpublish, and then reports that it is done: its
// worker reads from the buffer, to copy it first. A rank that has reported already does not report
// again.
bool DrainsYet(const RegistryState& state, const Buffer& buffer, OperationNumber unpublish) {
  const auto own = FindOwnOperation(state, buffer.address, unpublish);
  const bool has_drained = own.ok() && own->participant->done_at().has_value();
  return IsReadByItsWorker(buffer) && TH_MUTATE(kAwaitTheDrained, !has_drained, true);
}

// True when the replica's update has brought what the buffer has. Other ranks may have begun an
// update after an unpublish that this one has just asked for: then it has what it held before.
bool IsFilledBeside(const Buffer& buffer, OperationNumber unpublish) {
  Replica& replica = *buffer.replica;
  if (replica.phase != ReplicaPhase::kFilling) return false;
  const Transaction* head = HeadOf(replica);
  if (head == nullptr || !head->is_filling() || head->number < unpublish) return true;
  const auto own = head->participants.find(RankOf(buffer));
  return own != head->participants.end() && own->second.update().ready;
}

// True when its ranks fill since another epoch, and it has not begun in this one.
bool IsAdoptedFill(const Replica& replica, const Transaction& transaction) {
  return transaction.if_update() != nullptr && !transaction.has_begun() &&
         replica.phase == ReplicaPhase::kFilling && transaction.number == replica.finished.Next();
}

void Undo(Turn& turn, Replica& replica, const Transaction& transaction) {
  if (transaction.is_publishing()) return UndoPublish(turn, replica, transaction.version);
  if (transaction.is_draining()) return InvalidateReplica(turn, replica);
  const bool fills = transaction.is_filling() || IsAdoptedFill(replica, transaction);
  if (fills) UndoUpdate(turn, replica);
}

void CountOut(Model& model, VersionSequence version) {
  auto counted = model.under_way.find(version);
  if (--counted->second == 0) model.under_way.erase(counted);
}

std::string WhatRankLacks(const Buffer& buffer, const Participant& participant) {
  const UpdateParticipant* update = participant.if_update();
  if (update == nullptr || !update->ready) return "has not drained its buffer";
  const uint64_t held = buffer.content.has_value() ? buffer.content->segments.count() : 0;
  std::string text = absl::StrCat("holds ", held, " of ", buffer.segment_count, " segments");
  const std::vector<BufferAddress> sources = buffer.shard == nullptr
                                                 ? std::vector<BufferAddress>()
                                                 : SourcesOf(*buffer.shard, buffer.address);
  if (sources.empty()) return text + " and has no source";
  auto source = buffer.shard->holders.find(sources.front());
  if (source == buffer.shard->holders.end()) return text;
  return absl::StrCat(text, " and fills from ", NameOf(*source->second).ToString());
}

// True when the ranks that have asked have something to do for it. Else they wait for the others.
bool AwaitsParticipants(const Transaction& transaction) {
  return transaction.if_unpublish() != nullptr || transaction.is_filling();
}

// "rank rollout-3/1 holds 3 of 9 segments and has no source; rollout-3/2 has not asked".
std::string WhoIsLate(const Replica& replica, const Transaction& transaction) {
  constexpr int kNamed = 4;
  std::string text;
  int named = 0;
  for (const auto& [rank, participant] : transaction.participants) {
    if (participant.done_at().has_value() || !AwaitsParticipants(transaction)) continue;
    if (++named > kNamed) continue;
    const Buffer& buffer = *replica.buffers.at(rank);
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", NameOf(buffer).ToString(), " ",
                    WhatRankLacks(buffer, participant));
  }
  if (named > kNamed) absl::StrAppend(&text, "; and ", named - kNamed, " more ranks");
  const std::vector<Rank> missing = MissingRanks(*replica.group, transaction);
  if (missing.empty()) return text;
  // Past: a rank that calls later hears the same text.
  return absl::StrCat(text, text.empty() ? "" : "; ", "rank ", NameRanks(*replica.group, missing),
                      " had not started it by then");
}

// Nothing of it has begun: what the ranks hold is theirs still.
bool WaitsForRoom(const Replica& replica, OperationNumber number) {
  return number == replica.finished.Next() &&
         replica.group->model->waiting_for_room.contains(replica.id);
}

// True when it is an unpublish that has not begun, and may have to offload what is retained first.
bool KeepsRetained(const Transaction& transaction) {
  return transaction.if_unpublish() != nullptr && MayDemandOffload(transaction);
}

// True when it is an unpublish that has its turn, and waits until all ranks have asked: they are to
// make a copy first.
bool AwaitsRanks(const Replica& replica, const Transaction& transaction) {
  return KeepsRetained(transaction) && transaction.number == replica.finished.Next() &&
         replica.phase == ReplicaPhase::kHolding;
}

// True when an operation whose time is over has never got as far as asking what is retained.
bool StaysPublished(const Replica& replica, const Transaction& transaction) {
  return WaitsForRoom(replica, transaction.number) || KeepsRetained(transaction);
}

void NoteFailure(Turn& turn, const Replica& replica, const Transaction& transaction,
                 const absl::Status& status) {
  CountFailed(turn, replica, transaction, status);
  const bool offload = IsHostCopy(replica.role) && transaction.if_update() != nullptr;
  Note(turn, replica.group->model->key,
       {offload ? EventKind::kOffloadFailed : EventKind::kOperationFailed, transaction.event,
        replica.group->name},
       absl::StrCat(std::string(OperationKindName(transaction.kind())), " (operation ",
                    transaction.number.value, " of buffer ", replica.buffer_name,
                    "): ", status.ToString()));
}

// Its ranks drain all the same, also behind a publish that others have yet to join.
void DrainAllAlone(Turn& turn, Replica& replica, const Transaction& unpublish) {
  for (const auto& [rank, participant] : unpublish.participants) {
    const auto buffer = replica.buffers.find(rank);
    if (buffer != replica.buffers.end()) DrainAlone(turn, *buffer->second, unpublish.number);
  }
}

// `result` has the reason, and whether the buffers stay published.
void Fail(Turn& turn, Replica& replica, const Transaction& transaction, FinishedOperation result) {
  NoteFailure(turn, replica, transaction, result.status);
  if (const Version* version = FindVersion(*replica.group->model, transaction.version)) {
    result.version = version->info;
  }
  Undo(turn, replica, transaction);
  if (transaction.if_unpublish() != nullptr && !result.must_offload) {
    DrainAllAlone(turn, replica, transaction);
  }
  FinishOperation(turn, replica, transaction.number, std::move(result));
}

// The first rank that has lost a call and has not joined this operation, if any.
std::optional<Rank> RankThatLostACall(const Replica& replica, const Transaction& transaction) {
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->lost_call && !transaction.participants.contains(rank)) return rank;
  }
  return std::nullopt;
}

// A call of the rank was none of the operations of its group: as if one had expired without it.
void NoteCallBeside(Buffer& buffer) {
  if (!buffer.missed_since.has_value()) buffer.missed_since = buffer.last_started;
}

// Notes which ranks missed the operation, and returns one of them that lags, if any: it missed an
// earlier one too or has lost a call, has started some operation since, and joined none before that
// ended. A rank that has started nothing since is late, but does not lag: it hears all saved
// results.
std::optional<Rank> NoteMissed(Replica& replica, const Transaction& transaction) {
  std::optional<Rank> lags;
  for (auto& [rank, buffer] : replica.buffers) {
    if (transaction.participants.contains(rank)) continue;
    const bool calls_behind =
        buffer->missed_since.has_value() && *buffer->missed_since < buffer->last_started;
    if (calls_behind && !lags) lags = rank;
    buffer->missed_since = buffer->last_started;
  }
  return lags;
}

// An earlier server has ended the operation as another kind than the one that its participants here
// have asked for. Their calls are refused, as they would be if they came later.
void RefuseOtherKind(Turn& turn, Replica& replica, const FinishedOperation& result) {
  const Transaction& pending = replica.pending.at(result.number);
  Undo(turn, replica, pending);
  if (pending.if_unpublish() != nullptr) DrainAllAlone(turn, replica, pending);
  turn.state.deadlines.erase(DeadlineOf(replica, pending));
  for (const auto& [rank, participant] : pending.participants) {
    const Buffer& buffer = *replica.buffers.at(rank);
    SendFinished(turn, buffer,
                 {.number = result.number,
                  .kind = pending.kind(),
                  .status = EndedAsAnotherKind(buffer, result, pending.kind())},
                 pending.event);
  }
  if (pending.has_begun()) CountOut(*replica.group->model, pending.version);
  replica.pending.erase(result.number);
}

// A rank that has come back asks for what it waits for once it hears that its buffer is registered.
// Its first heartbeat may have left just before, its second lies a good part of a lease later.
constexpr uint8_t kHeartbeatsToAsk = 2;

bool HasHadTimeToAsk(const Worker& worker) { return worker.heartbeats >= kHeartbeatsToAsk; }

bool MayAskYet(const Replica& replica, const Worker& worker) {
  if (!worker.came_with.has_value()) return false;
  const auto buffer = replica.buffers.find(worker.name.rank);
  const bool owed = buffer != replica.buffers.end() && buffer->second->registration_owed;
  return owed || TH_MUTATE(kAdoptNoLateQuestions, !HasHadTimeToAsk(worker), false);
}

}  // namespace

void SetDeadline(Turn& turn, const Replica& replica, Transaction& transaction, absl::Time to) {
  turn.state.deadlines.erase(DeadlineOf(replica, transaction));
  transaction.deadline = to;
  turn.state.deadlines.insert(DeadlineOf(replica, transaction));
}

void AwaitLostCalls(Turn& turn, const Replica& replica, Transaction& transaction) {
  if (transaction.number != replica.finished.Next()) return;
  const bool awaits = RankThatLostACall(replica, transaction).has_value();
  if (awaits == (transaction.complete_by != absl::InfiniteFuture())) return;
  turn.state.deadlines.erase(DeadlineOf(replica, transaction));
  transaction.complete_by = awaits ? turn.now + kCallsAgainWithin : absl::InfiniteFuture();
  turn.state.deadlines.insert(DeadlineOf(replica, transaction));
}

void BeginWith(Replica& replica, Transaction& transaction, VersionSequence version) {
  Model& model = *replica.group->model;
  if (transaction.has_begun()) CountOut(model, transaction.version);
  std::visit([](auto& operation) { operation.phase = operation.kBegun; }, transaction.part);
  transaction.version = version;
  ++model.under_way[version];
}

void FinishOperation(Turn& turn, Replica& replica, OperationNumber number,
                     FinishedOperation result) {
  result.number = number;
  EventId event;
  auto found = replica.pending.find(number);
  if (found != replica.pending.end()) {
    turn.state.deadlines.erase(DeadlineOf(replica, found->second));
    result.kind = found->second.kind();
    event = found->second.event;
    for (const auto& [rank, participant] : found->second.participants) {
      auto buffer = replica.buffers.find(rank);
      if (buffer == replica.buffers.end()) continue;
      const Fill* fill = buffer->second->fill.get();
      if (fill != nullptr && fill->operation == number) ClearFill(turn, *buffer->second);
      SendFinished(turn, *buffer->second, result, event);
    }
    if (found->second.has_begun()) CountOut(*replica.group->model, found->second.version);
    replica.pending.erase(found);
    const Model& model = *replica.group->model;
    if (!model.host_copies.empty()) turn.to_review.insert(model.key);
  }
  if (!result.status.ok()) ++turn.state.counters.operations_failed;
  replica.finished_here = true;
  replica.group->has_ended = true;
  const bool asks_for_copy = result.must_offload && result.status.ok();
  replica.copy_awaited_until = asks_for_copy ? turn.now + kCopyAwaitedFor : absl::InfinitePast();
  RememberResult(replica, std::move(result), event);
  turn.state.waiting_for_recovery.erase(replica.id);
  replica.group->model->waiting_for_room.erase(replica.id);
  turn.to_evaluate.insert(replica.id);
  if (Transaction* next = HeadOf(replica)) AwaitLostCalls(turn, replica, *next);
}

void FailOperation(Turn& turn, Replica& replica, OperationNumber number, absl::Status status) {
  auto found = replica.pending.find(number);
  if (found == replica.pending.end()) return;
  const bool stays_published = WaitsForRoom(replica, number) || AwaitsRanks(replica, found->second);
  Fail(turn, replica, found->second,
       {.status = std::move(status), .must_offload = stays_published});
}

void FailAllOperations(Turn& turn, Group& group, const absl::Status& status) {
  for (auto& [name, replica] : group.replicas) {
    while (!replica.pending.empty()) {
      FailOperation(turn, replica, replica.pending.begin()->first, status);
    }
  }
}

std::optional<Rank> ExpireOperation(Turn& turn, Replica& replica, OperationNumber number) {
  auto found = replica.pending.find(number);
  if (found == replica.pending.end()) return std::nullopt;
  const std::optional<Rank> lost_call = RankThatLostACall(replica, found->second);
  if (lost_call.has_value() && turn.now >= found->second.complete_by) return lost_call;
  if (turn.now < found->second.deadline) {  // who had lost a call is gone
    AwaitLostCalls(turn, replica, found->second);
    return std::nullopt;
  }
  std::optional<Rank> lags;
  std::string text = absl::StrCat(OperationKindName(found->second.kind()), " (operation ",
                                  number.value, ") ran out of time: ");
  if (number != replica.finished.Next()) {
    absl::StrAppend(&text, "it waited for operation ", replica.finished.value + 1);
  } else if (WaitsForRoom(replica, number)) {
    absl::StrAppend(&text,
                    "it waited for room to offload what is retained: another copy of the group "
                    "is still read or has not been freed");
  } else if ((!found->second.has_begun() || found->second.is_publishing()) &&
             MissingRanks(*replica.group, found->second).empty()) {
    absl::StrAppend(&text, "the server was still recovering");
  } else {
    absl::StrAppend(&text, WhoIsLate(replica, found->second));
    lags = NoteMissed(replica, found->second);
  }
  const bool stays_published = StaysPublished(replica, found->second);
  Fail(turn, replica, found->second,
       {.status = absl::DeadlineExceededError(text), .must_offload = stays_published});
  return lags;
}

bool AdoptResult(Turn& turn, Replica& replica, FinishedOperation result) {
  if (result.number <= replica.finished) return false;
  while (!replica.pending.empty() && replica.pending.begin()->first < result.number) {
    FailOperation(turn, replica, replica.pending.begin()->first,
                  absl::AbortedError(absl::StrCat(
                      "the group ended this operation before the server restarted (it is at ",
                      result.number.value, "), and its result ", kForgotten)));
  }
  // Ending those before it may have ended this one: it expired while it waited for them, and other
  // ranks have heard so.
  if (result.number <= replica.finished) return false;
  if (auto found = replica.pending.find(result.number); found != replica.pending.end()) {
    const bool other_kind = result.status.ok() && result.kind != found->second.kind();
    const bool undoes = found->second.if_publish() != nullptr || !result.status.ok();
    if (other_kind) {
      RefuseOtherKind(turn, replica, result);
    } else if (undoes) {
      Undo(turn, replica, found->second);
      const bool drains = found->second.if_unpublish() != nullptr && !result.must_offload;
      if (drains) DrainAllAlone(turn, replica, found->second);
    }
    if (DroppedContent(result)) DropReplicaContent(turn, replica, result.number);
  }
  replica.finished = OperationNumber(result.number.value - 1);
  const OperationNumber number = result.number;
  // FinishOperation sets `finished_here`, but this operation was finished by an earlier server.
  const bool finished_here = replica.finished_here;
  FinishOperation(turn, replica, number, std::move(result));
  replica.finished_here = finished_here;
  return true;
}

bool EndMustOffload(Turn& turn, Replica& replica, OperationNumber number) {
  KeptResult& kept = replica.results.at(number);
  FinishedOperation& result = kept.finished;
  const bool waits = result.kind == OperationKind::kUnpublish && result.status.ok() &&
                     number == replica.finished && replica.pending.empty();
  if (!waits) return false;
  result.must_offload = false;
  DropReplicaContent(turn, replica, number);
  for (const auto& [rank, buffer] : replica.buffers) SendResult(turn, *buffer, kept);
  return true;
}

bool DroppedContent(const FinishedOperation& result) {
  return result.kind == OperationKind::kUnpublish && result.status.ok() && !result.must_offload;
}

bool MadePublisher(const FinishedOperation& result, const Content& content) {
  return content.publisher && result.kind == OperationKind::kPublish && result.status.ok() &&
         result.version.sequence == content.version;
}

void DropReplicaContent(Turn& turn, Replica& replica, OperationNumber unpublish) {
  for (auto& [rank, buffer] : replica.buffers) {
    if (!DrainsYet(turn.state, *buffer, unpublish)) ClearContent(turn, *buffer);
    buffer->drained_while_away = false;
  }
  SetPhase(turn, replica, ReplicaPhase::kIdle);
}

void DrainAlone(Turn& turn, Buffer& buffer, OperationNumber unpublish) {
  buffer.last_drained_alone = std::max(buffer.last_drained_alone, unpublish);
  if (DrainsYet(turn.state, buffer, unpublish)) return;
  if (!IsFilledBeside(buffer, unpublish)) DropContent(turn, buffer);
}

bool DrainsLate(const RegistryState& state, const BufferAddress& address,
                OperationNumber unpublish) {
  const Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr || !buffer->content.has_value()) return false;
  if (unpublish == OperationNumber() || IsFilledBeside(*buffer, unpublish)) return false;
  if (buffer->last_drained_alone == unpublish) return buffer->last_started <= unpublish;
  const auto& results = buffer->replica->results;
  const auto result = results.find(unpublish);
  return result != results.end() && DroppedContent(result->second.finished) &&
         buffer->last_started == unpublish;
}

void DropContent(Turn& turn, Buffer& buffer) {
  if (!buffer.content.has_value()) return;
  Replica& replica = *buffer.replica;
  ClearContent(turn, buffer);
  if (replica.phase == ReplicaPhase::kHolding) InvalidateReplica(turn, replica);
}

void RestartNumbering(Group& group) {
  group.freed.Clear();
  group.has_ended = false;
  for (auto& [name, replica] : group.replicas) {
    replica.finished = OperationNumber();
    replica.results.clear();
    replica.finished_here = false;
    for (auto& [rank, buffer] : replica.buffers) {
      buffer->last_started = OperationNumber();
      buffer->last_drained_alone = OperationNumber();
      buffer->missed_since.reset();
      buffer->lost_call = false;
    }
  }
}

void NoteLostCall(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  buffer.lost_call = true;
  if (TH_MUTATE(kForgetLostCalls, true, false)) NoteCallBeside(buffer);
  const auto first = replica.pending.find(replica.finished.Next());
  if (first != replica.pending.end()) AwaitLostCalls(turn, replica, first->second);
}

void NoteOtherCall(Buffer& buffer) {
  if (TH_MUTATE(kForgetOtherCalls, true, false)) NoteCallBeside(buffer);
}

absl::StatusOr<OwnOperation> FindOwnOperation(const RegistryState& state,
                                              const BufferAddress& address,
                                              OperationNumber number) {
  Buffer* buffer = FindBuffer(state, address);
  if (buffer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffer ", address.buffer.value, " is not registered"));
  }
  auto found = buffer->replica->pending.find(number);
  if (found == buffer->replica->pending.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "operation ", number.value, " of ", NameOf(*buffer).ToString(), " is not pending"));
  }
  auto participant = found->second.participants.find(RankOf(*buffer));
  if (participant == found->second.participants.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(*buffer).ToString(), " has not started operation ", number.value));
  }
  return OwnOperation{buffer, &found->second, &participant->second};
}

bool SomeRankMayKnow(const RegistryState& state, const Replica& replica,
                     const Transaction& transaction) {
  const Group& group = *replica.group;
  if (!group.adopted || transaction.participants.size() >= group.ranks) return false;
  return state.adopting ||
         std::any_of(group.members.begin(), group.members.end(), [&](const auto& member) {
           return !transaction.participants.contains(member.first) &&
                  MayAskYet(replica, *member.second);
         });
}

void WaitForRecovery(Turn& turn, const Replica& replica) {
  turn.state.waiting_for_recovery.insert(replica.id);
}

void NoteHeartbeat(Turn& turn, Worker& worker) {
  if (HasHadTimeToAsk(worker) || ++worker.heartbeats < kHeartbeatsToAsk) return;
  for (auto& [name, replica] : worker.group->replicas) {
    if (turn.state.waiting_for_recovery.erase(replica.id) != 0) turn.to_evaluate.insert(replica.id);
  }
}

std::vector<Rank> MissingRanks(const Group& group, const Transaction& transaction) {
  std::vector<Rank> missing;
  for (uint32_t rank = 0; rank < group.ranks; ++rank) {
    if (!transaction.participants.contains(Rank(rank))) missing.emplace_back(rank);
  }
  return missing;
}

}  // namespace th::registry
