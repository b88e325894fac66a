// Calls of controllers.
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/server/scripted_worker.h"
#include "th/server/server_fixture.h"
#include "th/wire/wire.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

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

// A call that waits for a version which never comes, until it is hung up.
class EndlessWait {
 public:
  EndlessWait(tensorhub::v1::ReferenceServer::Stub* stub, const ProtocolHello& hello)
      : thread_([this, stub, hello] {
          pb::ResolveResponse response;
          stub->WaitVersion(&context_,
                            ToProto(WaitQuery{hello, TestModel(), LatestVersion{},
                                              VersionSequence(), kTestDeadline}),
                            &response);
        }) {}
  ~EndlessWait() { HangUp(); }
  void HangUp() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }

 private:
  grpc::ClientContext context_;
  std::thread thread_;
};

TEST_F(ServerTest, MoreCallsThanTheLimitAreRefusedUntilOneHasEnded) {
  call_limits_.max_open = 1;
  Start();
  EndlessWait wait(stub_.get(), hello_);
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 1\n"); }));
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1 calls")));
  EXPECT_THAT(Metrics(), HasSubstr("\ntensorhub_calls_refused_total 1\n"));
  wait.HangUp();
  EXPECT_TRUE(Eventually([&] { return List().ok(); }));
}

TEST_F(ServerTest, AnAnswerBeyondTheLimitIsRefusedByItsBytes) {
  call_limits_.max_answer_bytes = 8;
  Start();
  EXPECT_OK(List());  // of no model: no bytes
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("of at most 8")));
}

// A caller that did not hear of it would do it again.
TEST_F(ServerTest, WhatHasTakenEffectIsAnsweredBeyondTheLimitToo) {
  call_limits_.max_answer_bytes = 8;
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  ASSERT_OK_AND_ASSIGN(const CommandFinished pinned,
                       Command({"pin", PinVersion{LatestVersion{}, "evaluation"}}));
  EXPECT_OK(pinned.status);
}

TEST_F(ServerTest, AnAnswerThatIsReadMakesRoomForTheNext) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK_AND_ASSIGN(const auto list, Call<pb::Catalog>(&Stub::List, ListQuery{hello_}));
  server_.reset();
  call_limits_.max_answer_bytes = list.ByteSizeLong() * 3 / 2;  // one at a time
  Start();
  ScriptedWorker again(server_->address());
  ASSERT_OK(again.JoinAndRegister("trainer"));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Eventually([&] { return List().ok(); })) << i;
  }
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
  EXPECT_EQ(catalog.models[0].versions[0].pins, std::vector<CatalogPin>{{"evaluation"}});
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

TEST_F(ServerTest, AShardIsFoundWithoutAList) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  const ShardQuery like_trainer{.key = TestModel(), .group = "trainer"};
  ASSERT_OK_AND_ASSIGN(
      const auto response,
      Call<pb::FindShardResponse>(&Stub::FindShard, FindShardQuery{hello_, like_trainer}));
  ASSERT_OK_AND_ASSIGN(const FoundShard found, FromProto(response));
  EXPECT_EQ(found.layout, TestLayout().digest());
  const ShardQuery only{.key = TestModel()};
  ASSERT_OK_AND_ASSIGN(const auto none,
                       Call<pb::FindShardResponse>(&Stub::FindShard, FindShardQuery{hello_, only}));
  EXPECT_EQ(none.not_available(), pb::NOT_AVAILABLE_REASON_NOT_PUBLISHED);
}

TEST_F(ServerTest, OneGroupAtATimeMakesAFormThatNobodyOffers) {
  Start();
  ScriptedWorker trainer(server_->address()), rollout(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  const auto choose = [this](const std::string& form, const std::string& group) {
    return Call<pb::ClaimFormResponse>(
        &Stub::ClaimForm,
        ClaimFormQuery{hello_, {TestModel(), LatestVersion{}, form, group, absl::Minutes(1)}});
  };
  EXPECT_THAT(choose("engine", "trainer"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  EXPECT_THAT(choose("engine", "rollout"), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(rollout.JoinAndRegister("rollout"));
  ASSERT_OK_AND_ASSIGN(const auto offered, choose(kDefaultForm, "rollout"));
  EXPECT_EQ(offered.maker(), pb::FORM_MAKER_NOBODY);
  ASSERT_OK_AND_ASSIGN(const auto first, choose("engine", "rollout"));
  EXPECT_EQ(first.maker(), pb::FORM_MAKER_ASKER);
  ASSERT_OK_AND_ASSIGN(const auto second, choose("engine", "trainer"));
  EXPECT_EQ(second.maker(), pb::FORM_MAKER_ANOTHER);
  EXPECT_EQ(second.group(), "rollout");
  rollout.Cancel();  // its membership outlives its stream by the lease
  ASSERT_OK_AND_ASSIGN(const auto still, choose("engine", "trainer"));
  EXPECT_EQ(still.maker(), pb::FORM_MAKER_ANOTHER);
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

}  // namespace
}  // namespace th
