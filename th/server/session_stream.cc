#include "th/server/session_stream.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {

SessionStream* SessionStream::Start(grpc::CallbackServerContext* context, RegistryLoop* loop,
                                    ServerMetrics* metrics, OutboundLimits limits) {
  std::shared_ptr<SessionStream> stream(new SessionStream(context, loop, metrics, limits));
  stream->self_ = stream;
  stream->connection_ = loop->Open(stream);
  stream->StartRead(&stream->incoming_);
  return stream.get();
}

SessionStream::SessionStream(grpc::CallbackServerContext* context, RegistryLoop* loop,
                             ServerMetrics* metrics, OutboundLimits limits)
    : loop_(loop), metrics_(metrics), limits_(limits), context_(context) {
  metrics_->streams.fetch_add(1, std::memory_order_relaxed);
}

SessionStream::~SessionStream() = default;

bool SessionStream::Send(const ServerMessage& message) {
  Outbound out{.frame = ToProto(message)};
  out.bytes = out.frame.ByteSizeLong();
  absl::MutexLock lock(&mutex_);
  if (finished_ || closing_) return true;  // its end is known to the loop, or will be at once
  if (outbound_.size() >= limits_.max_messages || outbound_bytes_ + out.bytes > limits_.max_bytes) {
    metrics_->streams_overflowed.fetch_add(1, std::memory_order_relaxed);
    FinishOnce(ToGrpcStatus(absl::ResourceExhaustedError(
        absl::StrCat("this worker has not read the last ", outbound_.size(), " messages"))));
    return false;
  }
  outbound_bytes_ += out.bytes;
  outbound_.push_back(std::move(out));
  if (outbound_.size() == 1) WriteNext();
  return true;
}

void SessionStream::ReadNext() {
  absl::MutexLock lock(&mutex_);
  if (!finished_) StartRead(&incoming_);
}

void SessionStream::CloseAfterSending() {
  absl::MutexLock lock(&mutex_);
  closing_ = true;
  // The status is OK, as gRPC may drop messages that its peer has not read yet when it is an error.
  // The last message said why the stream ends.
  if (outbound_.empty()) FinishOnce(grpc::Status::OK);
}

void SessionStream::Abort() {
  absl::MutexLock lock(&mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

void SessionStream::OnReadDone(bool ok) {
  if (!ok) return loop_->HandleDisconnect(connection_);
  metrics_->frames_received.fetch_add(1, std::memory_order_relaxed);
  absl::StatusOr<std::optional<WorkerMessage>> message = FromProto(incoming_);
  incoming_.Clear();
  if (!message.ok()) {
    metrics_->frames_refused.fetch_add(1, std::memory_order_relaxed);
    return loop_->HandleBadFrame(connection_, std::move(message).status());
  }
  if (!message->has_value()) {
    metrics_->frames_ignored.fetch_add(1, std::memory_order_relaxed);
    return ReadNext();
  }
  loop_->HandleMessage(connection_, **std::move(message));
}

void SessionStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  outbound_bytes_ -= outbound_.front().bytes;
  outbound_.pop_front();
  if (finished_) return;
  if (!ok) return FinishOnce(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the peer is gone"));
  metrics_->frames_sent.fetch_add(1, std::memory_order_relaxed);
  if (!outbound_.empty()) return WriteNext();
  if (closing_) FinishOnce(grpc::Status::OK);
}

void SessionStream::OnCancel() { loop_->HandleDisconnect(connection_); }

void SessionStream::OnDone() {
  metrics_->streams.fetch_sub(1, std::memory_order_relaxed);
  loop_->HandleDisconnect(connection_);
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  }
  const std::shared_ptr<SessionStream> last_of_grpc = std::move(self_);
}

void SessionStream::WriteNext() { StartWrite(&outbound_.front().frame); }

void SessionStream::FinishOnce(const grpc::Status& status) {
  if (std::exchange(finished_, true)) return;
  Finish(status);
}

}  // namespace th
