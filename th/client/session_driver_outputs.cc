// The outputs of the session, carried out on th-control.
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "th/client/fill_driver.h"
#include "th/client/membership_figures.h"
#include "th/client/session_driver.h"
#include "th/transfer/monotonic_clock.h"

namespace th {

// ---- the stream

void SessionDriver::Do(OpenStream) {
  CloseStreamSoon();
  last_stream_ = last_stream_.Next();
  {
    absl::MutexLock lock(&mu_);
    open_stream_ = last_stream_;
    ++streams_;
  }
  stream_ = connector_->Open(last_stream_, shared_from_this());
  // The join may be written at once: it waits in gRPC until there is a connection.
  Handle(event::StreamOpened{});
}

void SessionDriver::Do(CloseStream) {
  {
    absl::MutexLock lock(&mu_);
    open_stream_ = {};
  }
  CloseStreamSoon();
}

void SessionDriver::CloseStreamSoon() {
  if (stream_ == nullptr) return;
  stream_->Finish();
  const std::weak_ptr<ControlStream> closing = stream_;
  runtime_->control().PostAfter(kStreamFlush, [closing] {
    if (const auto stream = closing.lock()) stream->Cancel();
  });
  stream_ = nullptr;
}

void SessionDriver::Do(SendToServer send) {
  if (stream_ != nullptr) stream_->Send(send.message);
}

// ---- the membership

void SessionDriver::Do(SessionJoined) {
  WorkerId worker;
  {
    absl::MutexLock lock(&mu_);
    worker = session_.worker();
  }
  // Where another membership of this process has the number, from another server, that one goes on:
  // its key does not fit what this one's readers say, so they are refused and go elsewhere.
  if (!holders_.contains(worker) && data_plane_->AddHolder(worker, this)) {
    holders_.insert(worker);
  }
  DropIdleHolders();
  absl::MutexLock lock(&mu_);
  joined_ = true;
}

// A rejoin may give the worker a new number. What was admitted under the old one lives on.
void SessionDriver::DropIdleHolders() {
  std::vector<WorkerId> idle;
  {
    absl::MutexLock lock(&mu_);
    if (!readers_.empty()) return;
    for (const WorkerId holder : holders_) {
      if (holder != session_.worker()) idle.push_back(holder);
    }
  }
  for (const WorkerId holder : idle) {
    data_plane_->RemoveHolder(holder);
    holders_.erase(holder);
  }
}

void SessionDriver::Do(SessionEnded ended) {
  std::vector<BufferPtr> buffers;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, buffer] : buffers_) buffers.push_back(buffer);
  }
  const absl::Status why =
      ended.status.ok() ? absl::CancelledError("this client has left") : ended.status;
  for (const BufferPtr& buffer : buffers) {
    Silence(*buffer);
    buffer->SetReady(why);
  }
  {
    // Not before: whoever waits for the end may unregister the buffers and free their memory.
    absl::MutexLock lock(&mu_);
    ended_ = ended.status;
  }
  RefuseAdmissions(why);
  for (const WorkerId holder : std::exchange(holders_, {})) {
    data_plane_->RemoveHolder(holder);
  }
  {
    absl::MutexLock lock(&mu_);
    readers_.ForgetServed();
    std::erase_if(buffers_, [](const auto& entry) { return entry.second->owns_memory(); });
  }
  CloseStreamSoon();
  EndCalls(why);
  FinishIfSilenced();
}

void SessionDriver::EndCalls(const absl::Status& status) {
  std::map<CallId, std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mu_);
    calls.swap(calls_);
  }
  for (const auto& [id, call] : calls) {
    call->done.status = status;
    call->command.status = status;
    const BufferPtr buffer = FindBuffer(call->buffer);
    if (buffer == nullptr) {
      Finish(call);
      continue;
    }
    // Its fill has been stopped and may still end what it writes just now.
    buffer->WhenQuiet([self = shared_from_this(), call = call] { self->Finish(call); });
  }
}

void SessionDriver::RefuseAdmissions(const absl::Status& status) {
  std::vector<ServedReaders::Decide> waiting;
  {
    absl::MutexLock lock(&mu_);
    waiting = readers_.TakeWaiting();
  }
  for (const ServedReaders::Decide& decide : waiting) {
    decide({absl::UnavailableError(status.message()), nullptr, {}});
  }
}

// ---- buffers

SessionDriver::BufferPtr SessionDriver::FindBuffer(BufferId id) const {
  absl::MutexLock lock(&mu_);
  const auto found = buffers_.find(id);
  return found == buffers_.end() ? nullptr : found->second;
}

void SessionDriver::Do(BufferReady ready) {
  if (const BufferPtr buffer = FindBuffer(ready.buffer)) buffer->SetReady(ready.status);
}

void SessionDriver::Do(ServingChanged serving) {
  if (const BufferPtr buffer = FindBuffer(serving.buffer)) buffer->Serve(serving);
}

void SessionDriver::Silence(LocalBuffer& buffer) {
  buffer.Close();
  std::vector<TransferId> transfers;
  {
    absl::MutexLock lock(&mu_);
    transfers = readers_.ReadersOf(&buffer);
  }
  for (const TransferId transfer : transfers) data_plane_->CutTransfer(transfer);
}

void SessionDriver::Do(StartSealing order) {
  const BufferPtr buffer = FindBuffer(order.buffer);
  if (buffer == nullptr) return;
  buffer->Seal(runtime_->SealerOf(buffer->gpu()), [self = shared_from_this(),
                                                   order](const absl::StatusOr<Digest>& root) {
    {
      absl::MutexLock lock(&self->mu_);  // whoever waits looks again, also where it has failed
      if (!root.ok()) return;
      self->session_.Handle(event::Sealed{order.buffer, order.version, order.generation, *root},
                            MonotonicNow());
    }
    self->SchedulePump();
  });
}

// ---- fills

void SessionDriver::Do(StartFill order) {
  const BufferPtr buffer = FindBuffer(order.buffer);
  if (buffer == nullptr) return;
  FillDriver::Parts parts;
  parts.data_plane = data_plane_;
  parts.session = shared_from_this();
  parts.store = buffer->store();
  parts.ring = buffer->ring();
  parts.mapping = buffer->mapping();
  parts.on_stopped = [self = shared_from_this(), buffer](std::shared_ptr<FillDriver> driver) {
    // The driver ends on th-control: th-fill must not be the last to hold it.
    self->runtime_->control().Post([self, buffer, driver = std::move(driver)] {
      if (driver != nullptr) buffer->FillStopped();
      absl::MutexLock lock(&self->mu_);
      self->fills_.erase(self->fills_.find(buffer.get()));
    });
  };
  {
    absl::MutexLock lock(&mu_);
    fills_.insert(buffer.get());
    for (const auto& [id, call] : calls_) {
      if (call->buffer == order.buffer && call->progress != nullptr)
        parts.progress = call->progress;
    }
  }
  buffer->StartFill(std::move(order), std::move(parts));
}

void SessionDriver::Do(SetSources order) {
  if (const BufferPtr buffer = FindBuffer(order.buffer)) buffer->SetSources(std::move(order));
}

void SessionDriver::Do(SetRoot order) {
  if (const BufferPtr buffer = FindBuffer(order.buffer)) buffer->SetRoot(order);
}

void SessionDriver::Do(StopFill order) {
  const auto stopped = [self = shared_from_this(), id = order.buffer] {
    self->Handle(event::FillStopped{id});
  };
  const BufferPtr buffer = FindBuffer(order.buffer);
  if (buffer == nullptr) return stopped();
  buffer->StopFill(order.operation, stopped);
}

// ---- readers

void SessionDriver::Do(CutReaders order) {
  for (const TransferId transfer : order.transfers) {
    data_plane_->CutTransfer(transfer);
  }
}

void SessionDriver::Do(FinishReaders order) {
  for (const TransferId transfer : order.transfers) {
    data_plane_->FinishTransfer(transfer);
  }
}

void SessionDriver::Do(AdmissionDecided decided) {
  std::optional<ServedReaders::Answer> answer;
  {
    absl::MutexLock lock(&mu_);
    answer = readers_.Decided(decided, [this](BufferId id) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      const auto found = buffers_.find(id);
      return found == buffers_.end() ? nullptr : found->second;
    });
  }
  if (answer.has_value()) answer->decide(std::move(answer->admission));
}

// ---- results

std::shared_ptr<Call> SessionDriver::TakeCall(CallId id) {
  absl::MutexLock lock(&mu_);
  const auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<Call> call = std::move(found->second);
  calls_.erase(found);
  return call;
}

void SessionDriver::Finish(const std::shared_ptr<Call>& call) {
  if (call->then != nullptr) runtime_->callbacks().Post([call] { call->then(*call); });
  call->finished.Notify();
}

namespace {

Verb VerbOf(OperationKind kind, const LocalBuffer* buffer) {
  if (kind == OperationKind::kPublish) return Verb::kPublish;
  if (kind == OperationKind::kUnpublish) return Verb::kUnpublish;
  if (buffer == nullptr) return Verb::kUpdate;
  if (buffer->ring() != nullptr || buffer->mapping() != nullptr) return Verb::kReceive;
  return buffer->owns_memory() ? Verb::kStage : Verb::kUpdate;
}

}  // namespace

void SessionDriver::Count(const Call& call, const LocalBuffer* buffer) {
  absl::MutexLock lock(&mu_);
  figures_.Count(VerbOf(call.done.kind, buffer), call.done, CostOf(call.fill),
                 call.fill.corrupt_segments);
}

void SessionDriver::Do(OperationDone done) {
  const std::shared_ptr<Call> call = TakeCall(done.call);
  if (call == nullptr) return;
  const BufferPtr buffer = FindBuffer(done.buffer);
  call->done = std::move(done);
  if (buffer == nullptr) {
    Count(*call, nullptr);
    return Finish(call);
  }
  // The caller may write or read the buffer next: nothing may land in it any more.
  buffer->WhenQuiet([self = shared_from_this(), call, buffer = buffer.get()] {
    if (call->done.kind == OperationKind::kUpdate) call->fill = buffer->TakeFillStatus();
    // The caller may free the memory next, so it has to know what still reads it.
    if (call->done.kind == OperationKind::kUnpublish && call->done.status.ok()) {
      call->done.status = buffer->device_status();
    }
    self->Count(*call, buffer);
    self->Finish(call);
  });
}

void SessionDriver::Do(CommandDone done) {
  const std::shared_ptr<Call> call = TakeCall(done.call);
  if (call == nullptr) return;
  call->command = std::move(done.finished);
  Finish(call);
}

}  // namespace th
