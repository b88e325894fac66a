#include "th/c_interface/c_call.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/c_interface/c_options.h"
#include "th/c_interface/c_slot.h"
#include "th/c_interface/event_fd.h"
#include "th/client/cancellation.h"
#include "th/client/process_guard.h"
#include "th/protocol/error_fields.h"
#include "th/status/status_macros.h"
#include "th/transfer/task_thread.h"

namespace th::c {
namespace {

struct ErrorParts {
  th_status code = TH_OK;
  std::string text;
  ErrorFields fields;
};

ErrorParts& LastError() {
  thread_local ErrorParts parts;
  return parts;
}

ErrorParts PartsOf(const absl::Status& status) {
  return {.code = static_cast<th_status>(status.code()),
          .text = std::string(status.message()),
          .fields = FieldsOf(status)};
}

absl::Status FillError(const ErrorParts& parts, th_error* error) {
  TH_RETURN_IF_ERROR(Needed(error, "error"));
  return FillStruct(th_error{.struct_size = 0,
                             .code = parts.code,
                             .text = parts.text.c_str(),
                             .word = parts.fields.word.c_str(),
                             .rank = parts.fields.rank.c_str(),
                             .event = parts.fields.event.c_str()},
                    error);
}

void SetToNothing(const Outs& outs) {
  if (outs.outcome != nullptr) *outs.outcome = TH_NONE;
  if (outs.json != nullptr) *outs.json = nullptr;
  if (outs.yes != nullptr) *outs.yes = 0;
  if (outs.client != nullptr) *outs.client = nullptr;
  if (outs.buffer != nullptr) *outs.buffer = nullptr;
  if (outs.attached != nullptr) *outs.attached = nullptr;
  if (outs.controller != nullptr) *outs.controller = nullptr;
}

absl::Status GiveOut(Answer answer, const Outs& outs) {
  if (!answer.json.empty()) TH_RETURN_IF_ERROR(Give(answer.json, outs.json));
  if (outs.outcome != nullptr) *outs.outcome = answer.outcome;
  if (outs.yes != nullptr) *outs.yes = answer.yes ? 1 : 0;
  if (outs.client != nullptr) *outs.client = answer.client.release();
  if (outs.buffer != nullptr) *outs.buffer = answer.buffer.release();
  if (outs.attached != nullptr) *outs.attached = answer.attached.release();
  if (outs.controller != nullptr) *outs.controller = answer.controller.release();
  return absl::OkStatus();
}

}  // namespace

th_status Reported(const absl::Status& status) {
  LastError() = PartsOf(status);
  return LastError().code;
}

th_status Guarded(absl::FunctionRef<absl::Status()> body) {
  try {
    return Reported(body());
  } catch (const std::exception& thrown) {
    return Reported(absl::InternalError(thrown.what()));
  } catch (...) {
    return Reported(absl::InternalError("unknown exception"));
  }
}

absl::StatusOr<Answer> Caught(const std::function<absl::StatusOr<Answer>()>& run) {
  try {
    return run();
  } catch (const std::exception& thrown) {
    return absl::InternalError(thrown.what());
  } catch (...) {
    return absl::InternalError("unknown exception");
  }
}

absl::Status Needed(const void* pointer, absl::string_view what) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is NULL"));
}

absl::Status Give(const std::string& text, char** out) {
  if (out == nullptr) return absl::OkStatus();
  *out = strdup(text.c_str());
  return *out == nullptr ? absl::ResourceExhaustedError("out of memory") : absl::OkStatus();
}

th_status RunNow(ReadCall read, Outs outs) {
  return Guarded([&]() -> absl::Status {
    SetToNothing(outs);
    TH_ASSIGN_OR_RETURN(const Call call, read());
    TH_ASSIGN_OR_RETURN(Answer answer, call.run());
    return GiveOut(std::move(answer), outs);
  });
}

// The state that the thread of an operation, its handle and the handle that it uses share.
class Operation final : public Running {
 public:
  Operation(OperationSlot slot, std::unique_ptr<EventFd> event, std::shared_ptr<Progress> progress)
      : slot_(std::move(slot)), event_(std::move(event)), progress_(std::move(progress)) {}

  void Run(std::function<absl::StatusOr<Answer>()> run) {
    absl::StatusOr<Answer> answer = absl::UnknownError("not yet");
    {
      const CancellationScope scope(&cancellation_);
      answer = Caught(run);
      run = nullptr;
    }
    absl::MutexLock lock(&mu_);
    error_ = PartsOf(answer.status());
    status_ = answer.status();
    if (answer.ok()) answer_ = *std::move(answer);
    ended_ = true;
    event_->Set();  // who has waited for the end finds it readable
  }

  void Cancel() { cancellation_.Cancel(); }
  void End() override {
    Cancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&ended_));
  }
  bool Wait(absl::Duration timeout) const {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&ended_), timeout);
  }
  int fd() const { return event_->fd(); }
  const Progress* progress() const { return progress_.get(); }

  // ---- once it has ended; FAILED_PRECONDITION before
  absl::Status Result(th_outcome* outcome, char** json) const {
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(CheckEnded());
    TH_RETURN_IF_ERROR(status_);
    if (outcome != nullptr) *outcome = answer_.outcome;
    return answer_.json.empty() ? absl::OkStatus() : Give(answer_.json, json);
  }
  absl::Status Error(th_error* error) const {
    absl::MutexLock lock(&mu_);
    TH_RETURN_IF_ERROR(CheckEnded());
    return FillError(error_, error);
  }
  template <typename Handle>
  Handle* Take(std::unique_ptr<Handle> Answer::*made) {
    absl::MutexLock lock(&mu_);
    return ended_ ? (answer_.*made).release() : nullptr;
  }

 private:
  absl::Status CheckEnded() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (ended_) return absl::OkStatus();
    return absl::FailedPreconditionError("the operation is under way; wait for it");
  }

  const OperationSlot slot_;
  const std::unique_ptr<EventFd> event_;
  const std::shared_ptr<Progress> progress_;
  Cancellation cancellation_;
  mutable absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  ErrorParts error_ ABSL_GUARDED_BY(mu_);
  Answer answer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th::c

// The name is C's. NOLINTNEXTLINE(readability-identifier-naming)
struct th_operation {
  const th::ProcessGuard guard;
  std::shared_ptr<th::c::Operation> call;
  std::unique_ptr<th::TaskThread> thread;
};

namespace th::c {

th_status Start(ReadCall read, th_operation** operation) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(operation, "operation"));
    *operation = nullptr;
    TH_RETURN_IF_ERROR(ClaimProcess());
    TH_ASSIGN_OR_RETURN(Call call, read());
    TH_ASSIGN_OR_RETURN(OperationSlot slot, OperationSlot::Take());
    TH_ASSIGN_OR_RETURN(std::unique_ptr<EventFd> event, EventFd::Make());
    auto made = std::make_unique<th_operation>();
    made->call =
        std::make_shared<Operation>(std::move(slot), std::move(event), std::move(call.progress));
    made->thread = std::make_unique<TaskThread>("th-call");
    if (call.on != nullptr) call.on->Add(made->call);
    made->thread->Post([running = made->call, run = std::move(call.run)]() mutable {
      running->Run(std::move(run));
    });
    *operation = made.release();
    return absl::OkStatus();
  });
}

namespace {

absl::Status CanUse(const th_operation* operation) {
  TH_RETURN_IF_ERROR(Needed(operation, "operation"));
  return operation->guard.Check();
}

template <typename Handle>
Handle* Take(th_operation* operation, std::unique_ptr<Handle> Answer::*made) {
  return CanUse(operation).ok() ? operation->call->Take(made) : nullptr;
}

}  // namespace
}  // namespace th::c

using th::c::Answer;
using th::c::CanUse;
using th::c::Guarded;

// ---- errors

const char* th_last_error(void) { return th::c::LastError().text.c_str(); }

th_status th_last_error_fields(th_error* error) {
  // It leaves the last error as it is.
  return static_cast<th_status>(th::c::FillError(th::c::LastError(), error).code());
}

// ---- operations

int th_operation_fd(const th_operation* operation) {
  return operation == nullptr ? -1 : operation->call->fd();
}

th_status th_operation_wait(const th_operation* operation, double timeout) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(operation));
    absl::Duration duration = absl::ZeroDuration();
    TH_RETURN_IF_ERROR(th::c::ReadSeconds(timeout, "timeout", duration));
    if (operation->call->Wait(duration)) return absl::OkStatus();
    return absl::DeadlineExceededError("the operation is under way");
  });
}

th_status th_operation_cancel(th_operation* operation) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(operation));
    operation->call->Cancel();
    return absl::OkStatus();
  });
}

th_status th_operation_progress(const th_operation* operation, th_progress* progress) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(operation));
    TH_RETURN_IF_ERROR(th::c::Needed(progress, "progress"));
    th_progress made{};
    if (const th::c::Progress* known = operation->call->progress()) {
      made.bytes_received = known->bytes_received;
      made.bytes_total = known->bytes_total;
    }
    return th::c::FillStruct(made, progress);
  });
}

th_status th_operation_result(const th_operation* operation, th_outcome* outcome, char** result) {
  return Guarded([&]() -> absl::Status {
    if (outcome != nullptr) *outcome = TH_NONE;
    if (result != nullptr) *result = nullptr;
    TH_RETURN_IF_ERROR(CanUse(operation));
    return operation->call->Result(outcome, result);
  });
}

th_status th_operation_error(const th_operation* operation, th_error* error) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(operation));
    return operation->call->Error(error);
  });
}

th_client* th_operation_take_client(th_operation* operation) {
  return th::c::Take(operation, &Answer::client);
}

th_buffer* th_operation_take_buffer(th_operation* operation) {
  return th::c::Take(operation, &Answer::buffer);
}

th_attached* th_operation_take_attached(th_operation* operation) {
  return th::c::Take(operation, &Answer::attached);
}

th_controller* th_operation_take_controller(th_operation* operation) {
  return th::c::Take(operation, &Answer::controller);
}

void th_operation_free(th_operation* operation) {
  if (operation == nullptr) return;
  std::unique_ptr<th_operation> freed(operation);
  if (freed->guard.forked()) return th::LeaveBehind(std::move(freed));
  freed->call->End();
}
