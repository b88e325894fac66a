// th_receive: Client::Receive, turned around. A thread of its own runs it; the function that takes
// a slice waits there until the caller has come for it and has given it back.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/c_interface/c_call.h"
#include "th/c_interface/c_handles.h"
#include "th/c_interface/c_options.h"
#include "th/c_interface/c_slot.h"
#include "th/c_interface/event_fd.h"
#include "th/c_interface/json_text.h"
#include "th/c_interface/tensorhub.h"
#include "th/client/cancel_hook.h"
#include "th/client/cancellation.h"
#include "th/client/process_guard.h"
#include "th/client/receive.h"
#include "th/status/status_macros.h"
#include "th/transfer/task_thread.h"

namespace th::c {
namespace {

// Shared by the thread that receives, the handle, and the client's set of what runs on it.
class PulledReceive final : public Running {
 public:
  PulledReceive(OperationSlot slot, std::unique_ptr<EventFd> event)
      : slot_(std::move(slot)), event_(std::move(event)) {}

  int fd() const { return event_->fd(); }

  // ---- the thread that receives
  void Run(const std::function<absl::StatusOr<ReceiveResult>(const TakeSlice&)>& receive) {
    absl::StatusOr<Answer> answer = Caught([&]() -> absl::StatusOr<Answer> {
      const CancellationScope scope(&cancellation_);
      TH_ASSIGN_OR_RETURN(const ReceiveResult result,
                          receive([this](const ReceivedSlice& slice) { return Offer(slice); }));
      Answer received;
      received.outcome = static_cast<th_outcome>(result.outcome);
      received.json = ReceiveResultToJson(result);
      return received;
    });
    absl::MutexLock lock(&mu_);
    answer_ = std::move(answer);
    turn_ = Turn::kEnded;
    event_->Set();
  }

  // ---- the caller
  absl::Status Next(absl::Duration timeout, th_slice* slice) {
    absl::MutexLock lock(&mu_);
    if (turn_ == Turn::kTaken) turn_ = Turn::kReceiving;
    const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return turn_ == Turn::kOffered || turn_ == Turn::kEnded;
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&ready), timeout)) {
      return absl::DeadlineExceededError("no slice has come in this time; call again");
    }
    if (turn_ == Turn::kEnded) {
      TH_RETURN_IF_ERROR(answer_.status());
      return FillStruct(th_slice{}, slice);
    }
    TH_RETURN_IF_ERROR(FillStruct(offered_, slice));
    turn_ = Turn::kTaken;
    event_->Clear();
    return absl::OkStatus();
  }
  absl::Status Result(th_outcome* outcome, char** json) const {
    absl::MutexLock lock(&mu_);
    if (turn_ != Turn::kEnded) {
      return absl::FailedPreconditionError("the receive is under way; take its slices first");
    }
    TH_RETURN_IF_ERROR(answer_.status());
    if (outcome != nullptr) *outcome = answer_->outcome;
    return Give(answer_->json, json);
  }
  void Cancel() { cancellation_.Cancel(); }
  // The slice that the caller has taken is given back with it.
  void End() override {
    Cancel();
    absl::MutexLock lock(&mu_);
    is_over_ = true;
    const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return turn_ == Turn::kEnded; };
    mu_.Await(absl::Condition(&ended));
  }

 private:
  enum class Turn {
    kReceiving,  // the next slice is on its way
    kOffered,    // it is there, and nobody has come for it
    kTaken,      // the caller reads it
    kEnded
  };

  absl::Status Offer(const ReceivedSlice& slice) {
    bool cancelled = false;
    const CancelHook hook([&] {
      absl::MutexLock lock(&mu_);
      cancelled = true;
    });
    absl::MutexLock lock(&mu_);
    offered_ = SliceOf(slice);
    turn_ = Turn::kOffered;
    event_->Set();
    // One that was taken is the caller's until it is given back, whoever cancels.
    const auto given_back = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return turn_ == Turn::kReceiving || is_over_ || (cancelled && turn_ == Turn::kOffered);
    };
    mu_.Await(absl::Condition(&given_back));
    const bool was_taken = turn_ != Turn::kOffered;
    turn_ = Turn::kReceiving;
    if (was_taken) return absl::OkStatus();
    event_->Clear();
    return absl::CancelledError("the caller cancelled the receive");
  }

  static th_slice SliceOf(const ReceivedSlice& slice) {
    return {.struct_size = 0,
            .name = slice.tensor.name.c_str(),
            .dtype = DTypeText(slice.tensor.dtype),
            .shape = slice.tensor.shape.data(),
            .dimensions = slice.tensor.shape.size(),
            .tensor_bytes = slice.tensor.bytes,
            .offset = slice.offset,
            .bytes = slice.bytes.size(),
            .data = slice.bytes.data(),
            .global_shape = slice.tensor.global_shape.data(),
            .slice_begin = slice.tensor.slice_begin.data()};
  }

  const OperationSlot slot_;
  const std::unique_ptr<EventFd> event_;  // set while kOffered or kEnded
  Cancellation cancellation_;
  mutable absl::Mutex mu_;
  Turn turn_ ABSL_GUARDED_BY(mu_) = Turn::kReceiving;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  th_slice offered_ ABSL_GUARDED_BY(mu_) = {};
  absl::StatusOr<Answer> answer_ ABSL_GUARDED_BY(mu_) = absl::UnknownError("not yet");
};

}  // namespace
}  // namespace th::c

// The name is C's. NOLINTNEXTLINE(readability-identifier-naming)
struct th_receive {
  const th::ProcessGuard guard;
  std::shared_ptr<th::c::PulledReceive> receive;
  std::unique_ptr<th::TaskThread> thread;
};

namespace {

using th::c::Guarded;
using th::c::Needed;
using th::c::PulledReceive;

absl::Status CanUse(const th_receive* receive) {
  TH_RETURN_IF_ERROR(Needed(receive, "receive"));
  return receive->guard.Check();
}

}  // namespace

th_status th_receive_open(th_client* client, const char* version, const th_receive_options* options,
                          th_receive** receive) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(Needed(receive, "receive"));
    *receive = nullptr;
    TH_RETURN_IF_ERROR(Needed(client, "client"));
    TH_RETURN_IF_ERROR(th::ClaimProcess());
    TH_ASSIGN_OR_RETURN(th::VersionSelector selector, th::c::ReadVersion(version, "version"));
    TH_ASSIGN_OR_RETURN(th::ReceiveOptions wanted, th::c::ReadReceive(options));
    TH_ASSIGN_OR_RETURN(th::c::OperationSlot slot, th::c::OperationSlot::Take());
    TH_ASSIGN_OR_RETURN(std::unique_ptr<th::c::EventFd> event, th::c::EventFd::Make());
    auto made = std::make_unique<th_receive>();
    made->receive = std::make_shared<PulledReceive>(std::move(slot), std::move(event));
    made->thread = std::make_unique<th::TaskThread>("th-receive");
    client->running.Add(made->receive);
    made->thread->Post([running = made->receive, client, selector = std::move(selector),
                        wanted = std::move(wanted)] {
      running->Run([&](const th::TakeSlice& take) {
        return client->client->Receive(selector, wanted, take);
      });
    });
    *receive = made.release();
    return absl::OkStatus();
  });
}

th_status th_receive_next(th_receive* receive, double timeout, th_slice* slice) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(receive));
    TH_RETURN_IF_ERROR(Needed(slice, "slice"));
    absl::Duration duration = absl::ZeroDuration();
    TH_RETURN_IF_ERROR(th::c::ReadSeconds(timeout, "timeout", duration));
    return receive->receive->Next(duration, slice);
  });
}

int th_receive_fd(const th_receive* receive) {
  return receive == nullptr ? -1 : receive->receive->fd();
}

th_status th_receive_result(th_receive* receive, th_outcome* outcome, char** result) {
  return Guarded([&]() -> absl::Status {
    if (outcome != nullptr) *outcome = TH_NONE;
    if (result != nullptr) *result = nullptr;
    TH_RETURN_IF_ERROR(CanUse(receive));
    return receive->receive->Result(outcome, result);
  });
}

th_status th_receive_cancel(th_receive* receive) {
  return Guarded([&]() -> absl::Status {
    TH_RETURN_IF_ERROR(CanUse(receive));
    receive->receive->Cancel();
    return absl::OkStatus();
  });
}

void th_receive_close(th_receive* receive) {
  if (receive == nullptr) return;
  std::unique_ptr<th_receive> closed(receive);
  if (closed->guard.forked()) return th::LeaveBehind(std::move(closed));
  closed->receive->End();
}
