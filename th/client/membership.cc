#include "th/client/membership.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

// Beyond the session's own join timeout, for what it asked for to be carried out.
constexpr absl::Duration kJoinGrace = absl::Seconds(5);

// The arena counts whole pages of its own, a part of one more for each copy.
uint64_t ArenaBytesFor(uint64_t limit_bytes, uint64_t max_copies) {
  const uint64_t slack = max_copies * kArenaAlignment;
  return limit_bytes + std::min(slack, std::numeric_limits<uint64_t>::max() - limit_bytes);
}

}  // namespace

Membership::Membership(Parts parts)
    : runtime_(std::move(parts.runtime)),
      data_plane_(std::move(parts.data_plane)),
      connector_(std::move(parts.connector)),
      options_(parts.options),
      limits_(parts.limits),
      staging_limit_bytes_(parts.staging_limit_bytes),
      offload_arena_(std::make_shared<HostArena>(HostArena::Options{
          .limit_bytes = ArenaBytesFor(options_.offload_limit_bytes, limits_.max_buffers)})),
      staging_arena_(std::make_shared<HostArena>(
          HostArena::Options{.limit_bytes = parts.staging_limit_bytes})),
      snapshot_arena_(std::make_shared<HostArena>(
          HostArena::Options{.limit_bytes = parts.snapshot_limit_bytes})),
      readers_(std::move(parts.readers)),
      session_(std::move(parts.options), parts.limits) {}

Membership::~Membership() = default;

// ---- entering the session

SessionAnswer Membership::Handle(SessionEvent event) {
  SessionAnswer answer;
  {
    absl::MutexLock lock(&mu_);
    answer = session_.Handle(std::move(event), MonotonicNow());
  }
  Wake();
  return answer;
}

void Membership::Wake() {
  if (woken_.exchange(true)) return;
  runtime_->control().Post([self = shared_from_this()] { self->Pump(); });
}

void Membership::Pump() {
  woken_ = false;
  for (std::vector<SessionOutput> outputs = TakeOutputs(); !outputs.empty();
       outputs = TakeOutputs()) {
    for (SessionOutput& output : outputs) {
      std::visit([this](auto& each) { Do(std::move(each)); }, output);
    }
  }
  ArmTimer();
}

std::vector<SessionOutput> Membership::TakeOutputs() {
  std::vector<SessionOutput> outputs;
  absl::MutexLock lock(&mu_);
  const absl::Time now = MonotonicNow();
  if (session_.NextDeadline() <= now) session_.Handle(event::Tick{}, now);
  while (std::optional<SessionOutput> output = session_.PollOutput()) {
    outputs.push_back(*std::move(output));
  }
  return outputs;
}

void Membership::ArmTimer() {
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
    self->Wake();
  });
}

// ---- the membership's own life

absl::Status Membership::Join() {
  Handle(event::Start{});
  absl::MutexLock lock(&mu_);
  const auto decided = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return joined_ || ended_.has_value();
  };
  mu_.AwaitWithTimeout(absl::Condition(&decided), limits_.join_timeout + kJoinGrace);
  if (joined_) return absl::OkStatus();
  if (!ended_.has_value()) return absl::DeadlineExceededError("the join did not end in time");
  if (absl::IsUnavailable(*ended_) && !refusal_.ok()) {  // the server was there all the time
    return absl::Status(refusal_.code(), absl::StrCat(refusal_.message(), "; asked again for ",
                                                      absl::FormatDuration(limits_.join_timeout)));
  }
  return ended_->ok() ? absl::CancelledError("left while joining") : *ended_;
}

absl::Status Membership::Leave(absl::Duration timeout) {
  const absl::Cleanup silence = [this] {
    // A caller that leaves within its own function waits for nothing.
    if (readers_ != nullptr && !runtime_->callbacks().OnLoop()) readers_->Disable();
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

absl::Status Membership::Preempt(absl::Duration notice) {
  return Handle(event::Preempt{notice}).status;
}

bool Membership::AwaitEnded(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_.has_value(); };
  return mu_.AwaitWithTimeout(absl::Condition(&ended), timeout);
}

absl::Status Membership::status() const {
  absl::MutexLock lock(&mu_);
  if (left_) return absl::CancelledError("this client has left");
  return ended_.value_or(absl::OkStatus());
}

absl::Status Membership::CanWait() const {
  if (runtime_->callbacks().OnLoop()) {
    return absl::FailedPreconditionError(
        "a call that waits was made from a TensorHub callback, which would never return; make it "
        "from a thread of your own");
  }
  absl::MutexLock lock(&mu_);
  return left_ ? absl::CancelledError("this client has left") : absl::OkStatus();
}

bool Membership::Quiet() const { return fills_.empty() && served_.empty() && admissions_.empty(); }

bool Membership::BufferQuiet(const LocalBuffer* buffer) const {
  return fills_.count(buffer) == 0 && !IsRead(buffer);
}

bool Membership::IsRead(const LocalBuffer* buffer) const {
  return std::any_of(served_.begin(), served_.end(),
                     [buffer](const auto& entry) { return entry.second.buffer.get() == buffer; });
}

// ---- buffers

absl::StatusOr<std::shared_ptr<LocalBuffer>> Membership::Register(std::string name,
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
        LocalBuffer::Spec{answer.buffer, std::move(form), options, std::move(binding)});
    buffers_[answer.buffer] = buffer;
  }
  buffer->AttachMemory(data_plane_);
  Wake();
  TH_RETURN_IF_ERROR(AwaitReady(*buffer, name, kRegisterTimeout));
  return buffer;
}

absl::Status Membership::AwaitReady(LocalBuffer& buffer, absl::string_view name,
                                    absl::Duration timeout) {
  absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "the server did not take buffer ", name, " within ", absl::FormatDuration(timeout)));
  if (buffer.ready().WaitForNotificationWithTimeout(timeout)) {
    status = buffer.ready_status();
  }
  if (!status.ok()) Unregister(buffer);
  return status;
}

void Membership::Unregister(LocalBuffer& buffer) {
  Handle(event::UnregisterBuffer{buffer.id()});  // refused when the session has ended
  runtime_->RunOnControl([this] { Pump(); });
  LetReadersFinish(buffer);
  Withdraw(buffer);
}

void Membership::Withdraw(LocalBuffer& buffer) {
  runtime_->RunOnControl([&] {
    Pump();
    Silence(buffer);
  });
  AwaitQuiet(buffer);
  buffer.DetachMemory();
  absl::MutexLock lock(&mu_);
  buffers_.erase(buffer.id());
  sealed_.erase(buffer.id());
}

void Membership::AwaitQuiet(const LocalBuffer& buffer) {
  absl::MutexLock lock(&mu_);
  // Without a limit of its own: to return says that the memory is free, and there is no other way
  // to say that it is not. What is waited for is local and is closed at once, so that only a
  // process that was itself stopped meanwhile waits for long.
  const auto quiet = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return BufferQuiet(&buffer); };
  mu_.Await(absl::Condition(&quiet));
}

void Membership::LetReadersFinish(const LocalBuffer& buffer) {
  FinishReaders order;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [transfer, served] : served_) {
      if (served.buffer.get() == &buffer) order.transfers.push_back(transfer);
    }
  }
  if (order.transfers.empty()) return;
  Do(std::move(order));
  absl::MutexLock lock(&mu_);
  const auto unread = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !IsRead(&buffer); };
  mu_.AwaitWithTimeout(absl::Condition(&unread), limits_.leave_grace);
}

absl::Status Membership::Start(const std::shared_ptr<Call>& call,
                               absl::FunctionRef<SessionEvent(CallId)> verb) {
  SessionAnswer answer;
  {
    absl::MutexLock lock(&mu_);
    if (left_) return absl::CancelledError("this client has left");
    last_call_ = last_call_.Next();
    answer = session_.Handle(verb(last_call_), MonotonicNow());
    if (answer.buffer != BufferId()) call->buffer = answer.buffer;
    if (answer.status.ok()) calls_[last_call_] = call;
  }
  Wake();
  return answer.status;
}

absl::Status Membership::Reset(LocalBuffer& buffer) {
  TH_RETURN_IF_ERROR(Handle(event::Reset{buffer.id()}).status);
  {
    // Readers of what was checked are being cut.
    absl::MutexLock lock(&mu_);
    const auto writable = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return session_.buffer_state(buffer.id()) == BufferState::kWritable || session_.ended();
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&writable), kResetTimeout)) {
      return absl::DeadlineExceededError("readers of the buffer did not let go of it");
    }
  }
  // The caller may write once this returns: by then the store has left the generation, which is all
  // that a reader of another process looks at.
  runtime_->RunOnControl([this] { Pump(); });
  return absl::OkStatus();
}

absl::Status Membership::Rebind(LocalBuffer& buffer, const std::vector<void*>& storages) {
  absl::Status status;
  // On th-control, so that no order for a fill comes between the check and the change.
  runtime_->RunOnControl([&] {
    status = CanChangeMemory(buffer);
    if (status.ok()) status = buffer.Rebind(storages);
  });
  return status;
}

absl::Status Membership::CanChangeMemory(const LocalBuffer& buffer) {
  Pump();
  absl::MutexLock lock(&mu_);
  if (session_.buffer_state(buffer.id()) != BufferState::kUndefined) {
    return session_.CanRebind(buffer.id());
  }
  return absl::FailedPreconditionError(
      "the buffer is undefined: it holds parts of two versions; reset it first, answering for its "
      "content, or update it");
}

bool Membership::AwaitSealed(BufferId buffer, absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  const auto sealed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto found = sealed_.find(buffer);
    return session_.ended() || session_.buffer_state(buffer) != BufferState::kPublished ||
           (found != sealed_.end() && session_.joined() &&
            found->second == session_.buffer_generation(buffer));
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&sealed), timeout)) return false;
  const auto found = sealed_.find(buffer);
  return found != sealed_.end() && found->second == session_.buffer_generation(buffer);
}

bool Membership::connected() const {
  absl::MutexLock lock(&mu_);
  return session_.joined() && !session_.ended();
}

BufferState Membership::buffer_state(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.buffer_state(buffer);
}

VersionInfo Membership::buffer_version(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.buffer_version(buffer);
}

// ---- the server's word

void Membership::OnServerMessage(StreamId stream, const ServerMessage& message) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    if (stream != open_stream_) return;
    const auto* refused = std::get_if<Refused>(&message);
    refusal_ = refused == nullptr ? absl::OkStatus() : refused->status;
    session_.Handle(event::ServerSaid{message}, MonotonicNow());
  }
  Wake();
}

void Membership::OnStreamClosed(StreamId stream, absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    --streams_;
    if (stream != open_stream_) return;
    open_stream_ = {};
    refusal_ = absl::OkStatus();
    if (why.ok()) why = absl::UnavailableError("the server ended the stream");
    session_.Handle(event::StreamClosed{std::move(why)}, MonotonicNow());
  }
  Wake();
}

// ---- readers of our buffers

void Membership::OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    if (!ended_.has_value() && !left_) {
      const CapabilityClaims& claims = request.capability.claims;
      admissions_[request.transfer] = {
          .buffer = request.buffer,
          .decide = std::exchange(decide, nullptr),
          .report = {.event = EventOf(claims), .reader = claims.reader, .version = claims.version}};
      session_.Handle(event::AdmissionAsked{request.transfer, request.buffer, request.capability,
                                            request.generation},
                      MonotonicNow());
    }
  }
  if (decide != nullptr)
    return decide({absl::UnavailableError("this holder has left"), nullptr, {}});
  Wake();
}

void Membership::NoteSent(TransferId transfer, uint64_t bytes, bool released) {
  const auto found = served_.find(transfer);
  if (found == served_.end()) return;
  ServedTransfer& served = found->second;
  if (bytes > served.bytes) served.buffer->bytes_sent() += bytes - served.bytes;
  served.bytes = bytes;
  if (!released) return;
  served.report.what = ReaderReport::What::kReleased;
  served.report.bytes_sent = bytes;
  Report(std::move(served.report));
  served_.erase(found);
}

void Membership::Report(ReaderReport report) const {
  if (readers_ != nullptr) readers_->Report(std::move(report));
}

void Membership::OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) {
  ForeignThreadScope scope;
  absl::MutexLock lock(&mu_);
  NoteSent(transfer, bytes_sent_so_far, /*released=*/false);
  session_.Handle(event::ReaderBytesMoved{transfer}, MonotonicNow());  // asks for nothing
}

void Membership::OnReaderReleased(TransferId transfer, uint64_t bytes_sent) {
  ForeignThreadScope scope;
  {
    absl::MutexLock lock(&mu_);
    NoteSent(transfer, bytes_sent, /*released=*/true);
    const auto waiting = admissions_.find(transfer);
    if (waiting != admissions_.end()) waiting->second.released = true;
    session_.Handle(event::ReaderReleased{transfer}, MonotonicNow());
  }
  Wake();
}

}  // namespace th
