#include "th/worker_session/operation.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/worker_session/announcement.h"
#include "th/worker_session/copy_end.h"

namespace th::session {
namespace {

// Operations that the caller waits for.
size_t PendingOf(const Buffer& buffer) {
  return static_cast<size_t>(std::count_if(buffer.operations.begin(), buffer.operations.end(),
                                           [](const Operation& o) { return !o.detached; }));
}

size_t PendingOf(const State& state) {
  size_t count = 0;
  for (const auto& [id, buffer] : state.buffers) count += PendingOf(buffer);
  return count;
}

ErrorCode CodeOfUpdate(const absl::Status& status, const UpdateOperation& update) {
  const bool out_of_sources = status.code() == absl::StatusCode::kDeadlineExceeded ||
                              status.code() == absl::StatusCode::kUnavailable;
  const auto& failed = update.failed_sources;
  if (out_of_sources && !failed.empty() && failed.back().failure == SourceFailure::kStalled) {
    return ErrorCode::kUpdateStalled;
  }
  return status.code() == absl::StatusCode::kDeadlineExceeded ? ErrorCode::kUpdateDeadline
                                                              : ErrorCode::kUpdateFailed;
}

ErrorCode CodeOfPublish(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorCode::kPublishDeadline;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return ErrorCode::kPublishRefused;
    default:
      return ErrorCode::kPublishFailed;
  }
}

ErrorCode CodeOf(const Operation& operation) {
  const Verdict& verdict = *operation.verdict;
  if (verdict.code.has_value()) return *verdict.code;
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return CodeOfPublish(verdict.status);
    case OperationKind::kUnpublish:
      return ErrorCode::kUnpublishFailed;
    case OperationKind::kUpdate:
      return CodeOfUpdate(verdict.status, operation.update());
  }
  return ErrorCode::kUpdateFailed;
}

// The version as the caller knows it: its label, or what it asked for.
std::string VersionText(const Operation& operation) {
  const UpdateOperation* update = operation.if_update();
  const bool resolved = update != nullptr && update->resolved.has_value();
  const VersionInfo& version = resolved ? *update->resolved : operation.verdict->version;
  if (!version.label.empty()) return version.label.text();
  if (!operation.start.label.empty()) return operation.start.label.text();
  return operation.kind() == OperationKind::kUpdate ? ToString(operation.start.selector) : "";
}

std::string Aftermath(const State& state, const Buffer& buffer, const Operation& operation) {
  if (buffer.role == BufferRole::kStaged) {
    const Buffer* original = OriginalOf(state, buffer.id);
    const bool holds = original != nullptr && original->contract.state() == BufferState::kPublished;
    return absl::StrCat("nothing is staged, buffer unchanged",
                        holds ? absl::StrCat(", still ", original->version.label.text()) : "");
  }
  if (buffer.role == BufferRole::kStreaming) return "";  // its caller has no buffer
  switch (buffer.contract.state()) {
    case BufferState::kUndefined:
      return "buffer undefined, do not serve";
    case BufferState::kPublished:
      return operation.kind() == OperationKind::kUpdate
                 ? absl::StrCat("buffer unchanged, still ", buffer.version.label.text())
                 : "";
    case BufferState::kWritable:
      return operation.kind() == OperationKind::kUpdate ? "buffer unchanged" : "buffer writable";
    default:
      return "";
  }
}

uint64_t BytesWanted(const Buffer& buffer) {
  uint64_t bytes = buffer.layout->bytes();
  for (const SegmentRange& range : buffer.unwanted.ranges()) {
    for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
      bytes -= buffer.layout->SegmentLength(segment);
    }
  }
  return bytes;
}

absl::Status ErrorFor(const State& state, const Buffer& buffer, const Operation& operation) {
  const Verdict& verdict = *operation.verdict;
  if (verdict.status.ok()) return absl::OkStatus();
  ErrorText text = state.Error(CodeOf(operation));
  text.version = VersionText(operation);
  if (const UpdateOperation* update = operation.if_update()) {
    if (update->fill_began) text.received = {update->bytes_held, BytesWanted(buffer)};
    text.failed_sources = update->failed_sources;
  }
  if (text.code != ErrorCode::kUpdateStalled) text.cause = std::string(verdict.status.message());
  text.aftermath = Aftermath(state, buffer, operation);
  text.operation = operation.key.number;
  text.event = operation.event;
  return ComposeStatus(verdict.status.code(), text);
}

uint32_t ReadersCut(const Operation& operation) {
  const UnpublishOperation* unpublish = operation.if_unpublish();
  return unpublish == nullptr ? 0 : unpublish->readers_cut;
}

std::variant<PublishOperation, UnpublishOperation, UpdateOperation> PartOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPublish:
      return PublishOperation();
    case OperationKind::kUnpublish:
      return UnpublishOperation();
    case OperationKind::kUpdate:
      break;
  }
  return UpdateOperation();
}

absl::Duration Between(absl::Time from, absl::Time to) {
  if (from == absl::InfiniteFuture() || to == absl::InfiniteFuture()) return absl::ZeroDuration();
  return std::max(to - from, absl::ZeroDuration());
}

// Into what has fields of these names: the caller's result, or what the server is told.
template <typename Phases>
void SetPhasesUntilDone(const Operation& operation, absl::Time now, Phases& phases) {
  const UpdateOperation& update = operation.update();
  phases.resolve = Between(operation.started, std::min(update.resolved_at, now));
  phases.queue = Between(update.resolved_at, std::min(update.sourced_at, now));
  phases.transfer = Between(update.sourced_at, std::min(update.received_at, now));
  phases.verify = Between(update.received_at, std::min(update.done_at, now));
}

void SetPhases(const Operation& operation, absl::Time now, OperationDone& done) {
  if (operation.kind() != OperationKind::kUpdate) {
    done.resolve = now - operation.started;
    return;
  }
  SetPhasesUntilDone(operation, now, done);
  done.apply = Between(operation.update().done_at, now);
}

}  // namespace

absl::Status CanBegin(const State& state, const Buffer& buffer, absl::Duration timeout) {
  TH_RETURN_IF_ERROR(state.CheckMembership());
  if (!buffer.refused.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server refused the buffer: ", std::string(buffer.refused.message())));
  }
  if (buffer.role == BufferRole::kStreaming &&
      buffer.received_in != state.membership.group_generation) {
    return absl::AbortedError("the group counts anew since this receive began; ask again");
  }
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout has to be positive");
  }
  if (PendingOf(buffer) >= kMaxOperationsAhead) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxOperationsAhead, " operations of this buffer are unfinished; wait for one to end"));
  }
  if (buffer.operations.size() >= kMaxOperationsUnsent) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server is away and has ", buffer.operations.size(),
                     " operations of this buffer to hear of; wait for it to come back"));
  }
  if (PendingOf(state) >= state.limits.max_pending_operations) {
    return absl::ResourceExhaustedError(absl::StrCat(state.limits.max_pending_operations,
                                                     " operations of this worker are unfinished"));
  }
  return absl::OkStatus();
}

Operation& Begin(Buffer& buffer, CallId call, StartOperation start, absl::Time now) {
  Operation& operation = buffer.operations.emplace_back();
  operation.key = {buffer.id, buffer.next_number};
  buffer.next_number = buffer.next_number.Next();
  operation.call = call;
  operation.started = now;
  operation.timeout_at = now + std::min(start.timeout, kMaxOperationTimeout);
  operation.part = PartOf(start.kind);
  operation.start = std::move(start);
  operation.start.key = operation.key;
  return operation;
}

void SendAbout(State& state, const Buffer& buffer, WorkerMessage message, absl::Time now) {
  if (buffer.registered) state.Send(std::move(message), now);
}

bool MayBeAskedAbout(const State& state, const Buffer& buffer) {
  if (buffer.registered) return true;
  return buffer.role == BufferRole::kStreaming && buffer.announced && !buffer.ready_reported &&
         state.options.ranks == 1;
}

void SendOrAnnounce(State& state, Buffer& buffer, WorkerMessage message, absl::Time now) {
  buffer.announce_again |= !buffer.registered;
  SendAbout(state, buffer, std::move(message), now);
}

void SendStart(State& state, const Buffer& buffer, const Operation& operation, absl::Time now) {
  StartOperation start = operation.start;
  start.timeout = std::clamp(operation.timeout_at - now, absl::Milliseconds(1), start.timeout);
  start.group_generation = state.membership.group_generation;
  const UpdateOperation* update = operation.if_update();
  start.resolved = update != nullptr ? update->resolved : std::nullopt;
  start.keep_retained &= !HasBegunToDrain(operation) && !start.resolved.has_value();
  if (MayBeAskedAbout(state, buffer)) state.Send(std::move(start), now);
}

void NoteRankDone(Operation& operation, absl::Time now) {
  if (operation.kind() == OperationKind::kUpdate) {
    SetPhasesUntilDone(operation, now, operation.cost);
  } else {
    operation.cost.queue = Between(operation.started, now);
  }
}

void SendRankDone(State& state, const Buffer& buffer, const Operation& operation, absl::Time now) {
  SendAbout(state, buffer, RankDone{operation.key, ReadersCut(operation), operation.cost}, now);
}

void NoteEvent(Operation& operation, EventId event) {
  if (!event.empty()) operation.event = event;
}

void SendRankFailed(State& state, const Buffer& buffer, Operation& operation, absl::Time now) {
  if (!operation.start_sent || operation.orphaned || operation.failure_sent) return;
  if (!state.joined() || !buffer.registered) return;
  operation.failure_sent = true;
  const UpdateOperation* update = operation.if_update();
  const bool undefined = update != nullptr && (update->wrote || update->before.undefined);
  state.Send(RankFailed{operation.key, operation.verdict->status, undefined}, now);
}

void Conclude(Operation& operation, Verdict verdict) {
  if (!operation.verdict.has_value()) {
    operation.verdict = std::move(verdict);
  } else if (verdict.server_knows) {
    operation.verdict->server_knows = true;
  }
}

void End(State& state, Buffer& buffer, Operation& operation, absl::Time now) {
  const Verdict& verdict = *operation.verdict;
  OperationDone done;
  done.call = operation.call;
  done.buffer = buffer.id;
  done.kind = operation.kind();
  done.status = ErrorFor(state, buffer, operation);
  done.outcome = verdict.outcome;
  done.not_available = verdict.not_available;
  done.version = verdict.version;
  done.buffer_undefined = buffer.role != BufferRole::kStaged &&
                          operation.kind() == OperationKind::kUpdate &&
                          buffer.contract.state() == BufferState::kUndefined;
  done.readers_cut = ReadersCut(operation);
  done.event = operation.event;
  SetPhases(operation, now, done);
  NoteCopyEnd(state, buffer, done);
  RememberFinished(buffer, operation, verdict);
  operation.detached = true;
  // A failed publish is kept small for a server that is away: it was not published and never will
  // be.
  if (!verdict.status.ok() && BytesOf(operation.start.attributes) > kMaxAttributesUnsent) {
    operation.start.attributes.clear();
  }
  state.ReportServing(buffer);
  const HostCopy* copy = state.FindHostCopy(buffer.id);
  const bool has_caller = copy == nullptr || copy->kept() == nullptr;
  if (has_caller) state.Emit(std::move(done));
}

void RememberFinished(Buffer& buffer, const Operation& operation, const Verdict& verdict) {
  if (operation.orphaned) return;
  auto& last = buffer.last_finished;
  if (last.has_value() && last->number > operation.key.number) return;
  // One that waits for a copy may end without it.
  const bool waited = last.has_value() && last->must_offload;
  if (last.has_value() && last->number == operation.key.number && !waited) return;
  last = FinishedOperation{.number = operation.key.number,
                           .kind = operation.kind(),
                           .status = verdict.status,
                           .outcome = verdict.outcome,
                           .not_available = verdict.not_available,
                           .version = verdict.version,
                           .must_offload = verdict.must_offload,
                           .site_copy = verdict.site_copy};
}

void AskAgain(Buffer& buffer, Operation& operation, absl::Time now) {
  operation.key.number = buffer.next_number;
  buffer.next_number = buffer.next_number.Next();
  operation.start.key = operation.key;
  operation.timeout_at = now + std::min(operation.start.timeout, kMaxOperationTimeout);
  operation.start_sent = false;
  operation.failure_sent = false;
}

void Reannounce(State& state, Buffer& buffer, absl::Time now) {
  SendOrAnnounce(state, buffer, RegisterBuffer{AnnouncementOf(buffer)}, now);
}

absl::Status CancelledByCaller() { return absl::CancelledError("the caller cancelled it"); }

absl::Status RefuseVerb(const State& state, ErrorCode code, const absl::Status& why) {
  ErrorText text = state.Error(code);
  text.cause = std::string(why.message());
  return ComposeStatus(why.code(), text);
}

}  // namespace th::session
