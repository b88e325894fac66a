#include "th/worker_session/worker_session.h"

#include <algorithm>
#include <utility>

#include "th/worker_session/admissions.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/commands.h"
#include "th/worker_session/fill_reports.h"
#include "th/worker_session/membership.h"
#include "th/worker_session/offload.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/phase_names.h"
#include "th/worker_session/publish.h"
#include "th/worker_session/session_state.h"
#include "th/worker_session/staging.h"
#include "th/worker_session/streaming.h"
#include "th/worker_session/unpublish.h"
#include "th/worker_session/update.h"

namespace th {

struct WorkerSession::Impl {
  session::State state;

  // What comes last in every event.
  void Finish(absl::Time now) {
    session::PumpOffloads(state, now);
    session::PumpStaged(state, now);
    session::FinishEnding(state, now);
  }
  // Runs `event` on the buffer, then every step that it made possible.
  template <typename Event>
  void OnBuffer(BufferId id, absl::Time now, Event event) {
    session::Buffer* buffer = state.FindBuffer(id);
    if (buffer == nullptr) return;
    event(*buffer);
    session::Pump(state, *buffer, now);
    Finish(now);
  }
  template <typename Verb>
  absl::Status Call(BufferId id, absl::Time now, Verb verb) {
    session::Buffer* buffer = state.FindBuffer(id);
    if (buffer == nullptr) return absl::InvalidArgumentError("no such buffer");
    const absl::Status status = verb(*buffer);
    if (status.ok()) {
      session::Pump(state, *buffer, now);
      Finish(now);
    }
    return status;
  }
};

namespace {

// One message of the server, once a member.
struct MessageHandler {
  session::State& state;
  absl::Time now;

  void operator()(const Joined& message) { session::HandleJoined(state, message, now); }
  void operator()(const Refused& message) { session::HandleRefused(state, message, now); }
  void operator()(const LayoutWanted& message) { session::HandleLayoutWanted(state, message, now); }
  void operator()(const BufferRegistered& message) {
    session::HandleBufferRegistered(state, message, now);
  }
  void operator()(const OperationResolved& message) {
    session::HandleResolved(state, message, now);
  }
  void operator()(const AssignSources& message) { session::HandleAssigned(state, message, now); }
  void operator()(const RootKnown& message) { session::HandleRoot(state, message); }
  void operator()(const OperationFinished& message) {
    session::HandleFinished(state, message, now);
  }
  void operator()(const PublicationRefused& message) {
    session::HandlePublicationRefused(state, message, now);
  }
  void operator()(const GroupChanged& message) { session::HandleGroupChanged(state, message, now); }
  void operator()(const CommandFinished& message) {
    session::HandleCommandFinished(state, message);
  }
  void operator()(const OffloadReleased& message) {
    session::HandleOffloadReleased(state, message);
  }
  void operator()(const Alive&) {}  // that it was said is all
};

bool OpensTheMembership(const ServerMessage& message) {
  return std::holds_alternative<Joined>(message) || std::holds_alternative<Refused>(message);
}

}  // namespace

WorkerSession::WorkerSession(SessionOptions options, SessionLimits limits)
    : impl_(std::make_unique<Impl>()) {
  impl_->state.options = std::move(options);
  impl_->state.limits = limits;
}

WorkerSession::~WorkerSession() = default;

void WorkerSession::Start(absl::Time now) { session::StartLink(impl_->state, now); }

void WorkerSession::Leave(absl::Time now, absl::Duration grace) {
  session::LeaveSession(impl_->state, grace, now);
}

absl::Status WorkerSession::Preempt(absl::Duration notice, absl::Time now) {
  return session::GiveNotice(impl_->state, notice, now);
}

// ---- verbs

absl::StatusOr<BufferId> WorkerSession::RegisterBuffer(std::string buffer_name, std::string form,
                                                       std::shared_ptr<const ShardLayout> layout,
                                                       absl::Time now) {
  return session::AddBuffer(impl_->state, std::move(buffer_name), std::move(form),
                            std::move(layout), now);
}

StreamTicket WorkerSession::BeginStream(absl::Time now) {
  return session::TakeStreamTicket(impl_->state, now);
}

absl::StatusOr<BufferId> WorkerSession::RegisterStreamBuffer(
    const StreamTicket& ticket, std::string form, std::shared_ptr<const ShardLayout> layout,
    const SegmentSet& wanted, absl::Time now) {
  return session::RegisterStream(impl_->state, ticket, std::move(form), std::move(layout), wanted,
                                 now);
}

void WorkerSession::FailStream(const StreamTicket& ticket, std::string form,
                               const absl::Status& why, absl::Time now) {
  session::FailStream(impl_->state, ticket, std::move(form), why, now);
  impl_->Finish(now);
}

void WorkerSession::EndStream(BufferId buffer, const absl::Status& why, absl::Time now) {
  session::EndStream(impl_->state, buffer, why, now);
  impl_->Finish(now);
}

absl::Status WorkerSession::UnregisterBuffer(BufferId buffer, absl::Time now) {
  session::DiscardStaged(impl_->state, buffer, now);
  const absl::Status removed = session::RemoveBuffer(impl_->state, buffer, now);
  impl_->Finish(now);
  return removed;
}

absl::Status WorkerSession::Publish(CallId call, BufferId buffer, PublishRequest request,
                                    absl::Time now) {
  return impl_->Call(buffer, now, [&](session::Buffer& found) {
    return session::BeginPublish(impl_->state, found, call, std::move(request), now);
  });
}

absl::Status WorkerSession::Unpublish(CallId call, BufferId buffer, UnpublishRequest request,
                                      absl::Time now) {
  return impl_->Call(buffer, now, [&](session::Buffer& found) {
    return session::BeginUnpublish(impl_->state, found, call, request, now);
  });
}

absl::Status WorkerSession::Update(CallId call, BufferId buffer, UpdateRequest request,
                                   absl::Time now) {
  return impl_->Call(buffer, now, [&](session::Buffer& found) {
    return session::BeginUpdate(impl_->state, found, call, std::move(request), now);
  });
}

absl::StatusOr<BufferId> WorkerSession::Stage(CallId call, BufferId buffer, UpdateRequest request,
                                              absl::Time now) {
  session::Buffer* original = impl_->state.FindBuffer(buffer);
  if (original == nullptr) return absl::InvalidArgumentError("no such buffer");
  absl::StatusOr<BufferId> copy =
      session::BeginStage(impl_->state, *original, call, std::move(request), now);
  impl_->Finish(now);
  return copy;
}

absl::Status WorkerSession::Apply(CallId call, BufferId buffer, UpdateRequest request,
                                  absl::Time now) {
  return impl_->Call(buffer, now, [&](session::Buffer& found) {
    return session::BeginApply(impl_->state, found, call, std::move(request), now);
  });
}

void WorkerSession::DiscardStaged(BufferId buffer, absl::Time now) {
  session::DiscardStaged(impl_->state, buffer, now);
  impl_->Finish(now);
}

VersionInfo WorkerSession::staged_version(BufferId buffer) const {
  return session::StagedVersion(impl_->state, buffer);
}

absl::Status WorkerSession::Reset(BufferId buffer, absl::Time now) {
  return impl_->Call(buffer, now, [&](session::Buffer& found) {
    return session::ResetBuffer(impl_->state, found, now);
  });
}

absl::Status WorkerSession::CanRebind(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  if (found == nullptr) return absl::InvalidArgumentError("no such buffer");
  return session::CanRebindBuffer(impl_->state, *found);
}

absl::Status WorkerSession::Command(CallId call, RunCommand command, absl::Time now) {
  return session::BeginCommand(impl_->state, call, std::move(command), now);
}

// ---- the control stream

void WorkerSession::HandleStreamOpen(absl::Time now) { session::NoteStreamOpen(impl_->state, now); }

void WorkerSession::HandleStreamClosed(absl::Status why, absl::Time now) {
  session::NoteStreamClosed(impl_->state, why, now);
}

void WorkerSession::HandleServerMessage(const ServerMessage& message, absl::Time now) {
  if (!impl_->state.joined() && !OpensTheMembership(message)) return;
  impl_->state.link.heard_at = now;
  impl_->state.link.asked_at = absl::InfinitePast();
  std::visit(MessageHandler{impl_->state, now}, message);
  impl_->Finish(now);
}

// ---- readers of our buffers

void WorkerSession::HandleAdmission(TransferId transfer, BufferId buffer,
                                    const Capability& capability, BufferGeneration generation,
                                    absl::Time now) {
  session::AskAdmission(impl_->state, transfer, buffer, capability, generation, now);
}

void WorkerSession::HandleReaderBytes(TransferId transfer, absl::Time now) {
  session::NoteReaderBytes(impl_->state, transfer, now);
}

void WorkerSession::HandleReaderReleased(TransferId transfer, absl::Time now) {
  session::Buffer* buffer = session::ReleaseReader(impl_->state, transfer);
  if (buffer != nullptr) impl_->OnBuffer(buffer->id, now, [](session::Buffer&) {});
  if (buffer == nullptr) impl_->Finish(now);
}

// ---- our fills

void WorkerSession::HandleFirstWrite(BufferId buffer, absl::Time now) {
  impl_->OnBuffer(buffer, now, [](session::Buffer& found) { session::NoteFirstWrite(found); });
}

void WorkerSession::HandleFillProgress(BufferId buffer, FillReport report, absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::NoteProgress(impl_->state, found, std::move(report), now);
  });
}

void WorkerSession::HandleAllReceived(BufferId buffer, absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::NoteAllReceived(impl_->state, found, now);
  });
}

void WorkerSession::HandleFillCost(BufferId buffer, FillCost cost) {
  session::Buffer* const found = impl_->state.FindBuffer(buffer);
  if (found != nullptr) session::NoteFillCost(*found, std::move(cost));
}

void WorkerSession::HandleFillComplete(BufferId buffer, Digest root, absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::NoteFillComplete(impl_->state, found, root, now);
  });
}

void WorkerSession::HandleFillFailed(BufferId buffer, absl::Status why, absl::Time now) {
  impl_->OnBuffer(buffer, now,
                  [&](session::Buffer& found) { session::NoteFillFailed(found, why); });
}

void WorkerSession::HandleFillStopped(BufferId buffer, absl::Time now) {
  impl_->OnBuffer(buffer, now, [](session::Buffer& found) { session::NoteFillStopped(found); });
}

void WorkerSession::HandleSourceFailed(BufferId buffer, AssignmentId assignment,
                                       BufferAddress source, SourceFailure failure,
                                       std::string detail, absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::NoteSourceFailed(impl_->state, found,
                              {{}, assignment, source, failure, std::move(detail)}, now);
  });
}

void WorkerSession::HandleSourceSuspected(BufferId buffer, AssignmentId assignment,
                                          BufferAddress source, std::string detail,
                                          absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::NoteSourceSuspected(impl_->state, found, {{}, assignment, source, std::move(detail)},
                                 now);
  });
}

void WorkerSession::HandleSealed(BufferId buffer, VersionSequence version,
                                 BufferGeneration generation, Digest root, absl::Time now) {
  impl_->OnBuffer(buffer, now, [&](session::Buffer& found) {
    session::SealPublication(impl_->state, found, version, generation, root, now);
  });
}

void WorkerSession::HandleOffloadAllocated(BufferId copy, absl::Status status, absl::Time now) {
  session::NoteOffloadAllocated(impl_->state, copy, status, now);
  session::NoteStagedAllocated(impl_->state, copy, status, now);
  impl_->Finish(now);
}

// ---- time

void WorkerSession::HandleTick(absl::Time now) {
  session::State& state = impl_->state;
  session::TickLink(state, now);
  session::TickOperations(state, now);
  session::TickCommands(state, now);
  session::DecideHeldAdmissions(state, now);
  impl_->Finish(now);
}

absl::Time WorkerSession::NextDeadline() const {
  const session::State& state = impl_->state;
  return std::min({session::NextLinkDeadline(state), session::NextOperationDeadline(state),
                   session::NextCommandDeadline(state)});
}

std::optional<SessionOutput> WorkerSession::PollOutput() {
  auto& outbox = impl_->state.outbox;
  if (outbox.empty()) return std::nullopt;
  SessionOutput output = std::move(outbox.front());
  outbox.pop_front();
  return output;
}

// ---- what is known

bool WorkerSession::joined() const { return impl_->state.joined(); }
bool WorkerSession::ended() const { return impl_->state.link.state == session::LinkState::kEnded; }
absl::Status WorkerSession::end_status() const { return impl_->state.end_status; }
Epoch WorkerSession::epoch() const { return impl_->state.membership.epoch; }
WorkerId WorkerSession::worker() const { return impl_->state.membership.worker; }

BufferState WorkerSession::buffer_state(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found == nullptr ? BufferState::kWritable : found->contract.state();
}

const VersionInfo& WorkerSession::buffer_version(BufferId buffer) const {
  static const VersionInfo& kNone = *new VersionInfo();
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  const bool holds = found != nullptr && found->contract.state() != BufferState::kWritable;
  return holds ? found->version : kNone;
}

BufferGeneration WorkerSession::buffer_generation(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found == nullptr ? BufferGeneration() : found->contract.generation();
}

std::string WorkerSession::Describe(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found == nullptr ? "no such buffer" : session::DescribeBuffer(*found);
}

bool WorkerSession::has_buffer(BufferId buffer) const {
  return impl_->state.FindBuffer(buffer) != nullptr;
}

PhaseNames WorkerSession::phases(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found == nullptr ? PhaseNames() : session::PhasesOf(*found);
}

bool WorkerSession::is_read(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found != nullptr && found->contract.readers_in_flight() > 0;
}

}  // namespace th
