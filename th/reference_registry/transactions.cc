#include "th/reference_registry/transactions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/protocol/operation_kind_name.h"
#include "th/reference_registry/costs.h"
#include "th/reference_registry/floor.h"
#include "th/reference_registry/holders.h"
#include "th/reference_registry/kept_results.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

Deadline DeadlineOf(const Replica& replica, const Transaction& transaction) {
  return {.at = transaction.ends_at(),
          .kind = DeadlineKind::kOperation,
          .replica = replica.id,
          .operation = transaction.number};
}

// Whether the rank's caller wants what is retained to be kept; none: its request does not tell. One
// that has drained without a server waits for no copy any more, whatever was asked, and of an
// update what it was resolved to says that it may have.
std::optional<bool> AsksToKeep(const StartOperation& request) {
  const bool tells = request.kind == OperationKind::kUpdate && !request.resolved.has_value();
  return tells ? std::optional(request.keep_retained) : std::nullopt;
}

// How a later rank's request disagrees with the first one's; empty when it does not.
std::string Disagreement(const Transaction& transaction, const StartOperation& request) {
  if (transaction.kind != request.kind) {
    return absl::StrCat("calls it ", OperationKindName(request.kind), ", not ",
                        OperationKindName(transaction.kind));
  }
  if (request.kind == OperationKind::kUpdate && transaction.selector != request.selector) {
    return absl::StrCat("updates to ", ToString(request.selector), ", not to ",
                        ToString(transaction.selector));
  }
  const bool keeps_otherwise = AsksToKeep(request).has_value() &&
                               transaction.asked_to_keep.has_value() &&
                               AsksToKeep(request) != transaction.asked_to_keep;
  if (keeps_otherwise) return "does not keep, or drop, what is retained";
  if (transaction.when_seeding != request.when_seeding) {
    return "does not wait, skip or copy while the version is being seeded";
  }
  if (request.kind != OperationKind::kPublish) return "";
  if (transaction.label != request.label) {
    return absl::StrCat("publishes label '", request.label.text(), "', not '",
                        transaction.label.text(), "'");
  }
  if (transaction.derived_from != request.derived_from) return "derives from another version";
  if (transaction.attributes != request.attributes) return "has other attributes";
  return "";
}

// What an update moves to, where that is known.
std::optional<VersionSequence> TargetOf(const Transaction& transaction) {
  if (transaction.kind != OperationKind::kUpdate) return std::nullopt;
  if (transaction.begun) return transaction.version;
  if (transaction.resolved.has_value()) return transaction.resolved->sequence;
  return std::nullopt;
}

// The version that the operation already moves to, when that is another than `resolved`.
std::optional<VersionSequence> OtherResolution(const Transaction& transaction,
                                               const VersionInfo& resolved) {
  const std::optional<VersionSequence> known = TargetOf(transaction);
  return known == resolved.sequence ? std::nullopt : known;
}

// Whether it moves already to what this rank's floor excludes.
bool IsTooOld(const Replica& replica, const Transaction& transaction, VersionSequence floor) {
  const std::optional<VersionSequence> target = TargetOf(transaction);
  return target.has_value() && IsBehindFloor(replica, *target, floor);
}

Transaction NewTransaction(Turn& turn, const StartOperation& request, Rank first_rank) {
  return {.number = request.key.number,
          .kind = request.kind,
          .event = MintEvent(turn.state),
          .started = turn.now,
          .first_rank = first_rank,
          .deadline = absl::InfiniteFuture(),
          .label = request.label,
          .attributes = request.attributes,
          .derived_from = request.derived_from,
          .keep_retained = request.keep_retained,
          .selector = request.selector,
          .floor = request.floor,
          .when_seeding = request.when_seeding};
}

absl::Status EndedAsAnotherKind(const Buffer& buffer, const FinishedOperation& result,
                                OperationKind asked) {
  return absl::InvalidArgumentError(
      absl::StrCat("operation ", result.number.value, " of buffer ", buffer.name, " ended as ",
                   OperationKindName(result.kind), ", and ", NameOf(buffer).ToString(),
                   " calls it ", OperationKindName(asked),
                   "; all ranks of a group must call the same operations in the same ", "order"));
}

absl::Status SkipsAhead(const Buffer& buffer, OperationNumber asked, OperationNumber expected) {
  return absl::FailedPreconditionError(absl::StrCat(NameOf(buffer).ToString(), " starts operation ",
                                                    asked.value, " of buffer ", buffer.name,
                                                    ", but its next one is ", expected.value));
}

// What this server has not begun an earlier one may have resolved, and ranks that copy without a
// server resolve the copy's update themselves.
absl::Status MayBeResolved(const Buffer& buffer, const StartOperation& request) {
  const Replica& replica = *buffer.replica;
  if (!request.resolved.has_value()) return absl::OkStatus();
  if (const std::string why = WhyNoAnswer(request, *request.resolved); !why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("what operation ", request.key.number.value,
                                                   " is said to move to ", why, " by ",
                                                   NameOf(buffer).ToString()));
  }
  if (replica.group->adopted || IsHostCopy(replica.role)) return absl::OkStatus();
  const auto pending = replica.pending.find(request.key.number);
  if (pending != replica.pending.end() && pending->second.begun) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(buffer).ToString(), " says that operation ", request.key.number.value, " moves to ",
      request.resolved->ToString(), ", and no server has resolved it; ask without a version"));
}

// What a failed publish leaves: nothing of a version that it was to begin.
void UndoPublish(Turn& turn, Replica& replica, VersionSequence version) {
  SetPhase(turn, replica, ReplicaPhase::kIdle);
  Version* record = FindVersion(*replica.group->model, version);
  if (record != nullptr && record->phase == VersionPhase::kPublishing) EraseVersion(turn, *record);
}

// What a failed update leaves: whatever the ranks held whole before, and no source.
void UndoUpdate(Turn& turn, Replica& replica) {
  for (auto& [rank, buffer] : replica.buffers) {
    ClearFill(turn, *buffer);
    const bool keep = buffer->content.has_value() && buffer->content->committed;
    if (!keep) ClearContent(turn, *buffer);
  }
  InvalidateReplica(turn, replica);
}

bool TookAway(const FinishedOperation& result) {
  return result.kind == OperationKind::kUnpublish && result.status.ok() && !result.offload_first;
}

// Whether a copy of its own worker still reads from it: then it has not drained.
bool IsCopiedHere(const Buffer& buffer) {
  if (buffer.shard == nullptr) return false;
  const auto readers = buffer.shard->readers_of.find(buffer.address);
  if (readers == buffer.shard->readers_of.end()) return false;
  return std::any_of(readers->second.begin(), readers->second.end(),
                     [&](const auto& reader) { return reader.worker == buffer.address.worker; });
}

// What an unpublish leaves that ended without this server's drain: every rank has drained, or does
// by itself, and says so no more.
void TakeAway(Turn& turn, Replica& replica) {
  for (auto& [rank, buffer] : replica.buffers) {
    if (!IsCopiedHere(*buffer)) ClearContent(turn, *buffer);
    buffer->drained_while_away = false;
  }
  SetPhase(turn, replica, ReplicaPhase::kIdle);
}

// Whether its ranks fill since another reign, and it has not begun in this one.
bool IsAdoptedFill(const Replica& replica, const Transaction& transaction) {
  return transaction.kind == OperationKind::kUpdate && !transaction.begun &&
         replica.phase == ReplicaPhase::kFilling && transaction.number == replica.finished.Next();
}

void Undo(Turn& turn, Replica& replica, const Transaction& transaction) {
  if (!transaction.begun && !IsAdoptedFill(replica, transaction)) return;
  switch (transaction.kind) {
    case OperationKind::kPublish:
      return UndoPublish(turn, replica, transaction.version);
    case OperationKind::kUpdate:
      return UndoUpdate(turn, replica);
    case OperationKind::kUnpublish:
      return InvalidateReplica(turn, replica);
  }
}

void CountOut(Model& model, VersionSequence version) {
  auto counted = model.under_way.find(version);
  if (--counted->second == 0) model.under_way.erase(counted);
}

// To one rank, for what its group's operation has not done for it.
void SendError(Turn& turn, const Buffer& buffer, const StartOperation& request,
               absl::Status status) {
  SendFinished(turn, buffer,
               {.number = request.key.number, .kind = request.kind, .status = std::move(status)},
               EventId());
}

std::string WhatRankLacks(const Buffer& buffer, const Transaction& transaction,
                          const Participant& participant) {
  if (transaction.kind == OperationKind::kUnpublish) return "has not drained its buffer";
  if (!participant.ready) return "has not drained its buffer";
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

// "rank rollout-3/1 holds 3 of 9 segments and has no source; rollout-3/2 has not asked".
std::string WhoIsLate(const Replica& replica, const Transaction& transaction) {
  constexpr int kNamed = 4;
  std::string text;
  int named = 0;
  for (const auto& [rank, participant] : transaction.participants) {
    if (participant.done || transaction.kind == OperationKind::kPublish) continue;
    // It waits for the others, not they for it.
    if (transaction.kind == OperationKind::kUpdate && !transaction.begun) continue;
    if (++named > kNamed) continue;
    const Buffer& buffer = *replica.buffers.at(rank);
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", NameOf(buffer).ToString(), " ",
                    WhatRankLacks(buffer, transaction, participant));
  }
  if (named > kNamed) absl::StrAppend(&text, "; and ", named - kNamed, " more ranks");
  const std::vector<Rank> missing = MissingRanks(*replica.group, transaction);
  if (missing.empty()) return text;
  return absl::StrCat(text, text.empty() ? "" : "; ", "rank ", NameRanks(*replica.group, missing),
                      missing.size() == 1 ? " has" : " have", " not started it");
}

// Nothing of it has begun: what the ranks hold is theirs still.
bool WaitsForRoom(const Replica& replica, OperationNumber number) {
  return number == replica.finished.Next() &&
         replica.group->model->waiting_for_room.contains(replica.id);
}

// Whether it is an unpublish that has its turn, and waits until all ranks have asked: they are to
// make a copy first.
bool AwaitsRanks(const Replica& replica, const Transaction& transaction) {
  return transaction.kind == OperationKind::kUnpublish && transaction.keep_retained &&
         !transaction.begun && transaction.number == replica.finished.Next() &&
         replica.phase == ReplicaPhase::kHolding;
}

// Whether an operation whose time is over has never got as far as asking what is retained.
bool StaysPublished(const Replica& replica, const Transaction& transaction) {
  const bool asks = transaction.kind == OperationKind::kUnpublish && transaction.keep_retained;
  return WaitsForRoom(replica, transaction.number) || (asks && !transaction.begun);
}

void NoteFailure(Turn& turn, const Replica& replica, const Transaction& transaction,
                 const absl::Status& status) {
  CountFailed(turn, replica, transaction, status);
  const bool offload = IsHostCopy(replica.role) && transaction.kind == OperationKind::kUpdate;
  Note(turn, replica.group->model->key,
       {offload ? EventKind::kOffloadFailed : EventKind::kOperationFailed, transaction.event,
        replica.group->name},
       absl::StrCat(std::string(OperationKindName(transaction.kind)), " (operation ",
                    transaction.number.value, " of buffer ", replica.buffer_name,
                    "): ", status.ToString()));
}

// Its ranks drain all the same, also behind a publish that others have yet to join.
void LetGoOfAll(Turn& turn, Replica& replica, const Transaction& unpublish) {
  for (const auto& [rank, participant] : unpublish.participants) {
    const auto buffer = replica.buffers.find(rank);
    if (buffer != replica.buffers.end()) LetGoAlone(turn, *buffer->second, unpublish.number);
  }
}

// `result` has the reason, and whether the buffers stay published.
void Fail(Turn& turn, Replica& replica, const Transaction& transaction, FinishedOperation result) {
  NoteFailure(turn, replica, transaction, result.status);
  if (const Version* version = FindVersion(*replica.group->model, transaction.version)) {
    result.version = version->info;
  }
  Undo(turn, replica, transaction);
  if (transaction.kind == OperationKind::kUnpublish && !result.offload_first) {
    LetGoOfAll(turn, replica, transaction);
  }
  FinishOperation(turn, replica, transaction.number, std::move(result));
}

// The first rank that has lost a call and has not come to this operation, if any.
std::optional<Rank> WhoLostACall(const Replica& replica, const Transaction& transaction) {
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->lost_call && !transaction.participants.contains(rank)) return rank;
  }
  return std::nullopt;
}

// Ranks that have lost a call have so long to come to the replica's first operation.
void AwaitLostCalls(Turn& turn, const Replica& replica, Transaction& transaction) {
  if (transaction.number != replica.finished.Next()) return;
  const bool awaits = WhoLostACall(replica, transaction).has_value();
  if (awaits == (transaction.complete_by != absl::InfiniteFuture())) return;
  turn.state.deadlines.erase(DeadlineOf(replica, transaction));
  transaction.complete_by = awaits ? turn.now + kCallsAgainWithin : absl::InfiniteFuture();
  turn.state.deadlines.insert(DeadlineOf(replica, transaction));
}

// Notes who missed the operation; of them the rank that lags, if any: it missed one before too, has
// come in time to none since, and has asked for an earlier one. It calls, but stays behind. A rank
// that calls nothing is late, and hears all results.
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

// The group has ended the operation as another kind than its ranks call it that wait for it here:
// their calls are refused, as they would be had they come later.
void RefuseOtherKind(Turn& turn, Replica& replica, const FinishedOperation& result) {
  const Transaction& pending = replica.pending.at(result.number);
  Undo(turn, replica, pending);
  turn.state.deadlines.erase(DeadlineOf(replica, pending));
  for (const auto& [rank, participant] : pending.participants) {
    const Buffer& buffer = *replica.buffers.at(rank);
    SendFinished(turn, buffer,
                 {.number = result.number,
                  .kind = pending.kind,
                  .status = EndedAsAnotherKind(buffer, result, pending.kind)},
                 pending.event);
  }
  if (pending.begun) CountOut(*replica.group->model, pending.version);
  replica.pending.erase(result.number);
}

}  // namespace

absl::StatusOr<JoinTransaction> JoinTransaction::Build(const BufferAddress& buffer,
                                                       const StartOperation& request) {
  if (request.key.number == OperationNumber()) {
    return absl::InvalidArgumentError("operations are numbered from 1, and this one is 0");
  }
  if (OperationKindName(request.kind) == "unknown") {
    return absl::InvalidArgumentError(absl::StrCat("operation kind ",
                                                   static_cast<int>(request.kind),
                                                   " is none of publish, unpublish, update"));
  }
  if (request.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("a timeout of ",
                                                   absl::FormatDuration(request.timeout),
                                                   " gives the operation no time; ask for more"));
  }
  if (request.kind == OperationKind::kPublish && request.label.empty() &&
      !request.derived_from.has_value()) {
    return absl::InvalidArgumentError("a publish needs a label for its version");
  }
  if (absl::Status status = ValidateAttributes(request.attributes); !status.ok()) return status;
  return JoinTransaction{.buffer = buffer, .request = request};
}

absl::Status JoinTransaction::CanApply(const RegistryState& state) const {
  const OperationNumber number = request.key.number;
  const Buffer* own = FindBuffer(state, buffer);
  if (own == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("buffer ", buffer.buffer.value, " is not registered; register it first"));
  }
  const Replica& replica = *own->replica;
  if (replica.role == BufferRole::kStreaming && request.kind != OperationKind::kUpdate) {
    return absl::InvalidArgumentError(absl::StrCat("buffer ", own->name, " of ",
                                                   NameOf(*own).ToString(),
                                                   " keeps nothing: it can only be updated"));
  }
  if (auto result = replica.results.find(number); result != replica.results.end()) {
    const FinishedOperation& finished = result->second.finished;
    if (finished.kind == request.kind) return absl::OkStatus();
    return EndedAsAnotherKind(*own, finished, request.kind);
  }
  if (number <= replica.finished) {
    return absl::AbortedError(absl::StrCat(
        "the result of operation ", number.value, " of ", NameOf(*own).ToString(), " ", kForgotten,
        ": its group has ended ", replica.finished.value, " operations, and the last ",
        kMaxResultsKept, " of this reign are remembered"));
  }
  const OperationNumber expected = std::max(own->last_started, replica.finished).Next();
  if (number > expected) {
    return SkipsAhead(*own, number, expected);
  }
  if (number.value > replica.finished.value + kMaxQueuedOperations) {
    return absl::ResourceExhaustedError(absl::StrCat(
        NameOf(*own).ToString(), " starts operation ", number.value, " while operation ",
        replica.finished.value + 1, " has not ended; at most ", kMaxQueuedOperations, " may wait"));
  }
  return MayBeResolved(*own, request);
}

void JoinTransaction::Apply(Turn& turn) const {
  Buffer& own = *FindBuffer(turn.state, buffer);
  Replica& replica = *own.replica;
  const OperationNumber number = request.key.number;
  const bool is_latest_start = own.last_started <= number;
  own.last_started = std::max(own.last_started, number);
  if (auto result = replica.results.find(number); result != replica.results.end()) {
    const FinishedOperation& finished = result->second.finished;
    absl::Status status = CheckAnswer(own, finished, request);
    if (!status.ok()) return SendError(turn, own, request, std::move(status));
    const bool unpublished = TookAway(finished);
    // Ended in another reign, before this rank had said what it holds.
    const bool latest = number == replica.finished && replica.phase == ReplicaPhase::kHolding;
    const bool received = replica.role == BufferRole::kStreaming && HeadOf(replica) == nullptr;
    // After a bad end this rank drains alone, once it has heard; after a good one it may copy
    // first.
    const bool ended_badly = finished.kind == OperationKind::kUnpublish && !finished.status.ok() &&
                             !finished.offload_first;
    if ((unpublished && latest) || received) {
      TakeAway(turn, replica);
    } else if (ended_badly && is_latest_start) {
      LetGoAlone(turn, own, number);
    }
    return SendResult(turn, own, result->second);
  }
  const Rank rank = RankOf(own);
  const bool created = !replica.pending.contains(number);
  if (created) replica.pending.emplace(number, NewTransaction(turn, request, rank));
  Transaction& transaction = replica.pending.at(number);
  const std::string disagreement = Disagreement(transaction, request);
  // A rank that has drained without the server cannot wait for an offload.
  if (disagreement.empty()) transaction.keep_retained &= request.keep_retained;
  if (!transaction.asked_to_keep.has_value()) transaction.asked_to_keep = AsksToKeep(request);
  transaction.participants.try_emplace(rank);
  transaction.arrivals.insert(rank);
  own.missed_since.reset();
  own.lost_call = false;
  if (!disagreement.empty()) {
    const RankName first{replica.group->name, transaction.first_rank};
    return FailOperation(turn, replica, number,
                         absl::InvalidArgumentError(absl::StrCat(
                             "ranks disagree on operation ", number.value, ": ",
                             NameOf(own).ToString(), " ", disagreement, " as ", first.ToString(),
                             " does; all ranks of a group must ask for the same")));
  }
  if (IsTooOld(replica, transaction, request.floor)) {
    return FailOperation(turn, replica, number,
                         OlderThanAskedFor(own, *TargetOf(transaction), request));
  }
  transaction.floor =
      TH_MUTATE(kIgnoreLaterFloors, std::max(transaction.floor, request.floor), transaction.floor);
  const absl::Duration timeout = std::min(request.timeout, turn.state.limits.max_operation_timeout);
  if (!created) turn.state.deadlines.erase(DeadlineOf(replica, transaction));
  transaction.deadline = std::min(transaction.deadline, turn.now + timeout);
  turn.state.deadlines.insert(DeadlineOf(replica, transaction));
  AwaitLostCalls(turn, replica, transaction);
  if (request.kind == OperationKind::kPublish) {
    if (request.generation != BufferGeneration()) own.generation = request.generation;
    own.snapshot_bytes = request.snapshot_bytes;
  }
  turn.to_evaluate.insert(replica.id);
  if (!request.resolved.has_value()) return;
  const std::optional<VersionSequence> other = OtherResolution(transaction, *request.resolved);
  if (!other.has_value()) {
    transaction.resolved = request.resolved;
    return;
  }
  FailOperation(turn, replica, number,
                absl::AbortedError(absl::StrCat(
                    NameOf(own).ToString(), " was moving to ", request.resolved->ToString(),
                    " before the server restarted, and its group now moves to #", other->ToString(),
                    "; ask again")));
}

void TakePart(Turn& turn, Buffer& buffer, OperationNumber number) {
  Replica& replica = *buffer.replica;
  buffer.last_started = number;
  buffer.missed_since.reset();
  const StartOperation request{.key = {buffer.address.buffer, number},
                               .kind = OperationKind::kUpdate};
  if (!replica.pending.contains(number)) {
    replica.pending.emplace(number, NewTransaction(turn, request, RankOf(buffer)));
  }
  replica.pending.at(number).participants.try_emplace(RankOf(buffer));
}

void BeginWith(Replica& replica, Transaction& transaction, VersionSequence version) {
  Model& model = *replica.group->model;
  if (transaction.begun) CountOut(model, transaction.version);
  transaction.begun = true;
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
    result.kind = found->second.kind;
    event = found->second.event;
    for (const auto& [rank, participant] : found->second.participants) {
      auto buffer = replica.buffers.find(rank);
      if (buffer == replica.buffers.end()) continue;
      const std::optional<Fill>& fill = buffer->second->fill;
      if (fill.has_value() && fill->operation == number) ClearFill(turn, *buffer->second);
      SendFinished(turn, *buffer->second, result, event);
    }
    if (found->second.begun) CountOut(*replica.group->model, found->second.version);
    replica.pending.erase(found);
    const Model& model = *replica.group->model;
    if (!model.offloads.empty()) turn.to_review.insert(model.key);
  }
  if (!result.status.ok()) ++turn.state.counters.operations_failed;
  replica.finished_here = true;
  replica.group->has_ended = true;
  RememberResult(replica, std::move(result), event);
  turn.state.waiting_for_recovery.erase(replica.id);
  replica.group->model->waiting_for_room.erase(replica.id);
  turn.to_evaluate.insert(replica.id);
}

void FailOperation(Turn& turn, Replica& replica, OperationNumber number, absl::Status status) {
  auto found = replica.pending.find(number);
  if (found == replica.pending.end()) return;
  const bool stays = WaitsForRoom(replica, number) || AwaitsRanks(replica, found->second);
  Fail(turn, replica, found->second, {.status = std::move(status), .offload_first = stays});
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
  const std::optional<Rank> lost_call = WhoLostACall(replica, found->second);
  if (lost_call.has_value() && turn.now >= found->second.complete_by) return lost_call;
  std::optional<Rank> lags;
  std::string text = absl::StrCat(OperationKindName(found->second.kind), " (operation ",
                                  number.value, ") ran out of time: ");
  if (number != replica.finished.Next()) {
    absl::StrAppend(&text, "it waited for operation ", replica.finished.value + 1);
  } else if (WaitsForRoom(replica, number)) {
    absl::StrAppend(&text,
                    "it waited for room to offload what is retained: another copy of the group "
                    "is still read or has not been freed");
  } else if (!found->second.begun && found->second.kind == OperationKind::kUpdate &&
             MissingRanks(*replica.group, found->second).empty()) {
    absl::StrAppend(&text, "the server was still recovering");
  } else {
    absl::StrAppend(&text, WhoIsLate(replica, found->second));
    lags = NoteMissed(replica, found->second);
  }
  const bool stays = StaysPublished(replica, found->second);
  Fail(turn, replica, found->second,
       {.status = absl::DeadlineExceededError(text), .offload_first = stays});
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
  // Its time was over while it waited for those before it: that is what others have heard.
  if (result.number <= replica.finished) return false;
  if (auto found = replica.pending.find(result.number); found != replica.pending.end()) {
    const OperationKind kind = found->second.kind;
    if (result.status.ok() && result.kind != kind) {
      RefuseOtherKind(turn, replica, result);
    } else if (kind == OperationKind::kPublish || !result.status.ok()) {
      Undo(turn, replica, found->second);
    }
    if (TookAway(result)) TakeAway(turn, replica);
  }
  replica.finished = OperationNumber(result.number.value - 1);
  const OperationNumber number = result.number;
  const bool finished_here = replica.finished_here;
  FinishOperation(turn, replica, number, std::move(result));
  replica.finished_here = finished_here;
  return true;
}

bool EndOffloadFirst(Turn& turn, Replica& replica, OperationNumber number) {
  KeptResult& kept = replica.results.at(number);
  FinishedOperation& result = kept.finished;
  const bool waits = result.kind == OperationKind::kUnpublish && result.status.ok() &&
                     number == replica.finished && replica.pending.empty();
  if (!waits) return false;
  result.offload_first = false;
  TakeAway(turn, replica);
  for (const auto& [rank, buffer] : replica.buffers) SendResult(turn, *buffer, kept);
  return true;
}

void LetGoAlone(Turn& turn, Buffer& buffer, OperationNumber unpublish) {
  buffer.last_let_go = std::max(buffer.last_let_go, unpublish);
  Replica& replica = *buffer.replica;
  if (!buffer.content.has_value() || replica.phase == ReplicaPhase::kFilling) return;
  if (IsCopiedHere(buffer)) return;  // it drains once the copy is made
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
      buffer->last_let_go = OperationNumber();
      buffer->missed_since.reset();
      buffer->lost_call = false;
    }
  }
}

void NoteLostCall(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  buffer.lost_call = true;
  const auto first = replica.pending.find(replica.finished.Next());
  if (first != replica.pending.end()) AwaitLostCalls(turn, replica, first->second);
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
  return state.adopting && group.adopted && transaction.participants.size() < group.ranks;
}

void WaitForRecovery(Turn& turn, const Replica& replica) {
  turn.state.waiting_for_recovery.insert(replica.id);
}

std::vector<Rank> MissingRanks(const Group& group, const Transaction& transaction) {
  std::vector<Rank> missing;
  for (uint32_t rank = 0; rank < group.ranks; ++rank) {
    if (!transaction.participants.contains(Rank(rank))) missing.emplace_back(rank);
  }
  return missing;
}

}  // namespace th::registry
