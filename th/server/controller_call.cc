#include "th/server/controller_call.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "th/wire/grpc_status.h"

namespace th {
namespace {

// From "ipv4:10.0.0.5:4711" or "ipv6:[fe80::1]:4711", whose brackets may be escaped ("%5B", "%5D").
std::string CallerText(absl::string_view peer) {
  std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  address = address.substr(address.find(':') + 1);
  return absl::StrCat("controller at ", address.substr(0, address.rfind(':')));
}

}  // namespace

absl::Status OpenCalls::Open() {
  absl::MutexLock lock(&mutex_);
  if (open_ >= limits_.max_open) {
    metrics_->calls_refused.fetch_add(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", limits_.max_open,
                     " calls whose answers have not been sent; try again later"));
  }
  ++open_;
  return absl::OkStatus();
}

absl::Status OpenCalls::AddAnswer(size_t bytes, bool final) {
  absl::MutexLock lock(&mutex_);
  if (!final && answer_bytes_ + bytes > limits_.max_answer_bytes) {
    metrics_->calls_refused.fetch_add(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", bytes, " bytes, and ", answer_bytes_, " of at most ",
                     limits_.max_answer_bytes, " wait for their callers to read; try again"));
  }
  answer_bytes_ += bytes;
  return absl::OkStatus();
}

void OpenCalls::Close(size_t answer_bytes) {
  absl::MutexLock lock(&mutex_);
  --open_;
  answer_bytes_ -= answer_bytes;
}

ControllerCall::ControllerCall(OpenCalls* open_calls, const Handler* handler,
                               const std::string& peer)
    : open_calls_(open_calls), handler_(handler), caller_(CallerText(peer)) {
  StartRead(&request_);
}

void ControllerCall::Send(const google::protobuf::MessageLite& answer, bool final) {
  const size_t bytes = answer.ByteSizeLong();
  if (const absl::Status taken = open_calls_->AddAnswer(bytes, final); !taken.ok())
    return Fail(taken);
  answer_bytes_ = bytes;
  bool own_buffer = false;
  const grpc::Status status = grpc::SerializationTraits<google::protobuf::MessageLite>::Serialize(
      answer, &answer_, &own_buffer);
  if (!status.ok()) return Finish(status);
  StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
}

void ControllerCall::Fail(const absl::Status& why) { Finish(ToGrpcStatus(why)); }

void ControllerCall::SetCancelCallback(absl::AnyInvocable<void()> on_cancel) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  on_cancel();
}

void ControllerCall::OnReadDone(bool ok) {
  if (!ok) return Fail(absl::InvalidArgumentError("the call came without a request"));
  // Counted from here on: who never sends a request keeps nobody else out.
  if (const absl::Status opened = open_calls_->Open(); !opened.ok()) return Fail(opened);
  counted_ = true;
  (*handler_)(*this, request_);
}

void ControllerCall::OnCancel() {
  absl::AnyInvocable<void()> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    on_cancel = std::exchange(on_cancel_, nullptr);
  }
  if (on_cancel) on_cancel();
}

void ControllerCall::OnDone() {
  if (counted_) open_calls_->Close(answer_bytes_);
  delete this;
}

}  // namespace th
