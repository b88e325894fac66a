// Which shards and fills of before a restart of the server are there after it, and since when.
#include <string>
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

// A group of two ranks has published a version, and the server has restarted since.
class PublishedBeforeRestartTest : public ::testing::Test {
 protected:
  PublishedBeforeRestartTest() { hub_.Restart(); }

  // The publisher's rank announces what it holds.
  bool ComesBack(uint32_t rank) {
    return trainer_[rank].Resume(
        {trainer_[rank].Holding(version_, true, absl::StrCat("step-1w", rank))});
  }
  // A group of one rank that has joined, and whose shard has this layout.
  TestRank Reader(const std::string& layout) {
    TestRank reader(hub_, "rollout", 0, 1, LayoutNamed(layout));
    reader.JoinAndRegister();
    return reader;
  }

  RegistryHarness hub_;
  std::vector<TestRank> trainer_ = JoinedGroup(hub_, "trainer", 2);
  const VersionInfo version_ = PublishWhole(trainer_, "step-1");
};

TEST_F(PublishedBeforeRestartTest, AWholeGroupThatComesBackLateIsASourceWhenItsLastRankIsThere) {
  hub_.Advance(absl::Seconds(30));
  ASSERT_TRUE(ComesBack(0));
  TestRank rollout = Reader("w0");
  rollout.Update();
  EXPECT_EQ(rollout.Finished().not_available, NotAvailableReason::kGone);
  ASSERT_TRUE(ComesBack(1));
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer_[0].address());
}

TEST_F(PublishedBeforeRestartTest, AShardWhoseHolderIsStillAwayIsWaitedForWhileRanksMayComeBack) {
  ASSERT_TRUE(ComesBack(0));
  TestRank rollout = Reader("w1");
  rollout.Update();
  hub_.Advance(absl::Seconds(2));
  EXPECT_TRUE(rollout.HearsNone<OperationFinished>()) << "no word about a layout nobody has yet";
  ASSERT_TRUE(ComesBack(1));
  PassAlive(hub_, {&trainer_[0], &trainer_[1], &rollout}, absl::Seconds(4));
  EXPECT_EQ(rollout.Fill().buffer, trainer_[1].address());
}

TEST_F(PublishedBeforeRestartTest, AShardWhoseHolderIsGoneIsNotAvailableOnceNobodyMayComeBack) {
  ASSERT_TRUE(ComesBack(0));
  TestRank rollout = Reader("w1");
  rollout.Update();
  PassAlive(hub_, {&trainer_[0], &rollout}, absl::Seconds(8));
  OperationFinished finished = rollout.Finished();
  ASSERT_OK(finished.status) << "it is not sharded otherwise than its publisher";
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
  rollout.Update();
  finished = rollout.Finished();
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
}

TEST_F(PublishedBeforeRestartTest, AReaderThatIsShardedOtherwiseHearsSoAfterARestartToo) {
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(ComesBack(rank));
  TestRank other = Reader("another");
  PassAlive(hub_, {&trainer_[0], &trainer_[1], &other}, absl::Seconds(8));
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
