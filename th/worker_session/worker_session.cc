#include "th/worker_session/worker_session.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "th/worker_session/admissions.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/fill_reports.h"
#include "th/worker_session/host_copy.h"
#include "th/worker_session/offload.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/phase_names.h"
#include "th/worker_session/publish.h"
#include "th/worker_session/server_link.h"
#include "th/worker_session/session_state.h"
#include "th/worker_session/staging.h"
#include "th/worker_session/streaming.h"
#include "th/worker_session/unanswered_commands.h"
#include "th/worker_session/unpublish.h"
#include "th/worker_session/update.h"

namespace th {

struct WorkerSession::Impl {
  session::State state;

  // The last step of every event.
  void Finish(absl::Time now) {
    session::PumpHostCopies(state, now);
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

SessionAnswer AnswerOf(absl::Status status) { return {.status = std::move(status)}; }
SessionAnswer AnswerOf(StreamTicket ticket) { return {.ticket = ticket}; }
SessionAnswer AnswerOf(const absl::StatusOr<BufferId>& buffer) {
  return {.status = buffer.status(), .buffer = buffer.value_or(BufferId())};
}

}  // namespace

struct WorkerSession::EventHandler {
  Impl& impl;
  session::State& state;
  const absl::Time now;

  // ---- the membership

  void operator()(const event::Start&) { session::StartLink(state, now); }
  void operator()(const event::Leave& leave) { session::LeaveSession(state, leave.grace, now); }
  absl::Status operator()(const event::Preempt& preempt) {
    return session::GiveNotice(state, preempt.notice, now);
  }

  // ---- verbs

  absl::StatusOr<BufferId> operator()(event::RegisterBuffer& verb) {
    return session::AddBuffer(state, std::move(verb.name), std::move(verb.form),
                              std::move(verb.layout), now);
  }
  absl::Status operator()(const event::UnregisterBuffer& verb) {
    session::DiscardStaged(state, verb.buffer, now);
    const absl::Status removed = session::RemoveBuffer(state, verb.buffer, now);
    impl.Finish(now);
    return removed;
  }
  absl::Status operator()(event::Publish& verb) {
    return impl.Call(verb.buffer, now, [&](session::Buffer& found) {
      return session::BeginPublish(state, found, verb.call, std::move(verb.request), now);
    });
  }
  absl::Status operator()(const event::Unpublish& verb) {
    return impl.Call(verb.buffer, now, [&](session::Buffer& found) {
      return session::BeginUnpublish(state, found, verb.call, verb.request, now);
    });
  }
  absl::Status operator()(event::Update& verb) {
    return impl.Call(verb.buffer, now, [&](session::Buffer& found) {
      return session::BeginUpdate(state, found, verb.call, std::move(verb.request), now);
    });
  }
  absl::StatusOr<BufferId> operator()(event::Stage& verb) {
    session::Buffer* original = state.FindBuffer(verb.buffer);
    if (original == nullptr) return absl::InvalidArgumentError("no such buffer");
    absl::StatusOr<BufferId> copy =
        session::BeginStage(state, *original, verb.call, std::move(verb.request), now);
    impl.Finish(now);
    return copy;
  }
  absl::Status operator()(event::Apply& verb) {
    return impl.Call(verb.buffer, now, [&](session::Buffer& found) {
      return session::BeginApply(state, found, verb.call, std::move(verb.request), now);
    });
  }
  void operator()(const event::DiscardStaged& verb) {
    session::DiscardStaged(state, verb.buffer, now);
    impl.Finish(now);
  }
  void operator()(const event::CancelUpdate& verb) {
    session::CancelUpdate(state, verb.buffer, now);
    impl.Finish(now);
  }
  absl::Status operator()(const event::Reset& verb) {
    return impl.Call(verb.buffer, now, [&](session::Buffer& found) {
      return session::ResetBuffer(state, found, now);
    });
  }
  absl::Status operator()(event::Command& verb) {
    return session::BeginCommand(state, verb.call, std::move(verb.command), now);
  }

  // ---- streaming receives

  StreamTicket operator()(const event::BeginStream&) {
    return session::TakeStreamTicket(state, now);
  }
  absl::StatusOr<BufferId> operator()(event::RegisterStreamBuffer& verb) {
    return session::RegisterStream(state, verb.ticket, std::move(verb.form), std::move(verb.layout),
                                   verb.wanted, now);
  }
  void operator()(event::FailStream& verb) {
    session::FailStream(state, verb.ticket, std::move(verb.form), verb.why, now);
    impl.Finish(now);
  }
  void operator()(const event::EndStream& verb) {
    session::EndStream(state, verb.buffer, verb.why, now);
    impl.Finish(now);
  }

  // ---- the control stream

  void operator()(const event::StreamOpened&) { session::NoteStreamOpen(state, now); }
  void operator()(const event::StreamClosed& closed) {
    session::NoteStreamClosed(state, closed.why, now);
  }
  void operator()(const event::ServerSaid& said) {
    if (!state.joined() && !OpensTheMembership(said.message)) return;
    state.link.heard_at = now;
    state.link.asked_at = absl::InfinitePast();
    std::visit(MessageHandler{state, now}, said.message);
    impl.Finish(now);
  }

  // ---- readers of our buffers

  void operator()(const event::AdmissionAsked& asked) {
    session::AskAdmission(state, asked.transfer, asked.buffer, asked.capability, asked.generation,
                          now);
  }
  void operator()(const event::ReaderBytesMoved& moved) {
    session::NoteReaderBytes(state, moved.transfer, now);
  }
  void operator()(const event::ReaderReleased& released) {
    session::Buffer* buffer = session::ReleaseReader(state, released.transfer);
    if (buffer != nullptr) impl.OnBuffer(buffer->id, now, [](session::Buffer&) {});
    if (buffer == nullptr) impl.Finish(now);
  }

  // ---- our fills

  void operator()(const event::FirstWrite& write) {
    impl.OnBuffer(write.buffer, now,
                  [](session::Buffer& found) { session::NoteFirstWrite(found); });
  }
  void operator()(event::FillProgressed& progressed) {
    impl.OnBuffer(progressed.buffer, now, [&](session::Buffer& found) {
      session::NoteProgress(state, found, std::move(progressed.report), now);
    });
  }
  void operator()(const event::AllReceived& received) {
    impl.OnBuffer(received.buffer, now,
                  [&](session::Buffer& found) { session::NoteAllReceived(state, found, now); });
  }
  void operator()(event::FillCompleted& completed) {
    impl.OnBuffer(completed.buffer, now, [&](session::Buffer& found) {
      session::NoteFillCost(found, std::move(completed.cost));
      session::NoteFillComplete(state, found, completed.root, now);
    });
  }
  void operator()(const event::FillFailed& failed) {
    impl.OnBuffer(failed.buffer, now,
                  [&](session::Buffer& found) { session::NoteFillFailed(found, failed.why); });
  }
  void operator()(const event::FillStopped& stopped) {
    impl.OnBuffer(stopped.buffer, now,
                  [](session::Buffer& found) { session::NoteFillStopped(found); });
  }
  void operator()(event::SourceFailed& failed) {
    impl.OnBuffer(failed.buffer, now, [&](session::Buffer& found) {
      session::NoteSourceFailed(
          state, found,
          {{}, failed.assignment, failed.source, failed.failure, std::move(failed.detail)},
          failed.endpoint, now);
    });
  }
  void operator()(event::SourceSuspected& suspected) {
    impl.OnBuffer(suspected.buffer, now, [&](session::Buffer& found) {
      session::NoteSourceSuspected(
          state, found, {{}, suspected.assignment, suspected.source, std::move(suspected.detail)},
          now);
    });
  }

  // ---- memory, sums, time

  void operator()(const event::OffloadAllocated& allocated) {
    session::HandleCopyAllocation(state, allocated.copy, allocated.status, now);
    impl.Finish(now);
  }
  void operator()(const event::Sealed& sealed) {
    impl.OnBuffer(sealed.buffer, now, [&](session::Buffer& found) {
      session::SealPublication(state, found, sealed.version, sealed.generation, sealed.root, now);
    });
  }
  void operator()(const event::Tick&) {
    session::TickLink(state, now);
    session::TickOperations(state, now);
    session::TickCommands(state, now);
    session::DecideHeldAdmissions(state, now);
    impl.Finish(now);
  }
};

WorkerSession::WorkerSession(SessionOptions options, SessionLimits limits)
    : impl_(std::make_unique<Impl>()) {
  impl_->state.options = std::move(options);
  impl_->state.limits = limits;
}

WorkerSession::~WorkerSession() = default;

SessionAnswer WorkerSession::Handle(SessionEvent event, absl::Time now) {
  EventHandler handler{*impl_, impl_->state, now};
  return std::visit(
      [&](auto& each) -> SessionAnswer {
        if constexpr (std::is_void_v<decltype(handler(each))>) {
          handler(each);
          return {};
        } else {
          return AnswerOf(handler(each));
        }
      },
      event);
}

absl::Time WorkerSession::NextDeadline() const {
  const session::State& state = impl_->state;
  return std::min({session::NextLinkDeadline(state), session::NextOperationDeadline(state),
                   session::NextCommandDeadline(state), session::NextCopyDeadline(state)});
}

std::optional<SessionOutput> WorkerSession::PollOutput() {
  auto& outbox = impl_->state.outbox;
  if (outbox.empty()) return std::nullopt;
  SessionOutput output = std::move(outbox.front());
  outbox.pop_front();
  return output;
}

// ---- what is known

VersionInfo WorkerSession::staged_version(BufferId buffer) const {
  return session::StagedVersion(impl_->state, buffer);
}

absl::Status WorkerSession::CanRebind(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  if (found == nullptr) return absl::InvalidArgumentError("no such buffer");
  return session::CanRebindBuffer(impl_->state, *found);
}

bool WorkerSession::joined() const { return impl_->state.joined(); }
bool WorkerSession::ending() const { return impl_->state.ending(); }
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

bool WorkerSession::publishes_own(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found != nullptr && found->publisher && found->contract.state() == BufferState::kPublished;
}

absl::Status WorkerSession::lost_publication(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  if (found == nullptr || !found->lost.has_value()) return absl::OkStatus();
  return session::RefuseVerb(impl_->state, ErrorCode::kPublicationLost, *found->lost);
}

bool WorkerSession::has_root(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  return found != nullptr && found->root.has_value();
}

std::string WorkerSession::Describe(BufferId buffer) const {
  const session::Buffer* found = impl_->state.FindBuffer(buffer);
  if (found == nullptr) return "no such buffer";
  const session::HostCopy* copy = impl_->state.FindHostCopy(buffer);
  const std::string of_buffer = session::DescribeBuffer(*found);
  return copy == nullptr ? of_buffer : absl::StrCat(session::DescribeCopy(*copy), "; ", of_buffer);
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
