#include "th/client/grpc_control_stream.h"

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "th/client/grpc_channel.h"
#include "th/client/runtime.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {
namespace {

using Stub = pb::ReferenceServer::Stub;

// How the latest stream goes: noted by gRPC's threads, read on th-control.
class OutcomeNote {
 public:
  void Note(const ServerMessage& message) {
    absl::MutexLock lock(&mu_);
    if (std::holds_alternative<Joined>(message)) outcome_.joined = true;
    if (const auto* refused = std::get_if<Refused>(&message)) outcome_.redirect = refused->redirect;
  }
  StreamOutcome outcome() const {
    absl::MutexLock lock(&mu_);
    return outcome_;
  }

 private:
  mutable absl::Mutex mu_;
  StreamOutcome outcome_ ABSL_GUARDED_BY(mu_);
};

// Holds itself until gRPC's OnDone. One write is in flight at a time. The hold of the reactor keeps
// OnDone away as long as writes may still be started from outside of gRPC's own calls.
class GrpcControlStream final
    : public ControlStream,
      public grpc::ClientBidiReactor<pb::WorkerToServer, pb::ServerToWorker> {
 public:
  GrpcControlStream(StreamId id, std::shared_ptr<ControlStreamObserver> observer,
                    std::shared_ptr<Stub> stub, std::shared_ptr<ControlByteCount> bytes,
                    std::shared_ptr<Runtime> runtime, std::shared_ptr<OutcomeNote> note)
      : id_(id),
        note_(std::move(note)),
        runtime_(std::move(runtime)),
        observer_(std::move(observer)),
        stub_(std::move(stub)),
        bytes_(std::move(bytes)) {}

  void Start(std::shared_ptr<GrpcControlStream> self) {
    self_ = std::move(self);
    stub_->async()->Session(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  void Send(const WorkerMessage& message) override;
  void Finish() override;
  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool) override {}
  void OnDone(const grpc::Status& status) override;

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // No write will be started from here on.
  void StopWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndBecause(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

  const StreamId id_;
  const std::shared_ptr<OutcomeNote> note_;  // shared with the connector, which the stream outlives
  const std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<ControlStreamObserver> observer_;
  const std::shared_ptr<Stub> stub_;  // shared with the connector
  const std::shared_ptr<ControlByteCount> bytes_;
  grpc::ClientContext context_;
  pb::ServerToWorker incoming_;
  std::shared_ptr<GrpcControlStream> self_;

  absl::Mutex mu_;
  std::deque<pb::WorkerToServer> queue_ ABSL_GUARDED_BY(mu_);  // the front one is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status own_reason_ ABSL_GUARDED_BY(mu_);
};

void GrpcControlStream::Send(const WorkerMessage& message) {
  pb::WorkerToServer frame = ToProto(message);
  absl::MutexLock lock(&mu_);
  if (stopped_ || finishing_) return;
  if (queue_.size() >= kMaxQueuedMessages) {
    own_reason_ = absl::ResourceExhaustedError(absl::StrCat(
        "the server takes no messages: ", queue_.size(), " wait to be sent (kMaxQueuedMessages)"));
    context_.TryCancel();
    return;
  }
  *bytes_ += frame.ByteSizeLong();
  queue_.push_back(std::move(frame));
  if (!writing_) WriteNext();
}

void GrpcControlStream::WriteNext() {
  writing_ = !queue_.empty();
  if (writing_) {
    StartWrite(&queue_.front());
  } else if (finishing_) {
    StartWritesDone();
    StopWriting();
  }
}

void GrpcControlStream::StopWriting() {
  if (stopped_) return;
  stopped_ = true;
  RemoveHold();
}

void GrpcControlStream::Finish() {
  absl::MutexLock lock(&mu_);
  if (stopped_ || finishing_) return;
  finishing_ = true;
  if (!writing_) WriteNext();
}

void GrpcControlStream::EndBecause(absl::Status why) {
  absl::MutexLock lock(&mu_);
  if (own_reason_.ok()) own_reason_ = std::move(why);
  context_.TryCancel();
}

void GrpcControlStream::OnWriteDone(bool ok) {
  ForeignThreadScope scope;
  absl::MutexLock lock(&mu_);
  queue_.pop_front();
  if (!ok) {
    writing_ = false;
    return StopWriting();
  }
  if (!stopped_) WriteNext();
}

void GrpcControlStream::OnReadDone(bool ok) {
  ForeignThreadScope scope;
  if (!ok) {
    absl::MutexLock lock(&mu_);
    return StopWriting();
  }
  *bytes_ += incoming_.ByteSizeLong();
  absl::StatusOr<std::optional<ServerMessage>> message = FromProto(incoming_);
  if (!message.ok()) {
    EndBecause(absl::Status(
        message.status().code(),
        absl::StrCat("the server's message is not understood: ", message.status().message())));
  } else if (message->has_value()) {
    note_->Note(**message);
    observer_->OnServerMessage(id_, **message);
  }
  StartRead(&incoming_);
}

void GrpcControlStream::OnDone(const grpc::Status& status) {
  ForeignThreadScope scope;
  absl::Status why = FromGrpcStatus(status);
  {
    absl::MutexLock lock(&mu_);
    if (!own_reason_.ok()) why = own_reason_;
  }
  TaskLoop& control = runtime_->control();
  control.Post([self = std::move(self_), why = std::move(why)] {
    std::exchange(self->observer_, nullptr)->OnStreamClosed(self->id_, why);
  });
}

class GrpcConnector final : public ControlConnector {
 public:
  GrpcConnector(ServerList servers, std::shared_ptr<ControlByteCount> bytes,
                std::shared_ptr<Runtime> runtime)
      : servers_(std::move(servers)), bytes_(std::move(bytes)), runtime_(std::move(runtime)) {}

  std::shared_ptr<ControlStream> Open(StreamId id,
                                      std::shared_ptr<ControlStreamObserver> observer) override {
    const std::string before = servers_.current();
    if (note_ != nullptr) {
      servers_.MoveAfter(note_->outcome());
      servers_.ReadAgain();
    }
    if (stub_ == nullptr || servers_.current() != before) {
      stub_ = pb::ReferenceServer::NewStub(MakeChannel(servers_.current()));
    }
    note_ = std::make_shared<OutcomeNote>();
    auto stream = std::make_shared<GrpcControlStream>(id, std::move(observer), stub_, bytes_,
                                                      runtime_, note_);
    stream->Start(stream);
    return stream;
  }

 private:
  ServerList servers_;
  std::shared_ptr<OutcomeNote> note_;  // of the latest stream, shared with it; null: there was none
  const std::shared_ptr<ControlByteCount> bytes_;
  const std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Stub> stub_;  // shared with the streams
};

}  // namespace

std::unique_ptr<ControlConnector> MakeGrpcConnector(ServerList servers,
                                                    std::shared_ptr<ControlByteCount> bytes,
                                                    std::shared_ptr<Runtime> runtime) {
  return std::make_unique<GrpcConnector>(std::move(servers), std::move(bytes), std::move(runtime));
}

}  // namespace th
