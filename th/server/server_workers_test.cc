// Workers: joining, publishing, updating, leaving, vanishing.
#include <memory>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/server/freezing_proxy.h"
#include "th/server/scripted_worker.h"
#include "th/server/server_fixture.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

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
  // The source will check the same.
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

}  // namespace
}  // namespace th
