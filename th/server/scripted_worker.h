// A worker without a session: it says what a test scripts, over a real stream. For tests.
//
//   ScriptedWorker trainer(server->address());
//   ASSERT_OK_AND_ASSIGN(const Joined joined, trainer.Join("trainer"));
//   trainer.Send(StartOperation{…});
//   ASSERT_OK_AND_ASSIGN(const OperationFinished done, trainer.Expect<OperationFinished>());
#ifndef TH_SERVER_SCRIPTED_WORKER_H_
#define TH_SERVER_SCRIPTED_WORKER_H_

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/protocol/messages.h"

namespace th {

// No test waits longer for anything.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(30);

inline const ModelKey& TestModel() {
  static const ModelKey& key = *new ModelKey{"r1", "qwen3"};
  return key;
}

// A shard of 64 KiB in 4 KiB segments.
ShardLayout TestLayout();
// A join of rank 0 of 1.
JoinRequest TestJoin(const std::string& group);
AnnouncedBuffer TestBuffer();

std::unique_ptr<tensorhub::v1::ReferenceServer::Stub> ConnectTo(const std::string& address);
void SetTestDeadline(grpc::ClientContext& context);

// Not thread-safe.
class ScriptedWorker {
 public:
  explicit ScriptedWorker(const std::string& address);
  ~ScriptedWorker();  // cuts the stream when it is open still

  bool Send(const WorkerMessage& message);
  bool SendRaw(const tensorhub::v1::WorkerToServer& frame) { return stream_->Write(frame); }
  // nullopt: the server has ended the stream.
  std::optional<ServerMessage> Read();
  // Reads up to the next message of this kind. ABORTED when the stream ends before it came.
  template <typename T>
  absl::StatusOr<T> Expect() {
    std::string skipped;
    while (std::optional<ServerMessage> message = Read()) {
      if (T* found = std::get_if<T>(&*message)) return *std::move(found);
      absl::StrAppend(&skipped, " #", message->index());
    }
    return absl::AbortedError(absl::StrCat("the stream ended after", skipped));
  }
  // The stream's end. To be called once, when Read() has said that there is nothing more.
  grpc::Status Finish();
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }

  absl::StatusOr<Joined> Join(const std::string& group);
  // Joins, registers TestBuffer() and uploads its layout if asked.
  absl::StatusOr<Joined> JoinAndRegister(const std::string& group);
  // Publishes `label` as operation `number`, and seals it.
  absl::StatusOr<VersionInfo> Publish(uint64_t number, const std::string& label);

 private:
  std::unique_ptr<tensorhub::v1::ReferenceServer::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<tensorhub::v1::WorkerToServer, tensorhub::v1::ServerToWorker>>
      stream_;
  bool finished_ = false;
};

}  // namespace th

#endif  // TH_SERVER_SCRIPTED_WORKER_H_
