// Which shards and fills of before a restart of the server are there after it, and since when.
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(RecoveredFillsTest, AWholeGroupThatComesBackLateIsASourceWhenItsLastRankIsThere) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  hub.Restart();
  hub.Advance(absl::Seconds(30));
  ASSERT_TRUE(trainer[0].Resume({trainer[0].Holding(version, true, "step-1w0")}));
  TestRank rollout(hub, "rollout", 0, 1, LayoutNamed("w0"));
  rollout.JoinAndRegister();
  rollout.Update();
  EXPECT_EQ(rollout.Finished().not_available, NotAvailableReason::kGone);
  ASSERT_TRUE(trainer[1].Resume({trainer[1].Holding(version, true, "step-1w1")}));
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer[0].address());
}

TEST(RecoveredFillsTest, AShardWhoseHolderIsStillAwayIsWaitedForWhileRanksMayComeBack) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  hub.Restart();
  ASSERT_TRUE(trainer[0].Resume({trainer[0].Holding(version, true, "step-1w0")}));
  TestRank rollout(hub, "rollout", 0, 1, LayoutNamed("w1"));
  rollout.JoinAndRegister();
  rollout.Update();
  hub.Advance(absl::Seconds(2));
  EXPECT_TRUE(rollout.HearsNone<OperationFinished>()) << "no word about a layout nobody has yet";
  ASSERT_TRUE(trainer[1].Resume({trainer[1].Holding(version, true, "step-1w1")}));
  PassAlive(hub, {&trainer[0], &trainer[1], &rollout}, absl::Seconds(4));
  EXPECT_EQ(rollout.Fill().buffer, trainer[1].address());
}

TEST(RecoveredFillsTest, AShardWhoseHolderIsGoneIsNotAvailableOnceNobodyMayComeBack) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  hub.Restart();
  ASSERT_TRUE(trainer[0].Resume({trainer[0].Holding(version, true, "step-1w0")}));
  TestRank rollout(hub, "rollout", 0, 1, LayoutNamed("w1"));
  rollout.JoinAndRegister();
  rollout.Update();
  PassAlive(hub, {&trainer[0], &rollout}, absl::Seconds(8));
  OperationFinished finished = rollout.Finished();
  ASSERT_OK(finished.status) << "it is not sharded otherwise than its publisher";
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
  rollout.Update();
  finished = rollout.Finished();
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
}

TEST(RecoveredFillsTest, AReaderThatIsShardedOtherwiseHearsSoAfterARestartToo) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  hub.Restart();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(trainer[rank].Resume(
        {trainer[rank].Holding(version, true, absl::StrCat("step-1w", rank))}));
  }
  TestRank other(hub, "rollout", 0, 1, LayoutNamed("another"));
  other.JoinAndRegister();
  PassAlive(hub, {&trainer[0], &trainer[1], &other}, absl::Seconds(8));
  other.Update();
  EXPECT_THAT(other.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be sharded")));
}

TEST(RecoveredFillsTest, AFillWhoseUpdateFailsBeforeItBeginsAgainIsNoSource) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  for (TestRank& rank : rollout) rank.Update();
  rollout[0].Fill();
  hub.Restart();
  ASSERT_TRUE(rollout[0].Resume({rollout[0].Filling(version, {trainer[0].address()})}));
  ASSERT_TRUE(rollout[1].Resume({rollout[1].Announced()}));
  for (TestRank& rank : rollout) {
    StartOperation again = rank.UpdateRequest();
    again.key.number = OperationNumber(1);
    again.resolved = version;
    rank.Start(again);
  }
  EXPECT_TRUE(rollout[0].HearsNone<OperationFinished>()) << "the trainer may come back";
  for (int i = 0; i < 4; ++i) {
    for (TestRank& rank : rollout) rank.Say(Heartbeat{});
    hub.Advance(absl::Seconds(2));
  }
  EXPECT_THAT(rollout[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody holds its shard")));
  EXPECT_EQ(hub.registry().ReplicaPhaseName(TestModel(), "rollout", "weights"), "idle");
}

// Its ranks ask for other operations than the one that the fill was announced with.
TEST(RecoveredFillsTest, AFillWhoseGroupHasChangedSinceIsNoSourceOnceAdoptionEnds) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = MakeGroup(hub, "trainer", 2);
  std::vector<TestRank> rollout = MakeGroup(hub, "rollout", 2);
  JoinAndRegister(trainer);
  JoinAndRegister(rollout);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  for (TestRank& rank : rollout) rank.Update();
  rollout[0].Fill();
  hub.Restart();
  ASSERT_TRUE(rollout[0].Resume({rollout[0].Filling(version, {trainer[0].address()})}));
  ASSERT_EQ(hub.registry().ReplicaPhaseName(TestModel(), "rollout", "weights"), "filling");
  TestRank replaced(hub, "rollout", 1, 2, LayoutNamed("w1"));
  replaced.JoinAndRegister();
  rollout[0].number = OperationNumber();
  rollout[0].Update();  // it waits for the other rank
  PassAlive(hub, {&rollout[0], &replaced}, absl::Seconds(8));
  EXPECT_EQ(hub.registry().ReplicaPhaseName(TestModel(), "rollout", "weights"), "idle");
}

TEST(RecoveredFillsTest, AnUnfinishedPublishIsPublishedAfresh) {
  RegistryHarness hub;
  TestRank first = Trainer(hub, "step-1");
  std::vector<TestRank> trainer = JoinedGroup(hub, "pair", 2);
  trainer[0].Publish("step-2");
  hub.Restart();
  for (TestRank& rank : trainer) ASSERT_TRUE(rank.Resume({rank.Announced()}));
  for (TestRank& rank : trainer) {
    StartOperation again = rank.PublishRequest("step-2");
    again.key.number = OperationNumber(1);
    rank.Start(again);
  }
  hub.Advance(RegistryLimits().recovery_window);
  EXPECT_OK(trainer[0].Finished().status);
  EXPECT_OK(trainer[1].Finished().status);
}

}  // namespace
}  // namespace th
