#include "th/client/session_driver.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "th/client/cancel_hook.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// Beyond the session's own join timeout, for what it asked for to be carried out.
constexpr absl::Duration kJoinGrace = absl::Seconds(5);

}  // namespace

SessionDriver::SessionDriver(Parts parts)
    : runtime_(std::move(parts.runtime)),
      data_plane_(std::move(parts.data_plane)),
      connector_(std::move(parts.connector)),
      options_(parts.options),
      limits_(parts.limits),
      staging_limit_bytes_(parts.staging_limit_bytes),
      copies_(runtime_, {.offload_bytes = options_.offload_limit_bytes,
                         .max_offloads = limits_.max_buffers,
                         .staging_bytes = parts.staging_limit_bytes,
                         .snapshot_bytes = parts.snapshot_limit_bytes}),
      reporter_(std::move(parts.readers)),
      session_(std::move(parts.options), parts.limits),
      readers_(reporter_) {}

SessionDriver::~SessionDriver() = default;

// ---- entering the session

SessionAnswer SessionDriver::Handle(SessionEvent event) {
  SessionAnswer answer;
  {
    absl::MutexLock lock(&mu_);
    answer = session_.Handle(std::move(event), MonotonicNow());
  }
  SchedulePump();
  return answer;
}

void SessionDriver::SchedulePump() {
  if (pump_scheduled_.exchange(true)) return;
  runtime_->control().Post([self = shared_from_this()] { self->Pump(); });
}

void SessionDriver::Pump() {
  pump_scheduled_ = false;
  for (std::vector<SessionOutput> outputs = TakeOutputs(); !outputs.empty();
       outputs = TakeOutputs()) {
    for (SessionOutput& output : outputs) {
      std::visit([this](auto& each) { Do(std::move(each)); }, output);
    }
  }
  ArmTimer();
}

std::vector<SessionOutput> SessionDriver::TakeOutputs() {
  std::vector<SessionOutput> outputs;
  absl::MutexLock lock(&mu_);
  const absl::Time now = MonotonicNow();
  if (session_.NextDeadline() <= now) session_.Handle(event::Tick{}, now);
  while (std::optional<SessionOutput> output = session_.PollOutput()) {
    outputs.push_back(*std::move(output));
  }
  return outputs;
}

void SessionDriver::ArmTimer() {
  absl::Time next;
  {
    absl::MutexLock lock(&mu_);
    next = ended_.has_value() ? absl::InfiniteFuture() : session_.NextDeadline();
  }
  if (next == timer_at_) return;
  runtime_->control().Cancel(timer_);
  timer_at_ = next;
  timer_ = {};
  if (next == absl::InfiniteFuture()) return;
  timer_ = runtime_->control().PostAfter(next - MonotonicNow(), [self = shared_from_this()] {
    self->timer_at_ = absl::InfiniteFuture();
    self->SchedulePump();
  });
}

// ---- the membership's own life

absl::Status SessionDriver::Join() {
  Handle(event::Start{});
  AwaitUnlessCancelled(limits_.join_timeout + kJoinGrace, [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return joined_ || ended_.has_value();
  });
  absl::MutexLock lock(&mu_);
  if (joined_) return absl::OkStatus();
  if (!ended_.has_value()) TH_RETURN_IF_ERROR(CheckNotCancelled("this process has not joined"));
  if (!ended_.has_value()) return absl::DeadlineExceededError("the join did not end in time");
  if (absl::IsUnavailable(*ended_) && !refusal_.ok()) {  // the server was there all the time
    return absl::Status(refusal_.code(), absl::StrCat(refusal_.message(), "; asked again for ",
                                                      absl::FormatDuration(limits_.join_timeout)));
  }
  return ended_->ok() ? absl::CancelledError("left while joining") : *ended_;
}

absl::Status SessionDriver::Leave(absl::Duration timeout) {
  const absl::Cleanup silence = [this] {
    // A caller that leaves within its own function waits for nothing.
    if (reporter_ != nullptr && !runtime_->callbacks().OnLoop()) reporter_->Disable();
  };
  {
    absl::MutexLock lock(&mu_);
    left_ = true;
  }
  Handle(event::Leave{timeout});
  absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return ended_.has_value() && Quiet() && streams_ == 0;
  };
  if (mu_.AwaitWithTimeout(absl::Condition(&ended), timeout)) return absl::OkStatus();
  // The server need not hear it; the caller's memory must be let go (see Withdraw).
  const auto quiet = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_.has_value() && Quiet(); };
  mu_.Await(absl::Condition(&quiet));
  return absl::DeadlineExceededError(absl::StrCat("left, but the server did not confirm it within ",
                                                  absl::FormatDuration(timeout)));
}

absl::Status SessionDriver::Preempt(absl::Duration notice) {
  return Handle(event::Preempt{notice}).status;
}

bool SessionDriver::AwaitEnded(absl::Duration timeout) const {
  return AwaitUnlessCancelled(timeout,
                              [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return HasEnded(); });
}

bool SessionDriver::AwaitUnlessCancelled(absl::Duration timeout,
                                         absl::FunctionRef<bool()> condition) const {
  bool cancelled = false;
  const CancelHook hook([&] {
    absl::MutexLock lock(&mu_);
    cancelled = true;
  });
  absl::MutexLock lock(&mu_);
  const auto over = [&] { return cancelled || condition(); };
  mu_.AwaitWithTimeout(absl::Condition(&over), timeout);
  return condition();
}

void SessionDriver::CancelUpdate(BufferId buffer) { Handle(event::CancelUpdate{buffer}); }

absl::Status SessionDriver::status() const {
  absl::MutexLock lock(&mu_);
  if (left_) return absl::CancelledError("this client has left");
  return HasEnded() ? *ended_ : absl::OkStatus();
}

bool SessionDriver::HasEnded() const { return ended_.has_value() && renewals_.empty(); }

absl::Status SessionDriver::CanWait() const {
  if (runtime_->callbacks().OnLoop()) {
    return absl::FailedPreconditionError(
        "a call that waits was made from a TensorHub callback, which would never return; make it "
        "from a thread of your own");
  }
  absl::MutexLock lock(&mu_);
  return left_ ? absl::CancelledError("this client has left") : absl::OkStatus();
}

bool SessionDriver::Quiet() const {
  return fills_.empty() && renewals_.empty() && readers_.empty() &&
         !claims_.HasAnyFor(ClaimFor::kSnapshot);
}

bool SessionDriver::BufferQuiet(const LocalBuffer* buffer) const {
  return fills_.count(buffer) == 0 && renewals_.count(buffer) == 0 && !readers_.IsRead(buffer);
}

LocalBuffer::RunBeside SessionDriver::RunsBeside() {
  return [weak = weak_from_this()](BufferPtr buffer, std::function<void()> work,
                                   std::function<void()> then) {
    if (const auto self = weak.lock()) {
      self->RunBeside(std::move(buffer), std::move(work), std::move(then));
    }
  };
}

void SessionDriver::RunBeside(BufferPtr buffer, std::function<void()> work,
                              std::function<void()> then) {
  absl::MutexLock lock(&mu_);
  renewals_.insert(buffer.get());
  if (renewer_ == nullptr) renewer_ = std::make_unique<TaskThread>("th-arena");
  renewer_->Post([self = shared_from_this(), buffer = std::move(buffer), work = std::move(work),
                  then = std::move(then)]() mutable {
    work();
    // Nothing ends on this thread: it would wait for itself.
    const std::shared_ptr<Runtime> runtime = self->runtime_;
    runtime->control().Post(
        [self = std::move(self), buffer = std::move(buffer), then = std::move(then)] {
          then();
          {
            absl::MutexLock renewed(&self->mu_);
            self->renewals_.erase(self->renewals_.find(buffer.get()));
          }
          self->FinishIfSilenced();
        });
  });
}

void SessionDriver::AwaitRenewed(const LocalBuffer& buffer) const {
  if (runtime_->control().OnLoop()) return;  // which ends them
  absl::MutexLock lock(&mu_);
  const auto renewed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return renewals_.count(&buffer) == 0;
  };
  mu_.Await(absl::Condition(&renewed));
}

// ---- buffers

absl::StatusOr<std::shared_ptr<LocalBuffer>> SessionDriver::Register(std::string name,
                                                                     std::string form,
                                                                     BindingOptions options,
                                                                     TensorBinding binding) {
  TH_RETURN_IF_ERROR(CanWait());
  BufferPtr buffer;
  {
    absl::MutexLock lock(&mu_);
    const SessionAnswer answer =
        session_.Handle(event::RegisterBuffer{name, form, binding.layout}, MonotonicNow());
    TH_RETURN_IF_ERROR(answer.status);
    buffer = std::make_shared<LocalBuffer>(
        LocalBuffer::Spec{answer.buffer, std::move(form), options, std::move(binding)},
        RunsBeside());
    buffers_[answer.buffer] = buffer;
  }
  buffer->AttachMemory(data_plane_);
  SchedulePump();
  TH_RETURN_IF_ERROR(AwaitReady(*buffer, name, kRegisterTimeout));
  return buffer;
}

absl::Status SessionDriver::AwaitReady(LocalBuffer& buffer, absl::string_view name,
                                       absl::Duration timeout) {
  absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "the server did not take buffer ", name, " within ", absl::FormatDuration(timeout)));
  if (buffer.ready().WaitUnlessCancelled(timeout)) {
    status = buffer.ready_status();
  } else if (absl::Status cancelled = CheckNotCancelled("the buffer is not registered");
             !cancelled.ok()) {
    status = std::move(cancelled);
  }
  if (!status.ok()) Unregister(buffer);
  return status;
}

void SessionDriver::Unregister(LocalBuffer& buffer) {
  Handle(event::UnregisterBuffer{buffer.id()});  // refused when the session has ended
  runtime_->RunOnControl([this] { Pump(); });
  LetReadersFinish(buffer);
  Withdraw(buffer);
}

void SessionDriver::Withdraw(LocalBuffer& buffer) {
  runtime_->RunOnControl([&] {
    Pump();
    Silence(buffer);
  });
  AwaitQuietAndClaim(buffer);
  // Without a limit of its own, as AwaitQuietAndClaim: what is waited for is one copy or sum that a
  // device has begun.
  buffer.DetachMemory();
  static_cast<void>(RevokeDevices(buffer.device_sides(), absl::InfiniteDuration()).ok());
  static_cast<void>(buffer.store()->AwaitDevices(absl::InfiniteDuration()).ok());
  absl::MutexLock lock(&mu_);
  buffers_.erase(buffer.id());
  claims_.Forget(buffer.id());
}

void SessionDriver::AwaitQuietAndClaim(const LocalBuffer& buffer) {
  absl::MutexLock lock(&mu_);
  // Without a limit of its own: to return says that the memory is free, and there is no other way
  // to say that it is not. What is waited for is local and is closed at once, so that only a
  // process that was itself stopped meanwhile waits for long; but for a snapshot, which takes the
  // time of its copy, and a change of memory, which takes kDeviceTime at most.
  const auto quiet = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return BufferQuiet(&buffer) && claims_.CheckUnclaimed(buffer.id()).ok();
  };
  mu_.Await(absl::Condition(&quiet));
  claims_.Claim(buffer.id(), ClaimFor::kWithdraw);
}

void SessionDriver::LetReadersFinish(const LocalBuffer& buffer) {
  FinishReaders order;
  {
    absl::MutexLock lock(&mu_);
    order.transfers = readers_.ReadersOf(&buffer);
  }
  if (order.transfers.empty()) return;
  Do(std::move(order));
  absl::MutexLock lock(&mu_);
  const auto unread = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !readers_.IsRead(&buffer); };
  mu_.AwaitWithTimeout(absl::Condition(&unread), limits_.leave_grace);
}

absl::Status SessionDriver::Start(const std::shared_ptr<Call>& call,
                                  absl::FunctionRef<SessionEvent(CallId)> verb) {
  SessionAnswer answer;
  bool is_over = false;
  {
    absl::MutexLock lock(&mu_);
    if (left_) return absl::CancelledError("this client has left");
    TH_RETURN_IF_ERROR(claims_.CheckAwake(call->buffer));
    last_call_ = last_call_.Next();
    answer = session_.Handle(verb(last_call_), MonotonicNow());
    if (answer.buffer != BufferId()) call->buffer = answer.buffer;
    if (answer.status.ok()) calls_[last_call_] = call;
    is_over = session_.ending();
  }
  SchedulePump();
  if (answer.status.ok() || !is_over) return answer.status;
  if (call->then == nullptr) return AwaitSilenced(answer.status);
  runtime_->control().Post([self = shared_from_this(), call, refused = answer.status] {
    self->FinishOnceSilenced(call, refused);
  });
  return absl::OkStatus();
}

namespace {

absl::Status NotSilenced(const absl::Status& refused) {
  return Reworded(
      refused,
      absl::StrCat(refused.message(), "; memory of this client's buffers is still in use after ",
                   absl::FormatDuration(kDeviceTime),
                   ": it must not be written or freed before its buffer is destroyed"));
}

}  // namespace

absl::Status SessionDriver::AwaitSilenced(const absl::Status& refused) const {
  if (runtime_->control().OnLoop()) return refused;  // which cuts them
  absl::MutexLock lock(&mu_);
  const auto silenced = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return HasEnded(); };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&silenced), kDeviceTime);
  return in_time ? refused : NotSilenced(refused);
}

void SessionDriver::FinishOnceSilenced(const std::shared_ptr<Call>& call,
                                       const absl::Status& refused) {
  call->done.status = call->command.status = refused;
  refused_calls_.push_back(call);
  FinishIfSilenced();
  if (refused_calls_.empty()) return;
  // Nothing is left to do where the membership is gone: it has let go.
  runtime_->control().PostAfter(kDeviceTime, [weak = weak_from_this(), call] {
    const auto self = weak.lock();
    if (self == nullptr || std::erase(self->refused_calls_, call) == 0) return;
    call->done.status = call->command.status = NotSilenced(call->done.status);
    self->Finish(call);
  });
}

void SessionDriver::FinishIfSilenced() {
  {
    absl::MutexLock lock(&mu_);
    if (!HasEnded()) return;
  }
  for (const std::shared_ptr<Call>& call : std::exchange(refused_calls_, {})) Finish(call);
}

bool SessionDriver::PublishesOwn(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.publishes_own(buffer);
}

bool SessionDriver::AwaitSealed(const LocalBuffer& buffer, absl::Duration timeout) const {
  const auto sealed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return session_.publishes_own(buffer.id()) && session_.has_root(buffer.id());
  };
  const auto decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return session_.ended() || !session_.publishes_own(buffer.id()) || !buffer.seal_status().ok() ||
           (sealed() && session_.joined());
  };
  if (!AwaitUnlessCancelled(timeout, decided)) return false;
  absl::MutexLock lock(&mu_);
  return sealed();
}

bool SessionDriver::connected() const {
  absl::MutexLock lock(&mu_);
  return session_.joined() && !session_.ended();
}

MembershipFigures SessionDriver::figures() const {
  absl::MutexLock lock(&mu_);
  MembershipFigures figures = figures_;
  figures.key = options_.key;
  figures.name = options_.name;
  figures.connected = session_.joined() && !session_.ended();
  figures.served = readers_.figures();
  return figures;
}

BufferState SessionDriver::buffer_state(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.buffer_state(buffer);
}

VersionInfo SessionDriver::buffer_version(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.buffer_version(buffer);
}

// ---- the server's word

void SessionDriver::OnServerMessage(StreamId stream, const ServerMessage& message) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    if (stream != open_stream_) return;
    const auto* refused = std::get_if<Refused>(&message);
    refusal_ = refused == nullptr ? absl::OkStatus() : refused->status;
    session_.Handle(event::ServerSaid{message}, MonotonicNow());
  }
  SchedulePump();
}

void SessionDriver::OnStreamClosed(StreamId stream, absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    --streams_;
    if (stream != open_stream_) return;
    open_stream_ = {};
    refusal_ = absl::OkStatus();
    if (why.ok()) why = absl::UnavailableError("the server ended the stream");
    session_.Handle(event::StreamClosed{std::move(why)}, MonotonicNow());
  }
  SchedulePump();
}

// ---- readers of our buffers

void SessionDriver::OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    if (!ended_.has_value() && !left_) {
      readers_.Ask(request, std::exchange(decide, nullptr));
      session_.Handle(event::AdmissionAsked{request.transfer, request.buffer, request.capability,
                                            request.generation},
                      MonotonicNow());
    }
  }
  if (decide != nullptr)
    return decide({absl::UnavailableError("this holder has left"), nullptr, {}});
  SchedulePump();
}

void SessionDriver::OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) {
  ForeignThreadScope scope;
  absl::MutexLock lock(&mu_);
  readers_.NoteSent(transfer, bytes_sent_so_far);
  session_.Handle(event::ReaderBytesMoved{transfer}, MonotonicNow());  // asks for nothing
}

void SessionDriver::OnReaderReleased(TransferId transfer, uint64_t bytes_sent,
                                     const std::string& why) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    readers_.NoteReleased(transfer, bytes_sent, why);
    session_.Handle(event::ReaderReleased{transfer}, MonotonicNow());
  }
  SchedulePump();
}

}  // namespace th
