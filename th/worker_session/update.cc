#include "th/worker_session/update.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/protocol/answer.h"
#include "th/status/status_macros.h"
#include "th/worker_session/operation.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

absl::Status CanUpdate(const State& state, const Buffer& buffer, const UpdateRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, buffer, request.timeout));
  if (FindUpdate(buffer) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress already");
  }
  if (FindAskedUnpublish(buffer) != nullptr) {
    return absl::FailedPreconditionError("an unpublish of the buffer is in progress");
  }
  return absl::OkStatus();
}

// Two servers of one epoch, the state of one of which was lost, may give a number twice: the label
// is compared too.
bool IsNumberedAndLabelledAs(const VersionInfo& a, const VersionInfo& b) {
  return a.sequence == b.sequence && a.label == b.label;
}

bool HoldsPublished(const Buffer& buffer, const VersionInfo& version) {
  return buffer.contract.state() == BufferState::kPublished &&
         buffer.contract.version() == version.sequence && version.sequence != VersionSequence() &&
         buffer.version.label == version.label;
}

void SendReady(State& state, const Buffer& buffer, const Operation& operation, absl::Time now) {
  SendAbout(state, buffer, ReadyToFill{operation.key, buffer.contract.generation()}, now);
}

// Nothing to move: this rank has the version from before.
void ReportThereAlready(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  operation.update().phase = UpdatePhase::kHolding;
  operation.update().done_at = now;
  SendReady(state, buffer, operation, now);
  NoteRankDone(operation, now);
  SendRankDone(state, buffer, operation, now);
}

// Does nothing while an earlier drain lasts: the next pump tries again.
void TryBeginDrain(Buffer& buffer, Operation& operation, absl::Time now) {
  UpdateOperation& update = operation.update();
  if (buffer.contract.state() == BufferState::kDraining) return;
  update.before = {.version = buffer.version,
                   .publisher = buffer.publisher,
                   .group_committed = buffer.group_committed,
                   .published = buffer.contract.state() == BufferState::kPublished,
                   .undefined = buffer.contract.state() == BufferState::kUndefined,
                   .root = buffer.root,
                   .held = buffer.held};
  const absl::Status begun =
      buffer.contract.BeginUpdate(update.resolved->sequence, now, update.drain_timeout);
  if (!begun.ok()) {
    Conclude(operation, {.status = begun});
    return;
  }
  buffer.seal_by = now + update.drain_timeout;
  update.phase = UpdatePhase::kDraining;
}

// Where an earlier fill of the same version was left unfinished, its checked segments are kept.
void BeginFill(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  UpdateOperation& update = operation.update();
  const bool resumes =
      update.before.undefined && IsNumberedAndLabelledAs(update.before.version, *update.resolved);
  if (!TH_MUTATE(kResumeAnotherVersion, resumes,
                 (static_cast<void>(resumes), update.before.undefined))) {
    buffer.held.Clear();
    buffer.root.reset();
  }
  if (update.resolved_root.has_value()) buffer.root = update.resolved_root;
  buffer.version = *update.resolved;
  buffer.publisher = false;
  buffer.group_committed = false;
  update.phase = UpdatePhase::kFilling;
  update.fill_began = true;
  state.ReportServing(buffer);
  state.Emit(StartFill{buffer.id, operation.key, buffer.version, buffer.contract.generation(),
                       buffer.held, buffer.root,
                       TH_MUTATE(kCompareWhatMayBeWritten, update.before.published, true)});
  SendReady(state, buffer, operation, now);
  if (update.held_assignment.has_value()) {
    const AssignSources assigned = *std::exchange(update.held_assignment, std::nullopt);
    AssignUpdate(state, buffer, operation, assigned, now);
  }
}

// A streaming reader's buffer keeps nothing: it is writable and without a version again, whatever
// its one update came to.
void EmptyStreamingBuffer(Buffer& buffer) {
  if (buffer.contract.state() == BufferState::kUndefined) (void)buffer.contract.Reset();
  buffer.version = VersionInfo();
  buffer.root.reset();
  buffer.held.Clear();
}

// The update owned the buffer and ends without a result; if it ended during the drain, StartFill
// was never sent. The contract says what the buffer is now.
void GiveUpFilling(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  BeforeUpdate& before = operation.update().before;
  (void)buffer.contract.FillFailed();  // cannot fail: the state is filling
  // First the readers are cut that were admitted to the new version: it does not come, and they
  // would take the old bytes for it.
  std::vector<TransferId> to_cut = buffer.contract.Advance(now).to_cut;
  if (!to_cut.empty()) state.Emit(CutReaders{buffer.id, std::move(to_cut)});
  if (!operation.update().wrote) {
    buffer.version = before.version;
    buffer.publisher = before.publisher;
    buffer.group_committed = before.group_committed;
    buffer.root = before.root;
    buffer.held = before.held;
    // The fill has stopped the summing of the old content: without its sums, which begin again
    // here, the publisher's readers never complete.
    const bool named = buffer.contract.state() == BufferState::kPublished &&
                       buffer.version.sequence != VersionSequence();
    if (named && buffer.publisher && !buffer.root.has_value()) {
      state.ReportServing(buffer);
      state.Emit(StartSealing{buffer.id, buffer.version.sequence, buffer.contract.generation()});
    }
  }
  if (buffer.role == BufferRole::kStreaming) EmptyStreamingBuffer(buffer);
  Reannounce(state, buffer, now);
}

void Commit(Buffer& buffer) {
  if (buffer.role == BufferRole::kStreaming) {
    (void)buffer.contract.FillFailed();  // cannot fail: the state is filling
    return EmptyStreamingBuffer(buffer);
  }
  (void)buffer.contract.FillComplete();  // cannot fail: the state is filling
  buffer.group_committed = true;
  buffer.held.Clear();
  buffer.lost.reset();
}

// A staged copy gets its memory only when there is something to put into it.
bool HasMemory(const State& state, const Buffer& buffer) {
  const HostCopy* copy = state.FindHostCopy(buffer.id);
  return copy == nullptr || copy->memory == CopyMemory::kThere;
}

// The staged copy's original has the version already.
bool OriginalHolds(const State& state, const Buffer& buffer, const VersionInfo& version) {
  const Buffer* original = OriginalOf(state, buffer.id);
  return original != nullptr && HoldsPublished(*original, version);
}

// Why the server's word that the update goes to this version cannot be about it; OK: it can.
absl::Status CheckAnswer(const Operation& operation, const VersionInfo& answer) {
  const std::string why = WhyNoAnswer(operation.start, answer);
  if (why.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the server's answer ", why, "; this rank has not moved, call again"));
}

absl::Status StagedIsGone(const VersionInfo& staged, NotAvailableReason reason) {
  return absl::AbortedError(absl::StrCat(staged.ToString(), ", which is staged here, ",
                                         reason == NotAvailableReason::kWithdrawn
                                             ? "was withdrawn by a roll-back since"
                                             : "is not available any more",
                                         "; stage another one"));
}

void PumpOpen(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  UpdateOperation& update = operation.update();
  if (update.phase == UpdatePhase::kBeginning && HasMemory(state, buffer)) {
    TryBeginDrain(buffer, operation, now);
  }
  if (update.phase == UpdatePhase::kDraining && buffer.contract.state() == BufferState::kFilling) {
    BeginFill(state, buffer, operation, now);
  }
}

void StopFilling(State& state, Buffer& buffer, Operation& operation) {
  operation.update().phase = UpdatePhase::kStopping;
  operation.update().sources.clear();
  state.Emit(StopFill{buffer.id, operation.key});
}

void PumpConcluded(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  UpdateOperation& update = operation.update();
  const bool good = operation.verdict->status.ok();
  if (!good && !operation.verdict->server_knows) SendRankFailed(state, buffer, operation, now);
  switch (update.phase) {
    case UpdatePhase::kAsked:
    case UpdatePhase::kBeginning:
    case UpdatePhase::kHolding:
      break;
    case UpdatePhase::kDraining:
      if (buffer.contract.state() == BufferState::kDraining) return;
      GiveUpFilling(state, buffer, operation, now);
      break;
    case UpdatePhase::kFilling:
      return StopFilling(state, buffer, operation);
    case UpdatePhase::kShardDone:
      if (!good) return StopFilling(state, buffer, operation);
      Commit(buffer);
      break;
    case UpdatePhase::kStopping:
      if (!update.fill_stopped) return;
      GiveUpFilling(state, buffer, operation, now);
      break;
  }
  End(state, buffer, operation, now);
}

}  // namespace

absl::string_view UpdatePhaseName(UpdatePhase phase) {
  static constexpr absl::string_view kNames[] = {
      "asked",      "waiting for the buffer", "draining", "filling",
      "shard done", "there already",          "stopping"};
  return kNames[static_cast<size_t>(phase)];
}

absl::Status BeginUpdate(State& state, Buffer& buffer, CallId call, UpdateRequest request,
                         absl::Time now) {
  const absl::Status can = CanUpdate(state, buffer, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, can);
  StartOperation start;
  start.kind = OperationKind::kUpdate;
  start.timeout = request.timeout;
  start.selector = std::move(request.selector);
  start.floor = request.floor;
  start.keep_retained = request.on_retention == OnRetention::kOffload;
  start.when_seeding = request.when_seeding;
  Operation& operation = Begin(buffer, call, std::move(start), now);
  operation.update().drain_timeout = std::min(request.drain_timeout, request.timeout);
  operation.update().copy.timeout = request.offload_timeout;
  return absl::OkStatus();
}

void StopFillOf(State& state, const Buffer& buffer, const Operation& operation) {
  if (operation.kind() != OperationKind::kUpdate) return;
  const UpdatePhase phase = operation.update().phase;
  const bool goes_on = phase == UpdatePhase::kFilling || phase == UpdatePhase::kShardDone;
  if (goes_on) state.Emit(StopFill{buffer.id, operation.key});
}

void EndStreamingUpdate(State& state, Buffer& buffer, const absl::Status& why, absl::Time now) {
  Operation* update = FindUpdate(buffer);
  if (update == nullptr) return;
  Conclude(*update, {.status = why});
  const bool failed = !update->verdict->status.ok();
  if (failed && !update->verdict->server_knows) SendRankFailed(state, buffer, *update, now);
  if (buffer.contract.state() == BufferState::kFilling) GiveUpFilling(state, buffer, *update, now);
  End(state, buffer, *update, now);
}

void PumpUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  if (operation.detached) return;
  if (!operation.verdict.has_value()) PumpOpen(state, buffer, operation, now);
  if (operation.verdict.has_value()) PumpConcluded(state, buffer, operation, now);
}

void ResolveUpdate(State& state, Buffer& buffer, Operation& operation,
                   const OperationResolved& resolved, absl::Time now) {
  UpdateOperation& update = operation.update();
  if (operation.verdict.has_value()) return;
  if (update.resolved.has_value()) {
    if (IsNumberedAndLabelledAs(*update.resolved, resolved.version)) {
      if (resolved.root) LearnRoot(state, buffer, resolved.version.sequence, *resolved.root);
      if (resolved.receipt) KeepReceipt(buffer, resolved.version.sequence, *resolved.receipt);
      // The server refused what was reported before it had begun the operation.
      return ResendUpdate(state, buffer, operation, now);
    }
    Conclude(operation, {.status = absl::AbortedError(absl::StrCat(
                             "the server resolved this update as ", resolved.version.ToString(),
                             ", after ", update.resolved->ToString()))});
    return;
  }
  if (absl::Status answer = CheckAnswer(operation, resolved.version); !answer.ok()) {
    Conclude(operation, {.status = std::move(answer)});
    return;
  }
  update.resolved = resolved.version;
  update.resolved_root = resolved.root;
  if (resolved.receipt) KeepReceipt(buffer, resolved.version.sequence, *resolved.receipt);
  update.resolved_at = now;
  if (HoldsPublished(buffer, resolved.version)) {
    ReportThereAlready(state, buffer, operation, now);
  } else {
    update.phase = UpdatePhase::kBeginning;
  }
}

void AssignUpdate(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
                  absl::Time now) {
  UpdateOperation& update = operation.update();
  const auto& held = update.held_assignment;
  const AssignmentId newest = held.has_value() ? held->assignment : update.assignment;
  if (operation.verdict.has_value() || !update.resolved.has_value() ||
      update.resolved->sequence != assigned.version || assigned.assignment <= newest) {
    return;
  }
  if (update.phase == UpdatePhase::kBeginning || update.phase == UpdatePhase::kDraining) {
    update.held_assignment = assigned;
    return;
  }
  if (update.phase == UpdatePhase::kFilling) PullFrom(state, buffer, operation, assigned, now);
}

void PullFrom(State& state, Buffer& buffer, Operation& operation, const AssignSources& assigned,
              absl::Time now) {
  UpdateOperation& update = operation.update();
  update.assignment = assigned.assignment;
  update.sources.clear();
  SetSources set{buffer.id, operation.key, assigned.assignment, {}};
  for (const AssignedSource& source : assigned.sources) {
    if (set.sources.size() >= kMaxSourcesOfAssignment) break;
    if (!update.sources.emplace(source.buffer, source).second) continue;
    set.sources.push_back(source);
  }
  if (!set.sources.empty()) {
    // The server moves readers by what they get: it is told soon what that is from these sources.
    const absl::Time soon = now + std::min(kFirstProgress, state.membership.progress_interval);
    const bool first = update.sourced_at == absl::InfiniteFuture();
    update.next_progress = first ? soon : std::min(update.next_progress, soon);
    if (first) update.sourced_at = now;
  }
  update.why_no_source = set.sources.empty() ? assigned.why_empty : "";
  state.Emit(std::move(set));
}

void LearnRoot(State& state, Buffer& buffer, VersionSequence version, const Digest& root) {
  Operation* update = FindUpdate(buffer);
  if (update != nullptr && update->update().resolved.has_value() &&
      update->update().resolved->sequence == version) {
    update->update().resolved_root = root;
  }
  const BufferState contract = buffer.contract.state();
  const bool here = buffer.contract.version() == version && version != VersionSequence();
  const bool receives = contract == BufferState::kFilling || contract == BufferState::kUndefined;
  if (!here || !receives || buffer.root == root) return;
  buffer.root = root;
  if (contract == BufferState::kFilling) state.Emit(SetRoot{buffer.id, version, root});
}

void LearnReceipt(Buffer& buffer, VersionSequence version, const RootReceipt& receipt) {
  const Operation* update = FindUpdate(buffer);
  const bool moves_there = update != nullptr && update->update().resolved.has_value() &&
                           update->update().resolved->sequence == version;
  const bool has_it = buffer.version.sequence == version && version != VersionSequence();
  if (moves_there || has_it) KeepReceipt(buffer, version, receipt);
}

Verdict JudgeFinishedUpdate(const State& state, const Buffer& buffer, const Operation& operation,
                            const OperationFinished& finished) {
  Verdict verdict{.status = finished.status,
                  .outcome = finished.outcome,
                  .not_available = finished.not_available,
                  .version = finished.version,
                  .server_knows = true,
                  .site_copy = finished.site_copy};
  if (!finished.status.ok()) return verdict;
  const UpdateOperation& update = operation.update();
  const bool filling = update.phase == UpdatePhase::kFilling;
  if (finished.outcome == UpdateOutcome::kNotAvailable) {
    if (filling || update.phase == UpdatePhase::kShardDone) {
      verdict.status = absl::UnavailableError("the version is not available any more");
    } else if (update.applies.has_value()) {
      verdict.status = StagedIsGone(*update.applies, finished.not_available);
    }
    return verdict;
  }
  verdict.status = CheckAnswer(operation, finished.version);
  if (!verdict.status.ok()) return verdict;
  const bool resolved_so =
      update.resolved.has_value() && IsNumberedAndLabelledAs(*update.resolved, finished.version);
  const bool shard_done =
      TH_MUTATE(kCommitBeforeTheShardIsDone, update.phase == UpdatePhase::kShardDone,
                (filling || update.phase == UpdatePhase::kShardDone));
  const bool here = HoldsPublished(buffer, finished.version) || (resolved_so && shard_done) ||
                    (finished.outcome == UpdateOutcome::kAlreadyThere &&
                     OriginalHolds(state, buffer, finished.version));
  if (!here) {
    verdict.status = absl::InternalError(
        absl::StrCat("the server says that the group has moved to ", finished.version.ToString(),
                     ", but this rank is ", std::string(UpdatePhaseName(update.phase))));
  }
  return verdict;
}

void WantSiteCopy(State& state, const Operation& operation, const OperationFinished& answer) {
  const bool answers = answer.status.ok() && answer.outcome == UpdateOutcome::kNotAvailable;
  if (!answers || operation.verdict.has_value() || operation.orphaned) return;
  state.site_copies_wanted.push_back({.original = operation.key.buffer,
                                      .number = operation.key.number,
                                      .version = answer.version,
                                      .timeout = operation.start.timeout});
}

void ResendUpdate(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  const UpdatePhase phase = operation.update().phase;
  const bool done = phase == UpdatePhase::kHolding || phase == UpdatePhase::kShardDone;
  if (operation.verdict.has_value() || !(done || phase == UpdatePhase::kFilling)) return;
  SendReady(state, buffer, operation, now);
  for (SourceFailed& failed : std::exchange(operation.update().unsent_failures, {})) {
    SendAbout(state, buffer, std::move(failed), now);
  }
  if (done) SendRankDone(state, buffer, operation, now);
}

}  // namespace th::session
