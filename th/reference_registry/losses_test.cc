// Events about retained versions and the latest version that have lost their last holder.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/copy_name.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A trainer of two ranks that has published "one", which is kept.
class LossesTest : public ::testing::Test {
 protected:
  LossesTest() {
    KeepLatest(1);
    JoinAndRegister(trainer_);
    one_ = PublishWhole(trainer_, "one");
  }
  void KeepLatest(uint32_t versions) {
    ASSERT_OK(hub_.Command({absl::StrCat("keep-", versions), SetRetention{versions}}).status);
  }
  uint64_t LatestFormsLost() { return hub_.registry().Figures().at(0).latest_lost; }
  uint64_t Lost() { return hub_.registry().counters().retained_lost; }
  static FinishedOperation Unpublished(const VersionInfo& version) {
    return {.number = OperationNumber(2), .kind = OperationKind::kUnpublish, .version = version};
  }
  // The rank has drained without a server, with or without a copy.
  void ComesBackDrained(TestRank& rank) {
    AnnouncedBuffer drained = rank.Announced();
    drained.last_finished = Unpublished(one_);
    ASSERT_TRUE(rank.Resume({drained}));
  }
  TestRank ComesBackWithCopy(TestRank& rank) {
    AnnouncedBuffer drained = rank.Announced();
    drained.last_finished = Unpublished(one_);
    TestRank copy = rank;
    copy.buffer = BufferId(rank.buffer.value + 100);
    copy.buffer_name = CopyName(rank.buffer_name, CopyFor::kRetention, one_.sequence,
                                rank.generation, OperationNumber(2));
    AnnouncedBuffer held =
        copy.Holding(one_, /*publisher=*/false, absl::StrCat("one", rank.layout.tensors()[0].name));
    held.held->group_committed = false;
    held.role = BufferRole::kOffload;
    EXPECT_TRUE(rank.Resume({drained, held}));
    copy.connection = rank.connection;
    copy.number = OperationNumber();
    return copy;
  }
  static void EndCopy(TestRank& copy, const VersionInfo& version) {
    StartOperation update = copy.UpdateRequest(version.sequence);
    update.resolved = version;
    copy.Start(update);
    copy.Say(ReadyToFill{copy.key(), copy.buffer_generation});  // as it was
    copy.Done();
  }
  // Another publisher's newer version, sealed.
  VersionInfo PublishTwo(TestRank& second) {
    second.JoinAndRegister();
    second.Publish("two");
    const VersionInfo two = second.Finished().version;
    second.Seal(two.sequence, "two");
    return two;
  }
  void TrainerUnpublishes() {
    for (TestRank& rank : trainer_) rank.Unpublish();
    for (TestRank& rank : trainer_) rank.Done();
  }
  // Restarts the server. The trainer returns without its version, `second` returns with its own.
  void RestartAfterTheTrainerDrained(TestRank& second, const VersionInfo& two) {
    hub_.Restart();
    for (TestRank& rank : trainer_) ComesBackDrained(rank);
    ASSERT_TRUE(second.Resume({second.Holding(two, /*publisher=*/true, "two")}));
    PassAdoption({&trainer_[0], &trainer_[1], &second});
  }
  // Until whoever does not come back after a restart is gone.
  void PassAdoption(std::vector<TestRank*> alive) {
    for (int i = 0; i < 4; ++i) {
      for (TestRank* rank : alive) rank->Say(Heartbeat{});
      hub_.Advance(absl::Seconds(2));
    }
  }

  RegistryHarness hub_;
  std::vector<TestRank> trainer_ = MakeGroup(hub_, "trainer", 2);
  VersionInfo one_;
};

// ---- a stream that broke

TEST_F(LossesTest, WhatRanksComeBackWithoutIsToldOnce) {
  for (TestRank& rank : trainer_) ComesBackDrained(rank);
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer/0: retained version lost: one"));
  EXPECT_THAT(hub_.Log(), HasSubstr("is lost: it is retained, and its last replica was "
                                    "unpublished while the server was away"));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, WhatRanksComeBackWithCopiesOfIsNotLost) {
  for (TestRank& rank : trainer_) {
    TestRank copy = ComesBackWithCopy(rank);
    EndCopy(copy, one_);
  }
  EXPECT_EQ(hub_.registry().counters().updates_moved, 1u) << hub_.Log();
  EXPECT_EQ(Lost(), 0u);
}

TEST_F(LossesTest, OneRankThatReturnsWithoutACopyLosesTheVersion) {
  ComesBackWithCopy(trainer_[0]);
  EXPECT_EQ(Lost(), 0u) << "the other rank holds its shard still";
  ComesBackDrained(trainer_[1]);
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer/1: retained version lost: one"));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, WhatNothingRetainsIsNotLost) {
  KeepLatest(0);
  for (TestRank& rank : trainer_) ComesBackDrained(rank);
  EXPECT_EQ(Lost(), 0u);
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("version lost"))) << "its trainer unpublished it";
}

TEST_F(LossesTest, ABufferThatIsUnregisteredTakesItAlong) {
  trainer_[0].Say(UnregisterBuffer{trainer_[0].buffer});
  EXPECT_THAT(hub_.Log(), HasSubstr("is lost: it is retained, and its last replica is gone"));
}

TEST_F(LossesTest, AReplicaThatFillsPutsTheLossOffUntilItFails) {
  std::vector<TestRank> rollout = MakeGroup(hub_, "rollout", 2);
  JoinAndRegister(rollout);
  for (TestRank& rank : rollout) rank.Update();
  for (TestRank& rank : rollout) rank.Ready();
  TrainerUnpublishes();
  EXPECT_EQ(Lost(), 0u);
  rollout[0].Fail(absl::CancelledError("enough"));
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("rollout/0: retained version lost: one"),
                                HasSubstr("its last replica had not yet received all of it")));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, AtMostAsManyAreListedAsLostAsThePolicyKeeps) {
  KeepLatest(0);
  TestRank second(hub_, "second", 0, 1);
  PublishTwo(second);
  TrainerUnpublishes();
  second.Unpublish();
  second.Done();
  ASSERT_OK(hub_.Command({"keep the latest", SetRetention{1}}).status);
  EXPECT_EQ(hub_.registry().Figures().at(0).retained_lost, 1u) << "nobody holds two; one is older";
}

// ---- the latest version, which nothing retains

TEST_F(LossesTest, ARankOfItsLastHolderThatDiesLosesTheLatestVersion) {
  KeepLatest(0);
  EXPECT_EQ(LatestFormsLost(), 0u);
  trainer_[1].Disconnect();
  PassAlive(hub_, {&trainer_[0]}, absl::Seconds(60));
  EXPECT_THAT(hub_.Log(),
              AllOf(HasSubstr("trainer/1: latest version lost: one"),
                    HasSubstr("nobody holds all of it any more: its last replica is gone")));
  EXPECT_EQ(LatestFormsLost(), 1u);
  EXPECT_EQ(Lost(), 0u);
  TestRank second(hub_, "second", 0, 1);
  PublishTwo(second);
  EXPECT_EQ(LatestFormsLost(), 0u);
}

// The other rank has the same shard, and is no whole replica without the first.
TEST_F(LossesTest, ARankWhoseShardAnotherOfItsGroupHasLosesTheLatestVersionToo) {
  KeepLatest(0);
  std::vector<TestRank> copies;
  for (uint32_t rank = 0; rank < 2; ++rank) copies.emplace_back(hub_, "copies", rank, 2);
  JoinAndRegister(copies);
  for (TestRank& rank : copies) rank.Publish("two");
  const VersionInfo two = copies[0].Finished().version;
  for (TestRank& rank : copies) rank.Seal(two.sequence, "two");
  copies[1].Disconnect();
  PassAlive(hub_, {&trainer_[0], &trainer_[1], &copies[0]}, absl::Seconds(60));
  EXPECT_THAT(hub_.Log(), HasSubstr("copies/1: latest version lost: two"));
  EXPECT_EQ(LatestFormsLost(), 1u);
}

TEST_F(LossesTest, TheLatestVersionThatAnotherGroupHoldsIsNotLost) {
  KeepLatest(0);
  std::vector<TestRank> rollout = JoinedGroup(hub_, "rollout", 2);
  UpdateWhole(rollout);
  trainer_[1].Disconnect();
  PassAlive(hub_, {&trainer_[0], &rollout[0], &rollout[1]}, absl::Seconds(60));
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("lease expired"), Not(HasSubstr("version lost"))));
  EXPECT_EQ(LatestFormsLost(), 0u);
}

TEST_F(LossesTest, AnUnpublishOfTheLatestVersionIsNoLossEvent) {
  KeepLatest(0);
  TrainerUnpublishes();
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("unpublished"), Not(HasSubstr("version lost"))));
  EXPECT_EQ(LatestFormsLost(), 1u) << "newcomers wait all the same";
}

TEST_F(LossesTest, WhoLeavesWithTheLatestVersionMeansIt) {
  KeepLatest(0);
  for (TestRank& rank : trainer_) rank.Say(Leave{});
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("it left"), Not(HasSubstr("version lost"))));
}

TEST_F(LossesTest, AnOlderVersionMayGo) {
  KeepLatest(0);
  TestRank second(hub_, "second", 0, 1);
  PublishTwo(second);
  trainer_[1].Disconnect();
  PassAlive(hub_, {&trainer_[0], &second}, absl::Seconds(60));
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("version lost")));
  EXPECT_EQ(LatestFormsLost(), 0u);
}

TEST_F(LossesTest, ARollBackToAVersionThatNobodyHoldsLosesTheLatest) {
  KeepLatest(0);
  TestRank second(hub_, "second", 0, 1);
  PublishTwo(second);
  TrainerUnpublishes();
  ASSERT_OK(hub_.Command({"back", RollBack{one_.sequence}}).status);
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("latest version lost: one"),
                                HasSubstr("its last replica was gone before the roll-back")));
}

// The other rank has all of its shard by then: the end of the update takes it from that one too,
// but no operation meant that.
TEST_F(LossesTest, AFillThatFailsIsNoOperationThatMeantTheLoss) {
  KeepLatest(0);
  std::vector<TestRank> rollout = JoinedGroup(hub_, "rollout", 2);
  for (TestRank& rank : rollout) rank.Update();
  for (TestRank& rank : rollout) rank.Ready();
  rollout[0].Done();
  TrainerUnpublishes();
  rollout[1].Fail(absl::CancelledError("enough"));
  EXPECT_THAT(hub_.Log(), HasSubstr("latest version lost: one"));
}

// ---- a server that restarted

// The server knows the shards alone that ranks announce: of the other one it knows nothing.
TEST_F(LossesTest, ARankThatDoesNotComeBackToARestartedServerLosesTheVersion) {
  hub_.Restart();
  ASSERT_TRUE(trainer_[0].Resume({trainer_[0].Holding(one_, /*publisher=*/true, "onew0")}));
  PassAdoption({&trainer_[0]});
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("retained version lost: one"),
                                HasSubstr("has not come back since the server restarted")));
  EXPECT_EQ(Lost(), 1u);
  EXPECT_EQ(hub_.registry().Figures().at(0).retained_lost, 1u);
}

TEST_F(LossesTest, TheLatestVersionOfWhichARankDoesNotComeBackIsLost) {
  KeepLatest(0);
  hub_.Restart();
  ASSERT_TRUE(trainer_[0].Resume({trainer_[0].Holding(one_, /*publisher=*/true, "onew0")}));
  PassAdoption({&trainer_[0]});
  EXPECT_THAT(hub_.Log(), HasSubstr("latest version lost: one"));
  EXPECT_EQ(LatestFormsLost(), 1u);
}

TEST_F(LossesTest, AVersionThatAllRanksBringBackIsNotLost) {
  hub_.Restart();
  for (TestRank& rank : trainer_) {
    const std::string content = absl::StrCat("one", rank.layout.tensors()[0].name);
    ASSERT_TRUE(rank.Resume({rank.Holding(one_, /*publisher=*/true, content)}));
  }
  PassAdoption({&trainer_[0], &trainer_[1]});
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("version lost")));
  EXPECT_EQ(LatestFormsLost(), 0u);
}

TEST_F(LossesTest, AVersionThatNobodyBringsBackIsLostOnceNobodyMay) {
  hub_.Restart();
  hub_.Advance(absl::Seconds(4));
  EXPECT_EQ(Lost(), 0u) << "somebody may come back with it";
  hub_.Advance(absl::Seconds(60));
  EXPECT_THAT(hub_.Log(), HasSubstr("has not come back since the server restarted"));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, WhatRanksUnpublishedWithoutAServerIsToldWithTheirGroup) {
  hub_.Restart();
  for (TestRank& rank : trainer_) ComesBackDrained(rank);
  PassAdoption({&trainer_[0], &trainer_[1]});
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("trainer: retained version lost: one"),
                                HasSubstr("was unpublished while the server was away"),
                                Not(HasSubstr("has not come back since"))));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, CopiesThatComeBackAreNoLoss) {
  hub_.Restart();
  for (TestRank& rank : trainer_) {
    TestRank copy = ComesBackWithCopy(rank);
    EndCopy(copy, one_);
  }
  PassAdoption({&trainer_[0], &trainer_[1]});
  EXPECT_EQ(Lost(), 0u);
}

// A server remembers nothing of such a version: the rank that gave it up names it.
TEST_F(LossesTest, AnOlderVersionThatIsRetainedIsToldToo) {
  KeepLatest(2);
  TestRank second(hub_, "second", 0, 1);
  RestartAfterTheTrainerDrained(second, PublishTwo(second));
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer: retained version lost: one"));
  EXPECT_EQ(Lost(), 1u);
}

TEST_F(LossesTest, WhatNewerOnesHaveReplacedIsNoLoss) {
  TestRank second(hub_, "second", 0, 1);
  RestartAfterTheTrainerDrained(second, PublishTwo(second));
  EXPECT_EQ(Lost(), 0u);
}

TEST_F(LossesTest, APinnedVersionThatDoesNotComeBackIsToldByItsNumber) {
  KeepLatest(0);
  ASSERT_OK(hub_.Command({"pin", PinVersion{.version = one_.sequence, .owner = "eval"}}).status);
  TestRank second(hub_, "second", 0, 1);
  second.JoinAndRegister();
  second.Publish("two");
  ASSERT_OK(second.Finished().status);
  hub_.Restart();
  PassAdoption({});
  EXPECT_THAT(hub_.Log(),
              HasSubstr(absl::StrCat("retained version lost: #", one_.sequence.ToString())));
  EXPECT_EQ(Lost(), 1u);
}

}  // namespace
}  // namespace th
