#include "th/simulator/observed_session.h"

#include <utility>
#include <variant>

namespace th {
namespace {

absl::string_view NameOfEnd(const OperationFinished& finished) {
  if (finished.offload_first) {
    return finished.status.ok() ? "OperationFinished, offload first"
                                : "OperationFinished, offload first, an error";
  }
  if (!finished.status.ok()) return "OperationFinished, an error";
  return finished.outcome == UpdateOutcome::kNotAvailable ? "OperationFinished, not available"
                                                          : "OperationFinished, OK";
}

}  // namespace

ObservedSession::ObservedSession(SessionOptions options, SessionLimits limits,
                                 TransitionCoverage* coverage)
    : WorkerSession(std::move(options), limits) {
  if (coverage != nullptr) observer_.emplace(this, coverage);
}

// ---- verbs

absl::StatusOr<BufferId> ObservedSession::RegisterBuffer(std::string buffer_name, std::string form,
                                                         std::shared_ptr<const ShardLayout> layout,
                                                         absl::Time now) {
  const auto buffer = WorkerSession::RegisterBuffer(std::move(buffer_name), std::move(form),
                                                    std::move(layout), now);
  if (!buffer.ok()) return buffer;
  callers_ = *buffer;
  if (observer_.has_value()) observer_->Registered(*buffer);
  return buffer;
}

void ObservedSession::Leave(absl::Time now) {
  Watch({"", callers_}, [&] { WorkerSession::Leave(now); });
}

absl::Status ObservedSession::Publish(CallId call, BufferId buffer, PublishRequest request,
                                      absl::Time now) {
  return Verb({"verb Publish", buffer},
              [&] { return WorkerSession::Publish(call, buffer, std::move(request), now); });
}

absl::Status ObservedSession::Unpublish(CallId call, BufferId buffer, UnpublishRequest request,
                                        absl::Time now) {
  return Verb({"verb Unpublish", buffer},
              [&] { return WorkerSession::Unpublish(call, buffer, std::move(request), now); });
}

absl::Status ObservedSession::Update(CallId call, BufferId buffer, UpdateRequest request,
                                     absl::Time now) {
  return Verb({"verb Update", buffer},
              [&] { return WorkerSession::Update(call, buffer, std::move(request), now); });
}

absl::Status ObservedSession::Apply(CallId call, BufferId buffer, UpdateRequest request,
                                    absl::Time now) {
  return Verb({"verb Update", buffer},
              [&] { return WorkerSession::Apply(call, buffer, std::move(request), now); });
}

absl::Status ObservedSession::Reset(BufferId buffer, absl::Time now) {
  return Verb({"verb Reset", buffer}, [&] { return WorkerSession::Reset(buffer, now); });
}

absl::Status ObservedSession::CanRebind(BufferId buffer) {
  return Verb({"verb Rebind", buffer}, [&] { return WorkerSession::CanRebind(buffer); });
}

// ---- the server

ObservedSession::Event ObservedSession::EventOf(const ServerMessage& message) const {
  if (const auto* resolved = std::get_if<OperationResolved>(&message)) {
    const bool unpublish = resolved->version.sequence == VersionSequence();
    const bool another = resolved_.has_value() && resolved_->first == resolved->key &&
                         resolved_->second != resolved->version.sequence;
    return {another ? "OperationResolved, another" : "OperationResolved", resolved->key.buffer,
            unpublish ? OperationKind::kUnpublish : OperationKind::kUpdate};
  }
  if (const auto* assigned = std::get_if<AssignSources>(&message)) {
    return {"AssignSources", assigned->key.buffer, OperationKind::kUpdate};
  }
  if (std::holds_alternative<RootKnown>(message)) return {"RootKnown", callers_};
  if (const auto* finished = std::get_if<OperationFinished>(&message)) {
    return {NameOfEnd(*finished), finished->key.buffer, finished->kind};
  }
  if (const auto* refused = std::get_if<PublicationRefused>(&message)) {
    return {"PublicationRefused", refused->buffer};
  }
  if (std::holds_alternative<GroupChanged>(message)) return {"GroupChanged", callers_};
  return {"", callers_};
}

// In another generation of the group a number names another operation.
void ObservedSession::NoteGeneration(const ServerMessage& message) {
  GroupGeneration told = generation_;
  if (const auto* joined = std::get_if<Joined>(&message)) told = joined->group_generation;
  if (const auto* changed = std::get_if<GroupChanged>(&message)) told = changed->group_generation;
  if (std::exchange(generation_, told) != told) resolved_.reset();
}

void ObservedSession::HandleServerMessage(const ServerMessage& message, absl::Time now) {
  NoteGeneration(message);
  Watch(EventOf(message), [&] { WorkerSession::HandleServerMessage(message, now); });
  const auto* resolved = std::get_if<OperationResolved>(&message);
  if (resolved != nullptr && resolved->key.buffer == callers_) {
    resolved_ = {resolved->key, resolved->version.sequence};
  }
}

void ObservedSession::HandleStreamClosed(absl::Status why, absl::Time now) {
  Watch({"", callers_}, [&] { WorkerSession::HandleStreamClosed(std::move(why), now); });
}

// ---- the data plane

void ObservedSession::HandleAdmission(TransferId transfer, BufferId buffer,
                                      const Capability& capability, BufferGeneration generation,
                                      absl::Time now) {
  if (observer_.has_value()) readers_[transfer] = buffer;
  WorkerSession::HandleAdmission(transfer, buffer, capability, generation, now);
}

void ObservedSession::HandleReaderReleased(TransferId transfer, absl::Time now) {
  const auto reader = readers_.extract(transfer);
  const Event event =
      reader.empty() ? Event{"", callers_} : Event{"the last reader lets go", reader.mapped()};
  Watch(event, [&] { WorkerSession::HandleReaderReleased(transfer, now); });
}

void ObservedSession::HandleFirstWrite(BufferId buffer, absl::Time now) {
  if (observer_.has_value()) observer_->FirstWrite(buffer);
  WorkerSession::HandleFirstWrite(buffer, now);
}

void ObservedSession::HandleFillProgress(BufferId buffer, FillReport report, absl::Time now) {
  Watch({"progress", buffer, OperationKind::kUpdate},
        [&] { WorkerSession::HandleFillProgress(buffer, std::move(report), now); });
}

void ObservedSession::HandleFillComplete(BufferId buffer, Digest root, absl::Time now) {
  Watch({"the fill is complete", buffer, OperationKind::kUpdate},
        [&] { WorkerSession::HandleFillComplete(buffer, root, now); });
}

void ObservedSession::HandleFillFailed(BufferId buffer, absl::Status why, absl::Time now) {
  Watch({"the fill fails", buffer, OperationKind::kUpdate},
        [&] { WorkerSession::HandleFillFailed(buffer, std::move(why), now); });
}

void ObservedSession::HandleFillStopped(BufferId buffer, absl::Time now) {
  Watch({"the fill has stopped", buffer, OperationKind::kUpdate},
        [&] { WorkerSession::HandleFillStopped(buffer, now); });
}

void ObservedSession::HandleSourceFailed(BufferId buffer, AssignmentId assignment,
                                         BufferAddress source, SourceFailure failure,
                                         std::string detail, absl::Time now) {
  Watch({"a source fails", buffer, OperationKind::kUpdate}, [&] {
    WorkerSession::HandleSourceFailed(buffer, assignment, source, failure, std::move(detail), now);
  });
}

void ObservedSession::HandleSourceSuspected(BufferId buffer, AssignmentId assignment,
                                            BufferAddress source, std::string detail,
                                            absl::Time now) {
  Watch({"a source is suspected", buffer, OperationKind::kUpdate}, [&] {
    WorkerSession::HandleSourceSuspected(buffer, assignment, source, std::move(detail), now);
  });
}

void ObservedSession::HandleOffloadAllocated(BufferId copy, absl::Status status, absl::Time now) {
  Watch({"", copy}, [&] { WorkerSession::HandleOffloadAllocated(copy, std::move(status), now); });
}

void ObservedSession::HandleSealed(BufferId buffer, VersionSequence version,
                                   BufferGeneration generation, Digest root, absl::Time now) {
  Watch({"sealed", buffer},
        [&] { WorkerSession::HandleSealed(buffer, version, generation, root, now); });
}

// ---- time

void ObservedSession::HandleTick(absl::Time now) {
  Watch({"", callers_}, [&] { WorkerSession::HandleTick(now); });
}

std::optional<SessionOutput> ObservedSession::PollOutput() {
  auto output = WorkerSession::PollOutput();
  if (observer_.has_value()) observer_->Said(output.has_value() ? &*output : nullptr);
  return output;
}

}  // namespace th
