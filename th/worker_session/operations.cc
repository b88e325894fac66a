#include "th/worker_session/operations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"
#include "th/worker_session/admissions.h"
#include "th/worker_session/fill_reports.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/publish.h"
#include "th/worker_session/unpublish.h"
#include "th/worker_session/update.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

void AdvanceDrain(State& state, Buffer& buffer, absl::Time now) {
  if (buffer.contract.state() != BufferState::kDraining || WaitsForSeal(buffer, now)) return;
  MutabilityContract::DrainStep step = buffer.contract.Advance(now);
  buffer.drain_cut = step.cut;
  state.ReportServing(buffer);
  if (!step.to_cut.empty()) state.Emit(CutReaders{buffer.id, std::move(step.to_cut)});
}

absl::Time NextDrainStep(const Buffer& buffer) {
  const bool waits = WaitsForSeal(buffer, absl::InfinitePast());
  return waits ? buffer.seal_by : buffer.contract.NextDeadline();
}

void PumpOperation(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return PumpPublish(state, buffer, operation, now);
    case OperationKind::kUnpublish:
      return PumpUnpublish(state, buffer, operation, now);
    case OperationKind::kUpdate:
      return PumpUpdate(state, buffer, operation, now);
  }
}

// Nothing of it is left to be told to anybody.
bool Settled(const Operation& operation) {
  return operation.detached && (operation.orphaned || operation.verdict->server_knows);
}

absl::Status TimeIsUp(const State& state, const Operation& operation) {
  std::string text = absl::StrCat("no end after ", absl::FormatDuration(operation.start.timeout));
  if (!state.joined()) {
    absl::StrAppend(&text,
                    "; the server is away: ", std::string(state.link.last_failure.message()));
  } else if (const UpdateOperation* update = operation.if_update();
             update != nullptr && !update->why_no_source.empty()) {
    absl::StrAppend(&text, "; no source: ", update->why_no_source);
  }
  return absl::DeadlineExceededError(text);
}

// Unpublish has its own rule: it ends well without the server once it is drained. What waits for a
// copy hears of that copy's end.
bool Expires(const Operation& operation) {
  return operation.kind() != OperationKind::kUnpublish && !operation.verdict.has_value() &&
         !WaitsForCopy(operation);
}

absl::Time DeadlineOf(const State& state, const Operation& operation) {
  if (operation.kind() == OperationKind::kUnpublish) return UnpublishWaitsUntil(state, operation);
  return Expires(operation) ? operation.local_deadline() : absl::InfiniteFuture();
}

// True when nothing of it has begun here.
bool CanWaitForOffload(const Operation& operation) {
  if (operation.verdict.has_value()) return false;
  if (operation.kind() == OperationKind::kUnpublish) return !HasBegunToDrain(operation);
  return operation.kind() == OperationKind::kUpdate &&
         operation.update().phase == UpdatePhase::kAsked;
}

// True when its group has ended an unpublish that waits for its copy here: another rank had not
// heard that there is to be one, and drained without the server.
bool EndedWithoutCopy(const Operation& operation, const OperationFinished& message) {
  return operation.kind() == OperationKind::kUnpublish && message.status.ok() &&
         !message.must_offload;
}

// The server says that nobody needs the copy. Until its fill has stopped it reads from the buffer
// like any reader.
void GiveUpCopy(State& state, CopyFirst& first) {
  first.wanted.reset();
  HostCopy* copy = state.FindHostCopy(std::exchange(first.copy, BufferId()));
  if (copy != nullptr) copy->kept()->given_up = true;
}

void LetDrain(State& state, Operation& operation) {
  UnpublishOperation& unpublish = operation.unpublish();
  if (!HasBegunToDrain(operation)) unpublish.phase = UnpublishPhase::kMayDrain;
  GiveUpCopy(state, unpublish.copy);
}

// The caller was told that this publish failed, for want of a server, and nothing came after it: a
// server that has made it good holds this rank for a holder that it is not.
bool GaveUpPublication(const Buffer& buffer, const Operation& operation) {
  return operation.detached && operation.kind() == OperationKind::kPublish &&
         !operation.verdict->status.ok() && &operation == &buffer.operations.back();
}

// True when it is an update that has ended here and left the version that the buffer held. What was
// published since is the business of that publish, which may be on its way.
bool EndedUntouched(const Buffer& buffer, const Operation& operation) {
  return operation.kind() == OperationKind::kUpdate && operation.verdict.has_value() &&
         buffer.contract.state() == BufferState::kPublished &&
         buffer.version.sequence != VersionSequence();
}

Verdict VerdictOf(const OperationFinished& message) {
  return {.status = message.status,
          .version = message.version,
          .server_knows = true,
          .must_offload = message.must_offload};
}

// True when the message can be the end of this operation. What failed has no other kind than the
// rank's own word.
bool IsEndOf(const Operation& operation, const OperationFinished& message) {
  return !message.status.ok() || message.kind == operation.kind();
}

Verdict Judge(const State& state, const Buffer& buffer, const Operation& operation,
              const OperationFinished& message) {
  if (!IsEndOf(operation, message)) {
    return {.status = absl::InternalError(
                absl::StrCat("the server ended this ", OperationKindName(operation.kind()),
                             " as an ", OperationKindName(message.kind), "; call again")),
            .server_knows = true};
  }
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return JudgeFinishedPublish(operation, VerdictOf(message));
    case OperationKind::kUpdate:
      return JudgeFinishedUpdate(state, buffer, operation, message);
    case OperationKind::kUnpublish:
      break;
  }
  return VerdictOf(message);
}

void HearEndWhileCopying(Buffer& buffer, Operation& operation, const OperationFinished& message) {
  // An operation that others have ended is over; the copy goes on, for they may have kept theirs.
  if (EndedWithoutCopy(operation, message)) {
    operation.unpublish().phase = UnpublishPhase::kCopyingAlone;
  }
  if (!IsOffloadingOffline(operation)) return;
  NoteEvent(operation, message.event);
  NoteEndWhileCopying(buffer, operation, VerdictOf(message));
}

void ConcludeAsReported(State& state, Buffer& buffer, Operation& operation,
                        const OperationFinished& message, absl::Time now) {
  if (GaveUpPublication(buffer, operation) && message.status.ok()) {
    SendAbout(state, buffer, BufferReset{buffer.id}, now);
  }
  const bool untouched = EndedUntouched(buffer, operation) && !message.status.ok();
  Verdict verdict = Judge(state, buffer, operation, message);
  const bool is_update = operation.kind() == OperationKind::kUpdate;
  if (is_update && message.site_copy) WantSiteCopy(state, operation, message);
  Conclude(operation, std::move(verdict));
  // Now, not only when what it began has come to rest: a server that restarts meanwhile hears it
  // with the join.
  RememberFinished(buffer, operation, *operation.verdict);
  // It drained without having been let: the server takes it for a holder still. Or it holds what
  // the server took from its group when the update began there.
  const bool drained_alone = message.must_offload && HasDrained(operation);
  if (drained_alone || untouched) Reannounce(state, buffer, now);
  Pump(state, buffer, now);
}

// The operation that the server means. Null: none.
Operation* OperationFor(State& state, const OperationKey& key) {
  Buffer* buffer = state.FindBuffer(key.buffer);
  return buffer == nullptr ? nullptr : FindOperation(*buffer, key.number);
}

// Likewise, if it is an update.
Operation* UpdateFor(State& state, const OperationKey& key) {
  Operation* operation = OperationFor(state, key);
  const bool is_update = operation != nullptr && operation->kind() == OperationKind::kUpdate;
  return is_update ? operation : nullptr;
}

// Tells how far the operation is, which its start does not say.
void ReportProgress(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  if (HasDrained(operation)) {
    SendRankDone(state, buffer, operation, now);
  } else if (operation.if_update() != nullptr) {
    ResendUpdate(state, buffer, operation, now);
  }
  // An operation that a server has ended is announced: its start is answered with the saved result.
  const bool failed = operation.verdict.has_value() && !operation.verdict->status.ok() &&
                      !operation.verdict->server_knows;
  if (failed && !HasDrained(operation)) SendRankFailed(state, buffer, operation, now);
}

// Tells all of one operation. Of one whose start goes ahead of the answer to the registration the
// rest follows that answer (SendWhatFollowsTheStart).
void SendOperation(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  operation.start_sent = true;
  const UpdateOperation* update = operation.if_update();
  if (update == nullptr || !update->failed_unstarted) SendStart(state, buffer, operation, now);
  if (buffer.registered) ReportProgress(state, buffer, operation, now);
}

// In the order of their numbers, and no more at a time than the server queues.
void SendOperations(State& state, Buffer& buffer, absl::Time now) {
  if (!state.joined() || !MayBeAskedAbout(state, buffer)) return;
  size_t ahead = 0;
  for (Operation& operation : buffer.operations) {
    if (operation.orphaned) continue;
    if (++ahead > kMaxOperationsAhead) return;
    if (!operation.start_sent) SendOperation(state, buffer, operation, now);
  }
}

// Differs after every step that Pump can take: what it counts only grows.
struct Footprint {
  BufferState state;
  BufferGeneration generation;
  size_t marks = 0;
  friend bool operator==(const Footprint&, const Footprint&) = default;
};
Footprint FootprintOf(const Buffer& buffer) {
  Footprint footprint{buffer.contract.state(), buffer.contract.generation()};
  for (const Operation& operation : buffer.operations) {
    if (const UpdateOperation* update = operation.if_update()) {
      footprint.marks += static_cast<size_t>(update->phase);
    }
    footprint.marks += (operation.verdict.has_value() ? 1 : 0) + (HasDrained(operation) ? 1 : 0) +
                       (operation.detached ? 1 : 0) + (HasBegunToDrain(operation) ? 1 : 0);
  }
  return footprint;
}

}  // namespace

void Pump(State& state, Buffer& buffer, absl::Time now) {
  SendOperations(state, buffer, now);
  // A step may begin a drain that nobody holds up, or end an operation before its own: again, until
  // nothing changes.
  for (int pass = 0; pass < kMaxPumpPasses; ++pass) {
    const Footprint before = FootprintOf(buffer);
    AdvanceDrain(state, buffer, now);
    for (Operation& operation : buffer.operations) PumpOperation(state, buffer, operation, now);
    if (FootprintOf(buffer) == before) break;
  }
  buffer.operations.remove_if(Settled);
  // One that is settled makes room for another at the server.
  SendOperations(state, buffer, now);
  state.ReportServing(buffer);
  DecideHeldAdmissions(state, now);
}

void SendWhatFollowsTheStart(State& state, Buffer& buffer, absl::Time now) {
  for (Operation& operation : buffer.operations) {
    if (operation.start_sent && !operation.orphaned) ReportProgress(state, buffer, operation, now);
  }
}

void PumpAll(State& state, absl::Time now) {
  for (auto& [id, buffer] : state.buffers) Pump(state, buffer, now);
}

void TickOperations(State& state, absl::Time now) {
  for (auto& [id, buffer] : state.buffers) {
    for (Operation& operation : buffer.operations) {
      if (Expires(operation) && now >= operation.local_deadline()) {
        Conclude(operation, {.status = TimeIsUp(state, operation)});
      }
    }
    SendDueProgress(state, buffer, now);
    Pump(state, buffer, now);
  }
}

absl::Time NextOperationDeadline(const State& state) {
  absl::Time next = NextAdmissionDeadline(state);
  for (const auto& [id, buffer] : state.buffers) {
    next = std::min({next, NextDrainStep(buffer), NextProgress(state, buffer)});
    for (const Operation& operation : buffer.operations) {
      next = std::min(next, DeadlineOf(state, operation));
    }
  }
  return next;
}

void HandleResolved(State& state, const OperationResolved& message, absl::Time now) {
  Operation* operation = OperationFor(state, message.key);
  if (operation == nullptr) return;
  if (WaitsForCopy(*operation) && !IsOffloadingOffline(*operation)) return;
  NoteEvent(*operation, message.event);
  Buffer& buffer = *state.FindBuffer(message.key.buffer);
  if (operation->kind() == OperationKind::kUpdate) {
    ResolveUpdate(state, buffer, *operation, message, now);
  } else if (operation->kind() == OperationKind::kUnpublish) {
    LetDrain(state, *operation);
  }
  Pump(state, buffer, now);
}

void HandleAssigned(State& state, const AssignSources& message, absl::Time now) {
  Operation* operation = UpdateFor(state, message.key);
  if (operation == nullptr) return;
  NoteEvent(*operation, message.event);
  AssignUpdate(state, *state.FindBuffer(message.key.buffer), *operation, message, now);
}

void HandleFinished(State& state, const OperationFinished& message, absl::Time now) {
  state.membership.lineage = std::max(state.membership.lineage, message.lineage);
  Buffer* buffer = state.FindBuffer(message.key.buffer);
  Operation* operation = OperationFor(state, message.key);
  if (operation == nullptr) return;
  if (WaitsForCopy(*operation)) return HearEndWhileCopying(*buffer, *operation, message);
  NoteEvent(*operation, message.event);
  if (message.must_offload && message.status.ok() && IsEndOf(*operation, message) &&
      CanWaitForOffload(*operation)) {
    FindCopyFirst(*operation)->wanted = message.version;
    if (operation->kind() == OperationKind::kUnpublish) {
      operation->unpublish().phase = UnpublishPhase::kCopying;
    }
    return;
  }
  ConcludeAsReported(state, *buffer, *operation, message, now);
}

void HandleRoot(State& state, const RootKnown& message) {
  for (auto& [id, buffer] : state.buffers) {
    if (buffer.layout->digest() == message.shard.layout) {
      LearnRoot(state, buffer, message.version, message.shard.root);
      if (message.receipt.has_value()) LearnReceipt(buffer, message.version, *message.receipt);
    }
  }
}

void HandlePublicationRefused(State& state, const PublicationRefused& message, absl::Time now) {
  Buffer* buffer = state.FindBuffer(message.buffer);
  if (buffer == nullptr) return;
  LosePublication(state, *buffer, message.version, message.status, now);
  Pump(state, *buffer, now);
}

void ForgetSent(State& state) {
  for (auto& [id, buffer] : state.buffers) {
    buffer.announced = false;
    buffer.registered = false;
    for (Operation& operation : buffer.operations) {
      operation.start_sent = TH_MUTATE(kForgetUnfinishedOperations, false, operation.start_sent);
      operation.failure_sent = false;
      if (operation.kind() == OperationKind::kUpdate) operation.update().transports_sent = {};
    }
  }
}

void NoteOtherServer(State& state) {
  for (auto& [id, buffer] : state.buffers) {
    for (Operation& operation : buffer.operations) {
      if (operation.kind() == OperationKind::kPublish) operation.publish().outlived_server = true;
      if (operation.kind() != OperationKind::kUpdate) continue;
      UpdateOperation& update = operation.update();
      update.assignment = AssignmentId();
      update.held_assignment.reset();
      update.unsent_failures.clear();
    }
  }
}

void OrphanOperations(Buffer& buffer, const absl::Status& why, ErrorCode code) {
  for (Operation& operation : buffer.operations) {
    Conclude(operation, {.status = why, .code = code});
    operation.orphaned = true;
  }
  buffer.next_number = OperationNumber(1);
  buffer.last_finished.reset();
}

}  // namespace th::session
