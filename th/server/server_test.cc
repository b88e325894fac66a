// The whole server with real streams on loopback, but without workers' sessions and without data.
#include "th/server/server.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/file_store.h"
#include "th/coordination/memory_store.h"
#include "th/server/freezing_proxy.h"
#include "th/server/http_get.h"
#include "th/server/scripted_worker.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::StatusIs;

constexpr absl::Duration kGrace = absl::Seconds(5);

class ServerTest : public ::testing::Test {
 protected:
  ServerTest()
      : state_dir_(absl::StrCat(::testing::TempDir(), "/server-",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(state_dir_);
    limits_.recovery_window = absl::Milliseconds(50);
  }
  ~ServerTest() override {
    server_.reset();
    std::filesystem::remove_all(state_dir_);
  }

  // A server over what an earlier one has left.
  void Start(OutboundLimits outbound = {}) {
    absl::StatusOr<std::unique_ptr<FileStore>> store = FileStore::Open(state_dir_);
    ASSERT_OK(store);
    StartWith(*std::move(store), outbound);
  }
  void StartWith(std::unique_ptr<DurableStore> store, OutboundLimits outbound = {}) {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start({.listen = "127.0.0.1:0",
                                                                    .http_listen = "127.0.0.1:0",
                                                                    .store = std::move(store),
                                                                    .limits = limits_,
                                                                    .outbound = outbound,
                                                                    .software = "server_test",
                                                                    .shutdown_grace = kGrace});
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = ConnectTo(server_->address());
  }

  // One unary call: `method` of the stub with the query as protobuf.
  template <typename Response, typename Query, typename Method>
  absl::StatusOr<Response> Call(Method method, const Query& query) {
    grpc::ClientContext context;
    SetTestDeadline(context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, ToProto(query), &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<Catalog> List() {
    auto response = Call<pb::Catalog>(&Stub::List, ListQuery{hello_, "", ""});
    if (!response.ok()) return response.status();
    return FromProto(*response);
  }
  absl::StatusOr<VersionInfo> Resolve(VersionSelector selector) {
    auto response = Call<pb::ResolveResponse>(
        &Stub::Resolve, ResolveQuery{hello_, TestModel(), std::move(selector)});
    if (!response.ok()) return response.status();
    return FromProto(response->version());
  }
  absl::StatusOr<VersionInfo> Wait(VersionSequence after, absl::Duration timeout) {
    auto response = Call<pb::ResolveResponse>(
        &Stub::WaitVersion, WaitQuery{hello_, TestModel(), LatestVersion{}, after, timeout});
    if (!response.ok()) return response.status();
    return FromProto(response->version());
  }
  absl::StatusOr<CommandFinished> Command(RunCommand command) {
    auto response = Call<pb::CommandFinished>(
        &Stub::Command, ControllerCommand{hello_, TestModel(), std::move(command)});
    if (!response.ok()) return response.status();
    return FromProto(*response);
  }
  // Looks again and again until `good`, or the test's deadline has passed.
  bool Eventually(const std::function<bool()>& good) {
    const absl::Time deadline = absl::Now() + kTestDeadline;
    while (absl::Now() < deadline) {
      if (good()) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::string Metrics() { return HttpGet(server_->http_address(), "/metrics"); }

  using Stub = tensorhub::v1::ReferenceServer::Stub;
  const std::string state_dir_;
  const ProtocolHello hello_{.min_version = 1, .max_version = 1, .software = "test"};
  RegistryLimits limits_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stub> stub_;
};

// ---------------------------------------------------------------------------------------------
// Joining

TEST_F(ServerTest, AJoinIsAnsweredWithEpochWorkerKeyAndLease) {
  Start();
  ScriptedWorker worker(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined joined, worker.Join("trainer"));
  EXPECT_EQ(joined.epoch, Epoch(1));
  EXPECT_NE(joined.worker, WorkerId());
  EXPECT_NE(joined.key, CapabilityKey());
  EXPECT_EQ(joined.lease, limits_.lease);
  EXPECT_EQ(joined.hello.max_version, kProtocolVersion);
}

TEST_F(ServerTest, WorkersGetDifferentKeys) {
  Start();
  ScriptedWorker first(server_->address());
  ScriptedWorker second(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined a, first.Join("trainer"));
  ASSERT_OK_AND_ASSIGN(const Joined b, second.Join("rollout"));
  EXPECT_NE(a.key, b.key);
  EXPECT_NE(a.worker, b.worker);
}

TEST_F(ServerTest, ASecondWorkerForALiveRankIsRefusedNamingTheHolder) {
  Start();
  ScriptedWorker holder(server_->address());
  ASSERT_OK(holder.Join("trainer"));
  ScriptedWorker second(server_->address());
  second.Send(TestJoin("trainer"));
  ASSERT_OK_AND_ASSIGN(const Refused refused, second.Expect<Refused>());
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kAlreadyExists,
                                       AllOf(HasSubstr("trainer/0"), HasSubstr("127.0.0.1:4711"))));
  EXPECT_FALSE(second.Read().has_value());
  EXPECT_TRUE(second.Finish().ok());
}

TEST_F(ServerTest, ARankWhoseStreamBrokeIsReplacedAtOnce) {
  limits_.lease = absl::Minutes(5);
  Start();
  auto first = std::make_unique<ScriptedWorker>(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined before, first->Join("trainer"));
  first.reset();
  ASSERT_TRUE(Eventually([&] {
    ScriptedWorker second(server_->address());
    const absl::StatusOr<Joined> after = second.Join("trainer");
    return after.ok() && after->worker > before.worker;
  }));
}

TEST_F(ServerTest, ARankOutsideItsGroupIsRefused) {
  Start();
  ScriptedWorker worker(server_->address());
  JoinRequest join = TestJoin("trainer");
  join.name.rank = Rank(7);
  worker.Send(join);
  ASSERT_OK_AND_ASSIGN(const Refused refused, worker.Expect<Refused>());
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("trainer/7")));
}

TEST_F(ServerTest, RanksThatDisagreeOnTheGroupsSizeAreRefused) {
  Start();
  ScriptedWorker zero(server_->address());
  JoinRequest join = TestJoin("trainer");
  join.ranks = 2;
  zero.Send(join);
  ASSERT_OK(zero.Expect<Joined>());
  ScriptedWorker one(server_->address());
  join.name.rank = Rank(1);
  join.ranks = 4;
  one.Send(join);
  ASSERT_OK_AND_ASSIGN(const Refused refused, one.Expect<Refused>());
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("4 ranks"), HasSubstr("2"))));
}

TEST_F(ServerTest, ASilentWorkerLosesItsLease) {
  limits_.lease = absl::Milliseconds(100);
  Start();
  ScriptedWorker worker(server_->address());
  ASSERT_OK(worker.Join("trainer"));
  ASSERT_OK_AND_ASSIGN(const Refused refused, worker.Expect<Refused>());
  EXPECT_THAT(refused.status.message(), HasSubstr("lease"));
}

TEST_F(ServerTest, AWorkerThatSpeaksTheNextVersionTooIsServed) {
  Start();
  ScriptedWorker worker(server_->address());
  JoinRequest join = TestJoin("trainer");
  join.hello.max_version = kProtocolVersion + 1;
  worker.Send(join);
  EXPECT_OK(worker.Expect<Joined>());
}

TEST_F(ServerTest, AWorkerThatSpeaksOnlyTheNextVersionIsRefusedNamingBothRanges) {
  Start();
  ScriptedWorker worker(server_->address());
  JoinRequest join = TestJoin("trainer");
  join.hello.min_version = join.hello.max_version = 2;
  worker.Send(join);
  ASSERT_OK_AND_ASSIGN(const Refused refused, worker.Expect<Refused>());
  EXPECT_THAT(refused.status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("versions 1 to 1"), HasSubstr("versions 2 to 2"))));
}

// ---------------------------------------------------------------------------------------------
// Publish and update

TEST_F(ServerTest, AVersionGoesFromPublisherToReader) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined trainer_joined, trainer.JoinAndRegister("trainer"));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-1"));
  EXPECT_EQ(version.label.text(), "step-1");

  ScriptedWorker rollout(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined joined, rollout.JoinAndRegister("rollout"));
  const OperationKey key{BufferId(1), OperationNumber(1)};
  rollout.Send(
      StartOperation{.key = key, .kind = OperationKind::kUpdate, .timeout = absl::Seconds(10)});
  ASSERT_OK_AND_ASSIGN(const OperationResolved resolved, rollout.Expect<OperationResolved>());
  EXPECT_EQ(resolved.version.sequence, version.sequence);
  rollout.Send(ReadyToFill{key, BufferGeneration(2)});
  ASSERT_OK_AND_ASSIGN(const AssignSources assigned, rollout.Expect<AssignSources>());
  ASSERT_EQ(assigned.sources.size(), 1u);
  const AssignedSource& source = assigned.sources[0];
  EXPECT_EQ(source.buffer, (BufferAddress{trainer_joined.worker, BufferId(1)}));
  EXPECT_EQ(source.name.ToString(), "trainer/0");
  EXPECT_TRUE(source.publisher);
  ASSERT_EQ(source.endpoints.size(), 1u);
  EXPECT_EQ(source.endpoints[0].address, "127.0.0.1:4711");
  // What the source will check.
  EXPECT_OK(VerifyCapability(trainer_joined.key, source.capability));
  EXPECT_EQ(source.capability.claims.reader, joined.worker);

  rollout.Send(FillProgress{key, version.sequence, SegmentSet::AllOf(16)});
  rollout.Send(RankDone{key});
  ASSERT_OK_AND_ASSIGN(const OperationFinished finished, rollout.Expect<OperationFinished>());
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.outcome, UpdateOutcome::kMoved);
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, List());
  ASSERT_EQ(catalog.models.size(), 1u);
  ASSERT_EQ(catalog.models[0].versions.size(), 1u);
  EXPECT_EQ(catalog.models[0].versions[0].replicas.size(), 2u);
}

TEST_F(ServerTest, AnUpdateWithoutAVersionIsNotAvailable) {
  Start();
  ScriptedWorker rollout(server_->address());
  ASSERT_OK(rollout.JoinAndRegister("rollout"));
  rollout.Send(StartOperation{.key = {BufferId(1), OperationNumber(1)},
                              .kind = OperationKind::kUpdate,
                              .timeout = absl::Seconds(10)});
  ASSERT_OK_AND_ASSIGN(const OperationFinished finished, rollout.Expect<OperationFinished>());
  EXPECT_EQ(finished.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(finished.not_available, NotAvailableReason::kNotPublished);
}

TEST_F(ServerTest, AWorkerThatLeavesIsGoneForOthers) {
  limits_.lease = absl::Minutes(5);
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  trainer.Send(Leave{});
  trainer.HalfClose();
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_workers 0\n"); }));
}

TEST_F(ServerTest, ABrokenStreamIsNoticed) {
  limits_.lease = absl::Minutes(5);
  Start();
  {
    ScriptedWorker worker(server_->address());
    ASSERT_OK(worker.Join("trainer"));
    EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_streams 1\n"));
  }
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_streams 0\n"); }));
  EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_workers 1\n"));
}

TEST_F(ServerTest, APeerBehindADeadConnectionIsNoticedBeforeItsLease) {
  limits_.lease = absl::Minutes(5);
  Start();
  FreezingProxy proxy(server_->port());
  ScriptedWorker worker(proxy.address());
  ASSERT_OK(worker.Join("trainer"));
  proxy.Freeze();
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_streams 0\n"); }));
}

// ---------------------------------------------------------------------------------------------
// Restart

TEST_F(ServerTest, ARestartRaisesEpochAndSequence) {
  Start();
  VersionSequence before;
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK(trainer.JoinAndRegister("trainer"));
    ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-1"));
    before = version.sequence;
  }
  server_.reset();
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined joined, trainer.JoinAndRegister("trainer"));
  EXPECT_EQ(joined.epoch, Epoch(2));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-2"));
  EXPECT_GT(version.sequence, before);
  EXPECT_EQ(version.sequence.epoch(), Epoch(2));
}

TEST_F(ServerTest, ARestartRemembersTheHighWaterMark) {
  Start();
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK(trainer.JoinAndRegister("trainer"));
    ASSERT_OK(trainer.Publish(1, "step-1"));
  }
  server_.reset();
  Start();
  ScriptedWorker rollout(server_->address());
  ASSERT_OK(rollout.JoinAndRegister("rollout"));
  rollout.Send(StartOperation{.key = {BufferId(1), OperationNumber(1)},
                              .kind = OperationKind::kUpdate,
                              .timeout = absl::Seconds(10)});
  ASSERT_OK_AND_ASSIGN(const OperationFinished finished, rollout.Expect<OperationFinished>());
  EXPECT_EQ(finished.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
}

TEST_F(ServerTest, ARestartRemembersRetention) {
  Start();
  ASSERT_OK_AND_ASSIGN(const CommandFinished finished, Command({"key-1", SetRetention{7}}));
  ASSERT_OK(finished.status);
  server_.reset();
  Start();
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<Catalog> catalog = List();
    return catalog.ok() && catalog->models.size() == 1 && catalog->models[0].keep_latest == 7;
  }));
}

TEST_F(ServerTest, AStateThatCannotBeWrittenStopsTheServerBeforeItAnswers) {
  auto owned = std::make_unique<MemoryStore>(OpenedState{.epoch = Epoch(1)});
  MemoryStore* store = owned.get();
  store->FailWith(absl::ResourceExhaustedError("No space left on device"));
  StartWith(std::move(owned));
  ScriptedWorker trainer(server_->address());
  const absl::Status registered = trainer.JoinAndRegister("trainer").status();
  if (registered.ok()) {
    EXPECT_FALSE(trainer.Publish(1, "step-1").ok());
  }
  EXPECT_THAT(server_->WaitForFailure(kTestDeadline),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No space left")));
  EXPECT_THAT(HttpGet(server_->http_address(), "/healthz"), StartsWith("HTTP/1.1 503"));
  ScriptedWorker late(server_->address());
  late.Send(TestJoin("late"));
  ASSERT_OK_AND_ASSIGN(const Refused refused, late.Expect<Refused>());
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable));
}

// ---------------------------------------------------------------------------------------------
// Hostile and slow peers

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

// Sends bytes that are no protobuf and returns how the call ended.
grpc::Status CallWithGarbage(const std::string& address, const std::string& method) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::CompletionQueue queue;
  const grpc::Slice garbage(std::string("\xff\xff\xff\xff garbage"));
  const grpc::ByteBuffer request(&garbage, 1);
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

TEST_F(ServerTest, ACallWithGarbageInPlaceOfProtobufFails) {
  Start();
  for (const char* method : {"List", "Resolve", "WaitVersion", "Command", "GetLayout"}) {
    const std::string path = absl::StrCat("/tensorhub.v1.ReferenceServer/", method);
    EXPECT_FALSE(CallWithGarbage(server_->address(), path).ok()) << method;
  }
}

TEST_F(ServerTest, AStreamOfGarbageIsEndedAndHarmsNobody) {
  Start();
  // gRPC reports it to the server as the end of the stream.
  CallWithGarbage(server_->address(), "/tensorhub.v1.ReferenceServer/Session");
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

// ---------------------------------------------------------------------------------------------
// Controllers

TEST_F(ServerTest, AVersionIsResolvedOnceItIsPublished) {
  Start();
  EXPECT_THAT(Resolve(LatestVersion{}), StatusIs(absl::StatusCode::kNotFound));
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-1"));
  ASSERT_OK_AND_ASSIGN(const VersionInfo latest, Resolve(LatestVersion{}));
  EXPECT_EQ(latest.sequence, version.sequence);
  EXPECT_OK(Resolve(version.label));
  EXPECT_OK(Resolve(version.sequence));
}

TEST_F(ServerTest, AWaitEndsWhenTheVersionIsPublished) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  absl::StatusOr<VersionInfo> waited;
  std::thread waiting([&] { waited = Wait(VersionSequence(), kTestDeadline); });
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 1\n"); }));
  const absl::StatusOr<VersionInfo> published = trainer.Publish(1, "step-1");
  waiting.join();
  ASSERT_OK(published);
  ASSERT_OK(waited);
  EXPECT_EQ(waited->sequence, published->sequence);
  EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_waits 0\n"));
}

TEST_F(ServerTest, AWaitForALaterVersionDoesNotTakeThisOne) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-1"));
  EXPECT_OK(Wait(VersionSequence(), kTestDeadline));
  EXPECT_THAT(Wait(version.sequence, absl::Milliseconds(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("latest"), HasSubstr("run=r1 model=qwen3"))));
}

TEST_F(ServerTest, AControllerThatHangsUpIsForgotten) {
  Start();
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::Status status;
  std::thread waiting([&] {
    pb::ResolveResponse response;
    status = stub_->WaitVersion(
        &context,
        ToProto(WaitQuery{hello_, TestModel(), LatestVersion{}, VersionSequence(), kTestDeadline}),
        &response);
  });
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 1\n"); }));
  context.TryCancel();
  waiting.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 0\n"); }));
}

TEST_F(ServerTest, ACommandTakesEffectOnce) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  ASSERT_OK_AND_ASSIGN(const CommandFinished first,
                       Command({"same", PinVersion{LatestVersion{}, "evaluation"}}));
  ASSERT_OK_AND_ASSIGN(const CommandFinished again,
                       Command({"same", PinVersion{LatestVersion{}, "evaluation"}}));
  ASSERT_OK(first.status);
  EXPECT_EQ(first.idempotency_key, "same");
  EXPECT_EQ(again.version.sequence, first.version.sequence);
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, List());
  EXPECT_EQ(catalog.models[0].versions[0].pinned_by, std::vector<std::string>{"evaluation"});
}

TEST_F(ServerTest, ALayoutIsHandedOutByItsDigest) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK_AND_ASSIGN(
      const auto response,
      Call<pb::GetLayoutResponse>(&Stub::GetLayout, LayoutQuery{hello_, TestLayout().digest()}));
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, ShardLayout::Decode(response.layout()));
  EXPECT_EQ(layout.digest(), TestLayout().digest());
}

TEST_F(ServerTest, AnUnknownLayoutIsNotFound) {
  Start();
  EXPECT_THAT(Call<pb::GetLayoutResponse>(&Stub::GetLayout, LayoutQuery{hello_, Sha256("unknown")}),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ServerTest, AListCanLeaveAttributesOut) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  trainer.Send(StartOperation{.key = {BufferId(1), OperationNumber(1)},
                              .kind = OperationKind::kPublish,
                              .timeout = absl::Seconds(10),
                              .label = VersionLabel::FromStep(1),
                              .attributes = {{"step", "1"}}});
  ASSERT_OK(trainer.Expect<OperationFinished>());
  ASSERT_OK_AND_ASSIGN(const auto with, Call<pb::Catalog>(&Stub::List, ListQuery{hello_}));
  ASSERT_OK_AND_ASSIGN(const auto without,
                       Call<pb::Catalog>(&Stub::List, ListQuery{hello_, "", "", true}));
  EXPECT_EQ(with.models(0).versions(0).info().attributes_size(), 1);
  EXPECT_EQ(without.models(0).versions(0).info().attributes_size(), 0);
}

// ---------------------------------------------------------------------------------------------
// Shutdown and listening

TEST_F(ServerTest, ShutdownTellsWorkersToComeBackLater) {
  Start();
  std::vector<std::unique_ptr<ScriptedWorker>> workers;
  for (const char* group : {"trainer", "rollout-1", "rollout-2"}) {
    workers.push_back(std::make_unique<ScriptedWorker>(server_->address()));
    ASSERT_OK(workers.back()->Join(group));
  }
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, kGrace);
  for (const auto& worker : workers) {
    ASSERT_OK_AND_ASSIGN(const Refused refused, worker->Expect<Refused>());
    EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_LT(refused.retry_after, absl::InfiniteDuration());
    EXPECT_FALSE(worker->Read().has_value());
    EXPECT_TRUE(worker->Finish().ok());
  }
}

TEST_F(ServerTest, ShutdownAnswersControllersThatWait) {
  Start();
  absl::StatusOr<VersionInfo> waited;
  std::thread waiting([&] { waited = Wait(VersionSequence(), kTestDeadline); });
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 1\n"); }));
  server_->Shutdown();
  waiting.join();
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(ServerTest, ShutdownFreesThePortAndTheState) {
  Start();
  const std::string address = server_->address();
  server_.reset();
  ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(state_dir_));
  EXPECT_OK(Server::Start({.listen = address, .store = std::move(store)}));
}

TEST_F(ServerTest, ShutdownTwiceIsHarmless) {
  Start();
  server_->Shutdown();
  server_->Shutdown();
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ServerTest, ATakenPortIsAnErrorThatNamesIt) {
  Start();
  EXPECT_THAT(Server::Start({.listen = server_->address(),
                             .store = std::make_unique<MemoryStore>(OpenedState{})}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(server_->address()), HasSubstr("in use"))));
}

TEST_F(ServerTest, ATakenHttpPortIsAnErrorThatNamesIt) {
  Start();
  EXPECT_THAT(Server::Start({.listen = "127.0.0.1:0",
                             .http_listen = server_->http_address(),
                             .store = std::make_unique<MemoryStore>(OpenedState{})}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(server_->http_address())));
}

TEST_F(ServerTest, AnAddressThatIsNoneIsRefused) {
  EXPECT_THAT(
      Server::Start({.listen = "nonsense", .store = std::make_unique<MemoryStore>(OpenedState{})}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
}

TEST_F(ServerTest, AServerNeedsAStore) {
  EXPECT_THAT(Server::Start({.listen = "127.0.0.1:0"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// ---------------------------------------------------------------------------------------------
// Health and status

TEST_F(ServerTest, GrpcHealthIsServing) {
  Start();
  grpc::GenericStub stub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::CompletionQueue queue;
  const grpc::Slice empty(std::string{});
  const grpc::ByteBuffer request(&empty, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), std::string("\x08\x01", 2));
}

TEST_F(ServerTest, HealthzSaysTheEpoch) {
  Start();
  EXPECT_THAT(HttpGet(server_->http_address(), "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nok epoch 1\n")));
}

TEST_F(ServerTest, MetricsCountWhatHappened) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  ASSERT_TRUE(Eventually(
      [&] { return absl::StrContains(Metrics(), "\ntensorhub_versions_sealed_total 1\n"); }));
  const std::string metrics = Metrics();
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_build_info{version=\"server_test\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_epoch 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_workers 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_models 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_joins_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_versions_published_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_versions{run=\"r1\",model=\"qwen3\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_turn_seconds_bucket{le=\"+Inf\"}"));
}

TEST_F(ServerTest, TheStatusPageShowsVersionsAndHolders) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  EXPECT_THAT(HttpGet(server_->http_address(), "/"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/html"), HasSubstr("qwen3"),
                    HasSubstr("step-1"), HasSubstr("trainer (")));
}

TEST_F(ServerTest, OtherPathsAreNotFound) {
  Start();
  EXPECT_THAT(HttpGet(server_->http_address(), "/secrets"), StartsWith("HTTP/1.1 404"));
}

}  // namespace
}  // namespace th
