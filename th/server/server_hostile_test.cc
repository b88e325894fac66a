// Peers that send nonsense, too much, or do not read.
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/memory_store.h"
#include "th/server/scripted_worker.h"
#include "th/server/server_fixture.h"
#include "th/wire/wire.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST_F(ServerTest, AStreamThatDoesNotBeginWithAJoinIsRefused) {
  Start();
  ScriptedWorker worker(server_->address());
  worker.Send(Heartbeat{});
  ASSERT_OK_AND_ASSIGN(const Refused refused, worker.Expect<Refused>());
  EXPECT_FALSE(refused.status.ok());
  EXPECT_FALSE(worker.Read().has_value());
}

TEST_F(ServerTest, AMalformedFrameIsRefusedNamingTheFieldAndOthersAreServed) {
  Start();
  ScriptedWorker good(server_->address());
  ASSERT_OK(good.Join("good"));
  ScriptedWorker bad(server_->address());
  pb::WorkerToServer frame = ToProto(WorkerMessage(TestJoin("bad")));
  frame.mutable_join()->mutable_key()->set_run("");
  bad.SendRaw(frame);
  ASSERT_OK_AND_ASSIGN(const Refused refused, bad.Expect<Refused>());
  EXPECT_THAT(refused.status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("join.key.run")));
  EXPECT_FALSE(bad.Read().has_value());
  EXPECT_TRUE(bad.Finish().ok());
  good.Send(RegisterBuffer{TestBuffer()});
  EXPECT_OK(good.Expect<LayoutWanted>());
  EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_frames_refused_total 1\n"));
}

TEST_F(ServerTest, AFrameFromTheFutureIsIgnoredAndCounted) {
  Start();
  ScriptedWorker worker(server_->address());
  pb::WorkerToServer frame;
  ASSERT_TRUE(frame.ParseFromString(std::string("\x9a\x06\x00", 3)));  // member 99
  worker.SendRaw(frame);
  EXPECT_OK(worker.Join("trainer"));
  EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_frames_ignored_total 1\n"));
}

// Sends `bytes` as the request and returns how the call ended.
grpc::Status CallWith(const std::string& bytes, const std::string& address,
                      const std::string& method) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

const std::string& Garbage() {  // no protobuf
  static const auto& garbage = *new std::string("\xff\xff\xff\xff garbage");
  return garbage;
}

TEST_F(ServerTest, ACallWithGarbageInPlaceOfProtobufIsRefused) {
  Start();
  for (const char* method : {"List", "Resolve", "WaitVersion", "Command", "FindShard", "ClaimForm",
                             "GetLayout", "Events"}) {
    const std::string path = absl::StrCat("/tensorhub.v1.ReferenceServer/", method);
    const grpc::Status status = CallWith(Garbage(), server_->address(), path);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr(method));
  }
}

TEST_F(ServerTest, AMethodThatThereIsNotIsUnimplemented) {
  Start();
  const grpc::Status status =
      CallWith(Garbage(), server_->address(), "/tensorhub.v1.ReferenceServer/Explode");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServerTest, ACallThatNeverSendsItsRequestKeepsNobodyOut) {
  call_limits_.max_open = 1;
  Start();
  grpc::GenericStub stub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/tensorhub.v1.ReferenceServer/List", &queue);
  call->StartCall(nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(ok);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Eventually([&] { return List().ok(); })) << i;
  }
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServerTest, AStreamOfGarbageIsEndedAndHarmsNobody) {
  Start();
  // gRPC reports it to the server as the end of the stream.
  CallWith(Garbage(), server_->address(), "/tensorhub.v1.ReferenceServer/Session");
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_streams 0\n"); }));
  ScriptedWorker worker(server_->address());
  EXPECT_OK(worker.Join("trainer"));
}

TEST_F(ServerTest, AnOversizedFrameEndsOnlyItsStream) {
  Start();
  ScriptedWorker bad(server_->address());
  pb::WorkerToServer frame;
  frame.mutable_layout_upload()->set_layout(std::string(kMaxMessageBytesOnWire + 1, 'x'));
  bad.SendRaw(frame);
  EXPECT_FALSE(bad.Read().has_value());
  EXPECT_FALSE(bad.Finish().ok());
  ScriptedWorker good(server_->address());
  EXPECT_OK(good.Join("trainer"));
}

TEST_F(ServerTest, AWorkerThatDoesNotReadLosesItsStream) {
  StartWith(std::make_unique<MemoryStore>(OpenedState{.epoch = Epoch(1)}), {.max_messages = 8});
  ScriptedWorker deaf(server_->address());
  ASSERT_OK(deaf.Join("trainer"));
  // Each is answered; none of the answers is read.
  std::thread talking([&] {
    const std::string owner(200, 'o');
    for (int i = 0; i < 100'000; ++i) {
      if (!deaf.Send(RunCommand{absl::StrCat(std::string(100, 'k'), i),
                                ReleasePin{LatestVersion{}, owner}})) {
        return;
      }
    }
  });
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(Metrics(), "\ntensorhub_streams_overflowed_total 1\n"); }));
  talking.join();
  while (deaf.Read().has_value()) {
  }
  EXPECT_FALSE(deaf.Finish().ok());
  ScriptedWorker good(server_->address());
  EXPECT_OK(good.Join("rollout"));
}

TEST_F(ServerTest, ACallOfAnotherVersionIsRefusedNamingBothRanges) {
  Start();
  auto response = Call<pb::Catalog>(
      &Stub::List, ListQuery{{.min_version = 2, .max_version = 3, .software = "th 9"}, "", ""});
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("versions 1 to 1"), HasSubstr("2 to 3"))));
}

TEST_F(ServerTest, ACallWithABadFieldIsRefusedByName) {
  Start();
  EXPECT_THAT(Call<pb::ResolveResponse>(&Stub::Resolve, ResolveQuery{hello_, {"", "m"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("key.run")));
}

}  // namespace
}  // namespace th
