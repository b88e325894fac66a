#include "th/reference_registry/updating.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/resolution.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/seeding.h"
#include "th/reference_registry/throughput.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/costs.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

bool Holds(const Buffer& buffer, VersionSequence version) {
  return buffer.content.has_value() && buffer.content->complete && !buffer.content->refused &&
         buffer.content->version == version;
}

bool GroupHoldsWhole(const Replica& replica, VersionSequence version) {
  return replica.phase == ReplicaPhase::kHolding && replica.version == version &&
         replica.buffers.size() == replica.group->ranks &&
         std::all_of(replica.buffers.begin(), replica.buffers.end(),
                     [&](const auto& entry) { return Holds(*entry.second, version); });
}

// True when the buffers that a staged copy is for hold the version already.
bool OriginalHoldsWhole(const Replica& staged, VersionSequence version) {
  const auto original = staged.group->replicas.find(staged.staged_for);
  return original != staged.group->replicas.end() && GroupHoldsWhole(original->second, version);
}

// True when the group has staged the version for these buffers, or a part of it still has.
bool IsStaged(const Replica& replica, VersionSequence version) {
  const auto& replicas = replica.group->replicas;
  return std::any_of(replicas.begin(), replicas.end(), [&](const auto& entry) {
    const auto& copies = entry.second.buffers;
    return entry.second.staged_for == replica.buffer_name &&
           std::any_of(copies.begin(), copies.end(),
                       [&](const auto& copy) { return Holds(*copy.second, version); });
  });
}

void EndNotAvailable(Turn& turn, Replica& replica, const Transaction& transaction,
                     NotAvailableReason reason) {
  ++turn.state.counters.updates_not_available;
  ++replica.group->model->totals.not_available;
  FinishOperation(turn, replica, transaction.number,
                  {.outcome = UpdateOutcome::kNotAvailable, .not_available = reason});
}

// True when a rank said that it is done and has lost its shard since.
bool HasLost(const Buffer& buffer, const Transaction& transaction, const Participant& participant) {
  return transaction.is_filling() && participant.done_at().has_value() &&
         !Holds(buffer, transaction.version);
}

void FailLost(Turn& turn, const Buffer& loser, const Transaction& transaction) {
  FailOperation(turn, *loser.replica, transaction.number,
                absl::AbortedError(absl::StrCat(
                    "rank ", NameOf(loser).ToString(), " was done and has lost version #",
                    transaction.version.ToString(), " since; update again")));
}

// Every rank has the version, or has handed on all of it.
void Commit(Turn& turn, Replica& replica, VersionSequence version) {
  if (replica.role == BufferRole::kStreaming) {
    for (auto& [rank, buffer] : replica.buffers) ClearContent(turn, *buffer);
    replica.group->came_to = version;
    return SetPhase(turn, replica, ReplicaPhase::kIdle);
  }
  for (auto& [rank, buffer] : replica.buffers) CommitContent(*buffer);
  SetPhase(turn, replica, ReplicaPhase::kHolding, version);
}

// The transports that brought the group's bytes.
TransportsUsed TransportsOf(const Replica& replica) {
  TransportsUsed used;
  for (const auto& [rank, buffer] : replica.buffers) used.Add(buffer->content->transports);
  return used;
}

// " over tcp (same_host: on another host)"; "" when none came.
std::string OverTransports(const TransportsUsed& used) {
  const std::string transports = used.ToString();
  return transports.empty() ? "" : absl::StrCat(" over ", transports);
}

void EndMoved(Turn& turn, Replica& replica, const Transaction& transaction, UpdateOutcome outcome) {
  const Version& version = *FindVersion(*replica.group->model, transaction.version);
  if (outcome == UpdateOutcome::kMoved) {
    ++turn.state.counters.updates_moved;
    replica.copies_unused = 0;
    CountMoved(turn, replica, transaction);
    TransportsUsed used = TransportsOf(replica);
    const std::string over = OverTransports(used);
    replica.passed_over_reported = std::move(used.passed_over);
    Commit(turn, replica, transaction.version);
    Note(turn, replica.group->model->key,
         {IsHostCopy(replica.role) ? EventKind::kOffloadDone : EventKind::kUpdateMoved,
          transaction.event, replica.group->name},
         absl::StrCat(version.info.ToString(), " after ",
                      absl::FormatDuration(turn.now - transaction.started), over));
  }
  FinishOperation(turn, replica, transaction.number, {.outcome = outcome, .version = version.info});
}

// True when a rank's shard has not been announced since the restart, and may still be.
bool ShardsMayCome(const Turn& turn, const Replica& replica, const Version& version) {
  return turn.state.adopting && version.from_earlier_epoch &&
         !RanksWithoutShard(replica, version).empty();
}

// A new operation after a restart may have been resolved before it, and another rank knows to what.
bool MustWait(const Turn& turn, const Replica& replica, const Transaction& transaction,
              const Resolution& resolution) {
  if (turn.state.recovering || SomeRankMayKnow(turn.state, replica, transaction)) {
    return true;
  }
  return resolution.version != nullptr && ShardsMayCome(turn, replica, *resolution.version);
}

// The version that the operation moves to; null when it has ended or waits.
Version* ResolveOperation(Turn& turn, Replica& replica, Transaction& transaction) {
  Model& model = *replica.group->model;
  const UpdateOperation& update = transaction.update();
  if (update.phase == UpdatePhase::kAnswered) {
    Version* version = FindVersion(model, update.answer.sequence);
    const bool there = version != nullptr && version->phase == VersionPhase::kPublished;
    if (there && ShardsMayCome(turn, replica, *version)) {
      WaitForRecovery(turn, replica);
      return nullptr;
    }
    if (there) return version;
    FailOperation(turn, replica, transaction.number,
                  absl::AbortedError(absl::StrCat(update.answer.ToString(),
                                                  " was withdrawn or lost since this update was "
                                                  "resolved to it; ask again")));
    return nullptr;
  }
  const Resolution resolution = ResolveFor(replica, update.selector, update.floor);
  if (MustWait(turn, replica, transaction, resolution)) {
    WaitForRecovery(turn, replica);
    return nullptr;
  }
  if (resolution.version == nullptr) {
    EndNotAvailable(turn, replica, transaction, resolution.reason);
    return nullptr;
  }
  return FindVersion(model, resolution.version->info.sequence);
}

bool Begin(Turn& turn, Replica& replica, Transaction& transaction) {
  Version* version = ResolveOperation(turn, replica, transaction);
  if (version == nullptr) return false;
  transaction.version = version->info.sequence;
  // A version that was resolved elsewhere may be under way in some rank: the operation neither
  // waits nor ends.
  const bool asked = transaction.update().phase == UpdatePhase::kAsked;
  if (GroupHoldsWhole(replica, transaction.version) ||
      OriginalHoldsWhole(replica, transaction.version)) {
    EndMoved(turn, replica, transaction, UpdateOutcome::kAlreadyThere);
    return false;
  }
  const std::vector<const Buffer*> without = RanksWithoutShard(replica, *version);
  // Before it has begun: the buffers stay as they are.
  if (!without.empty() && asked && HasLostShards(*version, replica.form)) {
    EndNotAvailable(turn, replica, transaction, NotAvailableReason::kLost);
    return false;
  }
  if (!without.empty()) {
    FailOperation(turn, replica, transaction.number,
                  NobodyHoldsShardOf(turn.state, *without.front(), *version));
    return false;
  }
  // A staged version needs no head start, and nobody's buffer is touched for a rank that never
  // comes.
  const bool staged = asked && IsStaged(replica, transaction.version);
  if (staged && !MissingRanks(*replica.group, transaction).empty()) return false;
  LoseInterestInOthers(turn, replica, transaction.version);
  if (asked && EndIfSeeding(turn, replica, transaction, *version)) return false;
  const bool in_use = asked && replica.version != transaction.version;
  if (in_use && DeferToOffload(turn, replica, transaction)) return false;
  BeginWith(replica, transaction, transaction.version);
  SetPhase(turn, replica, ReplicaPhase::kFilling, transaction.version);
  Note(
      turn, replica.group->model->key,
      {EventKind::kUpdateBegan, transaction.event, replica.group->name},
      absl::StrCat("to ", version->info.ToString(), ", ", ToString(transaction.update().selector)));
  return true;
}

void SendResolved(Turn& turn, const Buffer& buffer, const Version& version,
                  const Transaction& transaction, UpdateParticipant& participant) {
  OperationResolved message{.key = {buffer.address.buffer, transaction.number},
                            .version = version.info,
                            .event = transaction.event};
  auto shard = version.shards.find(ShardKeyOf(buffer));
  if (shard != version.shards.end()) message.root = shard->second.root;
  if (message.root.has_value()) message.receipt = shard->second.receipt;
  participant.root_sent = message.root.has_value();
  Send(turn, *buffer.worker, std::move(message));
}

absl::Status HasItsShard(const RegistryState& state, const Buffer& buffer, const Version& version) {
  if (version.shards.contains(ShardKeyOf(buffer))) return absl::OkStatus();
  return NobodyHoldsShardOf(state, buffer, version);
}

void SendRootOnce(Turn& turn, const Buffer& buffer, UpdateParticipant& participant) {
  if (participant.root_sent || !buffer.shard->root.has_value()) return;
  participant.root_sent = true;
  SendRoot(turn, buffer);
}

// The rank's fill begins, or goes on after its stream was broken.
void StartOrResume(Turn& turn, Buffer& buffer, const Transaction& transaction) {
  Version& version = *FindVersion(*buffer.replica->group->model, transaction.version);
  const bool resumes = buffer.content.has_value() && !buffer.content->refused &&
                       buffer.content->version == transaction.version && !buffer.content->complete;
  if (buffer.fill == nullptr)
    buffer.fill = std::make_unique<Fill>(Fill{.operation = transaction.number});
  buffer.fill->confirmed |= buffer.sources_confirmed;
  buffer.sources_confirmed = false;
  if (!resumes) {
    SetContent(turn, buffer, version, Content{});
    DropSource(turn, *buffer.shard, buffer.address,
               /*was_whole=*/false);  // they read another generation
  }
  if (SourcesOf(*buffer.shard, buffer.address).empty()) {
    turn.to_assign.insert(buffer.address);
  } else if (!buffer.fill->confirmed) {
    RepeatAssignment(turn, buffer);
  }
  if (ASourceLeaves(buffer)) turn.to_move.insert(buffer.address);
}

// A streaming reader has nothing to drain and nobody reads from it, so its fill waits for no
// ReadyToFill: it gets its sources along with the version. One that comes back in mid-fill does
// wait: its ReadyToFill says in which generation it goes on.
void BeginAtOnce(Turn& turn, Buffer& buffer, const Transaction& transaction,
                 UpdateParticipant& participant) {
  participant.began_at_once = !buffer.content.has_value();
  if (!participant.began_at_once) return;
  participant.ready = true;
  StartOrResume(turn, buffer, transaction);
}

}  // namespace

void EvaluateUpdate(Turn& turn, Replica& replica, Transaction& transaction) {
  if (!transaction.has_begun() && !Begin(turn, replica, transaction)) return;
  const Version& version = *FindVersion(*replica.group->model, transaction.version);
  for (const Rank rank : std::exchange(transaction.arrivals, {})) {
    Buffer& buffer = *replica.buffers.at(rank);
    absl::Status status = HasItsShard(turn.state, buffer, version);
    if (!status.ok()) return FailOperation(turn, replica, transaction.number, status);
    UpdateParticipant& participant = transaction.participants.at(rank).update();
    const bool done = participant.done_at.has_value();
    if (done) continue;
    SendResolved(turn, buffer, version, transaction, participant);
    if (replica.role == BufferRole::kStreaming) BeginAtOnce(turn, buffer, transaction, participant);
  }
  const uint32_t needed = TH_MUTATE(kMoveWithoutAllRanks, replica.group->ranks,
                                    static_cast<uint32_t>(transaction.participants.size()));
  if (transaction.update().ranks_done < needed) return;
  for (const auto& [rank, participant] : transaction.participants) {
    const Buffer& buffer = *replica.buffers.at(rank);
    if (HasLost(buffer, transaction, participant)) return FailLost(turn, buffer, transaction);
  }
  EndMoved(turn, replica, transaction, UpdateOutcome::kMoved);
}

void EndUpdateThatCountsOn(Turn& turn, Buffer& buffer) {
  Transaction* head = HeadOf(*buffer.replica);
  if (head == nullptr) return;
  auto own = head->participants.find(RankOf(buffer));
  if (own == head->participants.end() || !HasLost(buffer, *head, own->second)) return;
  FailLost(turn, buffer, *head);
}

absl::Status BeginFill::CanApply(const RegistryState& state) const {
  const auto own = FindOwnOperation(state, buffer, message.key.number);
  if (!own.ok()) return own.status();
  if (!own->transaction->is_filling()) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(*own->buffer).ToString(), " is ready to fill in operation ",
                     message.key.number.value, ", which is no resolved update"));
  }
  return absl::OkStatus();
}

void BeginFill::Apply(Turn& turn) const {
  const OwnOperation own = *FindOwnOperation(turn.state, buffer, message.key.number);
  Buffer& reader = *own.buffer;
  const bool same_generation = reader.generation == message.generation;
  reader.generation = message.generation;
  UpdateParticipant& participant = own.participant->update();
  participant.ready = true;
  if (participant.done_at.has_value()) return;
  if (std::exchange(participant.began_at_once, false)) {
    return SendRootOnce(turn, reader, participant);
  }
  if (same_generation && Holds(reader, own.transaction->version)) return;
  StartOrResume(turn, reader, *own.transaction);
  SendRootOnce(turn, reader, participant);
}

absl::Status RecordProgress::CanApply(const RegistryState& state) const {
  const auto own = FindOwnOperation(state, buffer, message.key.number);
  if (!own.ok()) return own.status();
  const Buffer& reader = *own->buffer;
  if (reader.fill == nullptr || reader.content->version != message.version) {
    return absl::FailedPreconditionError(absl::StrCat(
        NameOf(reader).ToString(), " does not fill version #", message.version.ToString()));
  }
  const auto& ranges = message.segments.ranges();
  if (ranges.size() > kMaxProgressRanges ||
      (!ranges.empty() && ranges.back().end.value > reader.segment_count)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "progress of ", NameOf(reader).ToString(), " names segments beyond the ",
        reader.segment_count, " of its layout, or more than ", kMaxProgressRanges, " ranges"));
  }
  const bool believable = message.throughputs.size() <= kMaxThroughputsReported &&
                          std::all_of(message.throughputs.begin(), message.throughputs.end(),
                                      [&](const SourceThroughput& throughput) {
                                        return throughput.bytes <= reader.bytes &&
                                               throughput.waited >= absl::ZeroDuration();
                                      });
  if (!believable) {
    return absl::InvalidArgumentError(absl::StrCat("progress of ", NameOf(reader).ToString(),
                                                   " names more bytes of a source than its ",
                                                   reader.bytes, ", or too many sources"));
  }
  return message.transports.has_value() ? CheckReportedTransports(*message.transports)
                                        : absl::OkStatus();
}

void RecordProgress::Apply(Turn& turn) const {
  Buffer& reader = *FindBuffer(turn.state, buffer);
  reader.content->segments = message.segments;
  if (message.transports.has_value()) {
    const OwnOperation own = *FindOwnOperation(turn.state, buffer, message.key.number);
    NoteTransports(turn, reader, *message.transports, own.transaction->event);
  }
  NoteThroughputs(turn, reader, message.throughputs);
}

absl::Status CompleteFill::CanApply(const RegistryState& state) const {
  const auto own = FindOwnOperation(state, buffer, message.key.number);
  if (!own.ok()) return own.status();
  const Transaction& transaction = *own->transaction;
  const bool fills = own->buffer->fill != nullptr || Holds(*own->buffer, transaction.version);
  if (!transaction.is_filling() || !fills) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(*own->buffer).ToString(), " is done with operation ",
                     message.key.number.value, ", in which it fills nothing"));
  }
  return absl::OkStatus();
}

void CompleteFill::Apply(Turn& turn) const {
  const OwnOperation own = *FindOwnOperation(turn.state, buffer, message.key.number);
  Buffer& reader = *own.buffer;
  ClearFill(turn, reader);
  reader.content->complete = true;
  reader.content->chain = 0;
  reader.content->segments.Clear();
  UpdateParticipant& participant = own.participant->update();
  participant.ready = true;
  if (!participant.done_at.has_value()) {
    participant.done_at = turn.now;
    ++own.transaction->update().ranks_done;
    CountRankDone(turn, reader, *own.transaction, *own.participant, message.cost);
  }
  Reindex(turn, reader);
  turn.to_evaluate.insert(reader.replica->id);
}

}  // namespace th::registry
