#include "th/server/scripted_worker.h"

#include <chrono>
#include <utility>

#include "th/status/status_macros.h"
#include "th/wire/wire.h"

namespace th {

ShardLayout TestLayout() {
  ShardLayout::Spec spec{.segment_bytes = kMinSegmentBytes};
  spec.tensors.push_back({.name = "weight", .dtype = DType::kF32, .shape = {128, 128}});
  return *ShardLayout::Build(std::move(spec));
}

JoinRequest TestJoin(const std::string& group) {
  return {.hello = {.min_version = kMinProtocolVersion,
                    .max_version = kProtocolVersion,
                    .software = "scripted worker"},
          .key = TestModel(),
          .name = {group, Rank(0)},
          .ranks = 1,
          .location = {.host = group},
          .endpoints = {{.address = "127.0.0.1:4711"}}};
}

AnnouncedBuffer TestBuffer() {
  const ShardLayout layout = TestLayout();
  return {.buffer = BufferId(1),
          .buffer_name = "weights",
          .form = kDefaultForm,
          .layout = layout.digest(),
          .bytes = layout.bytes(),
          .segment_count = layout.segment_count(),
          .generation = BufferGeneration(1)};
}

std::unique_ptr<tensorhub::v1::ReferenceServer::Stub> ConnectTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Every worker has a connection of its own, as in life.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytesOnWire);
  arguments.SetMaxSendMessageSize(kMaxMessageBytesOnWire);
  return tensorhub::v1::ReferenceServer::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

void SetTestDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTestDeadline));
}

ScriptedWorker::ScriptedWorker(const std::string& address) : stub_(ConnectTo(address)) {
  SetTestDeadline(context_);
  stream_ = stub_->Session(&context_);
}

ScriptedWorker::~ScriptedWorker() {
  if (finished_) return;
  context_.TryCancel();
  while (Read().has_value()) {
  }
  stream_->Finish();
}

bool ScriptedWorker::Send(const WorkerMessage& message) { return SendRaw(ToProto(message)); }

std::optional<ServerMessage> ScriptedWorker::Read() {
  tensorhub::v1::ServerToWorker frame;
  if (!stream_->Read(&frame)) return std::nullopt;
  absl::StatusOr<std::optional<ServerMessage>> message = FromProto(frame);
  return message.ok() ? *std::move(message) : std::nullopt;
}

grpc::Status ScriptedWorker::Finish() {
  finished_ = true;
  return stream_->Finish();
}

absl::StatusOr<Joined> ScriptedWorker::Join(const std::string& group) {
  Send(TestJoin(group));
  return Expect<Joined>();
}

absl::StatusOr<Joined> ScriptedWorker::JoinAndRegister(const std::string& group) {
  TH_ASSIGN_OR_RETURN(const Joined joined, Join(group));
  Send(RegisterBuffer{TestBuffer()});
  while (std::optional<ServerMessage> message = Read()) {
    if (std::holds_alternative<LayoutWanted>(*message)) Send(LayoutUpload{TestLayout()});
    if (const auto* registered = std::get_if<BufferRegistered>(&*message)) {
      TH_RETURN_IF_ERROR(registered->status);
      return joined;
    }
  }
  return absl::AbortedError("the stream ended before the buffer was registered");
}

absl::StatusOr<VersionInfo> ScriptedWorker::Publish(uint64_t number, const std::string& label) {
  TH_ASSIGN_OR_RETURN(VersionLabel parsed, VersionLabel::Parse(label));
  Send(StartOperation{.key = {BufferId(1), OperationNumber(number)},
                      .kind = OperationKind::kPublish,
                      .timeout = absl::Seconds(10),
                      .label = std::move(parsed)});
  TH_ASSIGN_OR_RETURN(const OperationFinished finished, Expect<OperationFinished>());
  TH_RETURN_IF_ERROR(finished.status);
  Send(ShardSealed{BufferId(1), finished.version.sequence, Sha256(label)});
  return finished.version;
}

}  // namespace th
