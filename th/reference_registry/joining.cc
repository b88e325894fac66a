#include "th/reference_registry/joining.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/protocol/answer.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/floor.h"
#include "th/registry_state/kept_results.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

// True when the caller of a rank that updates wants what is retained to be kept; none: the request
// does not tell. A rank that has drained without a server waits for no copy any more, whatever was
// asked, and what its update was resolved to says that it may have drained.
std::optional<bool> AsksToKeep(const StartOperation& update) {
  return update.resolved.has_value() ? std::nullopt : std::optional(update.keep_retained);
}

std::string Disagreement(const PublishOperation& publish, const StartOperation& request) {
  if (publish.label != request.label) {
    return absl::StrCat("publishes label '", request.label.text(), "', not '", publish.label.text(),
                        "'");
  }
  if (publish.derived_from != request.derived_from) return "derives from another version";
  if (publish.attributes != request.attributes) return "has other attributes";
  return "";
}

std::string Disagreement(const UpdateOperation& update, const StartOperation& request) {
  if (update.selector != request.selector) {
    return absl::StrCat("updates to ", ToString(request.selector), ", not to ",
                        ToString(update.selector));
  }
  const std::optional<bool> keeps = AsksToKeep(request);
  if (keeps.has_value() && update.keep_retained.has_value() && keeps != update.keep_retained) {
    return "does not keep, or drop, what is retained";
  }
  if (update.when_seeding != request.when_seeding) {
    return "does not wait, skip or copy while the version is being seeded";
  }
  return "";
}

// How a later rank's request disagrees with the first one's; empty when it does not.
std::string Disagreement(const Transaction& transaction, const StartOperation& request) {
  if (transaction.kind() != request.kind) {
    return absl::StrCat("calls it ", OperationKindName(request.kind), ", not ",
                        OperationKindName(transaction.kind()));
  }
  if (const UpdateOperation* update = transaction.if_update()) {
    return Disagreement(*update, request);
  }
  if (const PublishOperation* publish = transaction.if_publish()) {
    return Disagreement(*publish, request);
  }
  return "";
}

// The version that an update moves to, where that is known.
std::optional<VersionSequence> TargetOf(const Transaction& transaction) {
  const UpdateOperation* update = transaction.if_update();
  if (update == nullptr || update->phase == UpdatePhase::kAsked) return std::nullopt;
  return update->phase == UpdatePhase::kAnswered ? update->answer.sequence : transaction.version;
}

// The version that the operation already moves to, when that is another than `resolved`.
std::optional<VersionSequence> OtherResolution(const Transaction& transaction,
                                               const VersionInfo& resolved) {
  const std::optional<VersionSequence> known = TargetOf(transaction);
  return known == resolved.sequence ? std::nullopt : known;
}

// True when it moves already to what this rank's floor excludes.
bool IsTooOld(const Replica& replica, const Transaction& transaction, VersionSequence floor) {
  const std::optional<VersionSequence> target = TargetOf(transaction);
  return target.has_value() && IsBehindFloor(replica, *target, floor);
}

OperationPart NewPart(const StartOperation& request) {
  switch (request.kind) {
    case OperationKind::kPublish:
      return PublishOperation{.label = request.label,
                              .attributes = request.attributes,
                              .derived_from = request.derived_from};
    case OperationKind::kUnpublish:
      return UnpublishOperation();
    case OperationKind::kUpdate:
      break;
  }
  return UpdateOperation{
      .selector = request.selector, .floor = request.floor, .when_seeding = request.when_seeding};
}

Transaction NewTransaction(Turn& turn, const StartOperation& request, Rank first_rank) {
  return {.number = request.key.number,
          .event = MintEvent(turn.state),
          .started = turn.now,
          .first_rank = first_rank,
          .deadline = absl::InfiniteFuture(),
          .part = NewPart(request)};
}

// Adds to the operation what a rank asks for that agrees with the others.
void AddRequest(Transaction& transaction, const StartOperation& request) {
  // A rank that has drained without the server cannot wait for an offload.
  UnpublishOperation* unpublish = transaction.if_unpublish();
  if (unpublish != nullptr && !request.keep_retained) unpublish->StopKeeping();
  UpdateOperation* update = transaction.if_update();
  if (update == nullptr) return;
  if (!update->keep_retained.has_value()) update->keep_retained = AsksToKeep(request);
  update->floor =
      TH_MUTATE(kIgnoreLaterFloors, std::max(update->floor, request.floor), update->floor);
}

// The rank knows what its update moves to, and nothing that the group knows is against it.
void TakeAnswer(UpdateOperation& update, const VersionInfo& answer) {
  if (update.phase == UpdatePhase::kFilling) return;
  update.phase = UpdatePhase::kAnswered;
  update.answer = answer;
}

absl::Status SkipsAhead(const Buffer& buffer, OperationNumber asked, OperationNumber expected) {
  return absl::FailedPreconditionError(absl::StrCat(NameOf(buffer).ToString(), " starts operation ",
                                                    asked.value, " of buffer ", buffer.name,
                                                    ", but its next one is ", expected.value));
}

// OK when a rank may bring the resolution with its request: an earlier server may have resolved
// what this one has not begun, and ranks that copy without a server resolve the copy's update
// themselves.
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
  if (pending != replica.pending.end() && pending->second.has_begun()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(buffer).ToString(), " says that operation ", request.key.number.value, " moves to ",
      request.resolved->ToString(), ", and no server has resolved it; ask without a version"));
}

// To one rank, for what its group's operation has not done for it.
void SendError(Turn& turn, const Buffer& buffer, const StartOperation& request,
               absl::Status status) {
  SendFinished(turn, buffer,
               {.number = request.key.number, .kind = request.kind, .status = std::move(status)},
               EventId());
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
        kMaxResultsKept, " of this epoch are remembered"));
  }
  const OperationNumber expected = std::max(own->last_started, replica.finished).Next();
  if (number > expected) {
    return SkipsAhead(*own, number, expected);
  }
  if (number.value > replica.finished.value + kMaxQueuedOperations) {
    return absl::ResourceExhaustedError(
        absl::StrCat(NameOf(*own).ToString(), " starts operation ", number.value,
                     " while operation ", replica.finished.value + 1, " has not ended; at most ",
                     kMaxQueuedOperations, " may be unfinished"));
  }
  return MayBeResolved(*own, request);
}

void JoinTransaction::Apply(Turn& turn) const {
  Buffer& own = *FindBuffer(turn.state, buffer);
  Replica& replica = *own.replica;
  const OperationNumber number = request.key.number;
  const bool is_latest_start = own.last_started <= number;
  own.last_started = std::max(own.last_started, number);
  own.lost_call = false;
  if (auto result = replica.results.find(number); result != replica.results.end()) {
    if (Transaction* head = HeadOf(replica)) AwaitLostCalls(turn, replica, *head);
    const FinishedOperation& finished = result->second.finished;
    absl::Status status = CheckAnswer(own, finished, request);
    if (!status.ok()) {
      NoteOtherCall(own);
      return SendError(turn, own, request, std::move(status));
    }
    const bool unpublished = DroppedContent(finished);
    // Ended in another epoch, before this rank had said what it holds.
    const bool latest = number == replica.finished && replica.phase == ReplicaPhase::kHolding;
    const bool received = replica.role == BufferRole::kStreaming && HeadOf(replica) == nullptr;
    // This rank drains alone, once it has heard: after a bad end, or where later operations have
    // ended without it. After a good one it may copy first.
    const bool ended_badly = finished.kind == OperationKind::kUnpublish && !finished.status.ok() &&
                             !finished.must_offload;
    const bool passed_over = unpublished && number < replica.finished;
    if ((unpublished && latest) || received) {
      DropReplicaContent(turn, replica, number);
    } else if ((ended_badly || passed_over) && is_latest_start) {
      DrainAlone(turn, own, number);
    }
    SendResult(turn, own, result->second);
    return RepeatLoss(turn, own, result->second.finished);
  }
  const Rank rank = RankOf(own);
  if (!replica.pending.contains(number)) {
    replica.pending.emplace(number, NewTransaction(turn, request, rank));
  }
  Transaction& transaction = replica.pending.at(number);
  transaction.AddParticipant(rank, turn.now);
  transaction.arrivals.insert(rank);
  own.missed_since.reset();
  if (const std::string disagreement = Disagreement(transaction, request); !disagreement.empty()) {
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
  AddRequest(transaction, request);
  const absl::Duration timeout = std::min(request.timeout, turn.state.limits.max_operation_timeout);
  SetDeadline(turn, replica, transaction, std::min(transaction.deadline, turn.now + timeout));
  AwaitLostCalls(turn, replica, transaction);
  if (request.kind == OperationKind::kPublish) {
    if (request.generation != BufferGeneration()) own.generation = request.generation;
    own.snapshot_bytes = request.snapshot_bytes;
  }
  turn.to_evaluate.insert(replica.id);
  UpdateOperation* update = transaction.if_update();
  if (update == nullptr || !request.resolved.has_value()) return;
  const std::optional<VersionSequence> other = OtherResolution(transaction, *request.resolved);
  if (!other.has_value()) return TakeAnswer(*update, *request.resolved);
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
  replica.pending.at(number).AddParticipant(RankOf(buffer), turn.now);
}

}  // namespace th::registry
