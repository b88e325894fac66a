// A server whose state was lost, or is another one, or older than what its workers have lived in.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"
#include "th/registry_state/claims.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// A rank that is told to come back later does so this often at most.
constexpr int kMostTries = 3;

class LostStateTest : public ::testing::Test {
 protected:
  // Comes back as the session does: again when it is told so.
  bool ComesBack(TestRank& rank, const std::vector<AnnouncedBuffer>& buffers) {
    for (int i = 0; i < kMostTries; ++i) {
      if (rank.Resume(buffers)) return true;
      if (rank.refused.retry_after == absl::InfiniteDuration()) return false;
      hub_.Advance(rank.refused.retry_after);
    }
    return false;
  }
  bool TrainerComesBack() {
    return ComesBack(trainer_, {trainer_.Holding(version_, /*publisher=*/true, "step-1")});
  }
  void ExpectFetchable(const std::string& group) {
    TestRank reader = Rollout(hub_, group);
    reader.Update();
    hub_.Advance(RegistryLimits().recovery_window);
    EXPECT_EQ(reader.Fill().name.group, "trainer");
  }

  RegistryHarness hub_;
  TestRank trainer_ = Trainer(hub_, "step-1");
  VersionInfo version_ = *hub_.registry().Resolve(TestModel(), LatestVersion{});
};

// ---- the epoch

TEST_F(LostStateTest, AHigherEpochThanItsOwnIsLearnedAndPassed) {
  const RegistryHarness::SavedState backup = hub_.Save();
  for (int i = 0; i < 3; ++i) hub_.Restart();
  ASSERT_TRUE(TrainerComesBack());
  const Epoch lived_in = hub_.epoch();
  hub_.RestartWith(backup);
  ASSERT_LT(hub_.epoch(), lived_in);
  hub_.Advance(registry::kShortestEpoch);
  EXPECT_FALSE(trainer_.Resume({}));
  EXPECT_THAT(trainer_.refused.status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("begins again")));
  EXPECT_LT(trainer_.refused.retry_after, absl::Seconds(1));
  EXPECT_GT(hub_.epoch(), lived_in);
  ASSERT_TRUE(TrainerComesBack());
  ExpectFetchable("rollout");
}

TEST_F(LostStateTest, AnEqualEpochOfAnotherIdIsPassedToo) {
  hub_.RestartEmpty();
  ASSERT_EQ(hub_.epoch(), trainer_.joined_epoch);
  ASSERT_TRUE(TrainerComesBack());
  EXPECT_GT(hub_.epoch(), Epoch(1));
  ExpectFetchable("rollout");
}

TEST_F(LostStateTest, ClaimsCannotKeepTheServerBusyWithNewEpochs) {
  TestRank stranger(hub_, "stranger", 0, 1);
  stranger.worker = WorkerId(1);
  for (uint32_t epoch = 10; epoch < 20; ++epoch) {
    stranger.joined_epoch = Epoch(epoch);
    EXPECT_FALSE(stranger.Resume({}));
    EXPECT_LE(stranger.refused.retry_after, registry::kShortestEpoch);
  }
  EXPECT_EQ(hub_.epoch(), Epoch(11)) << "the first of them was believed";
  hub_.Advance(registry::kShortestEpoch);
  EXPECT_FALSE(stranger.Resume({}));
  EXPECT_EQ(hub_.epoch(), Epoch(20));
}

TEST_F(LostStateTest, AnEpochBeyondAllIsRefusedAndLocksNobodyOut) {
  hub_.Advance(registry::kShortestEpoch);
  TestRank stranger(hub_, "stranger", 0, 1);
  stranger.worker = WorkerId(1);
  stranger.joined_epoch = Epoch(~uint32_t{0});
  EXPECT_FALSE(stranger.Resume({}));
  EXPECT_EQ(hub_.epoch(), Epoch(1));
  stranger.joined_epoch = kLastEpoch;
  EXPECT_FALSE(stranger.Resume({}));
  EXPECT_EQ(hub_.epoch(), kLastEpoch.Next());
  for (int i = 0; i < 3; ++i) hub_.Restart();
  EXPECT_TRUE(TrainerComesBack());
}

// ---- what is learned

TEST_F(LostStateTest, ANewcomerWaitsForThoseThatComeBackToALostState) {
  hub_.RestartEmpty(Epoch(1000));
  hub_.Advance(absl::Minutes(1));
  TestRank survivor(hub_, "survivor", 0, 1);
  survivor.worker = WorkerId(7);
  survivor.joined_epoch = Epoch(1);
  survivor.cluster = trainer_.cluster;
  survivor.epoch_id = trainer_.epoch_id;
  ASSERT_TRUE(ComesBack(survivor, {}));
  TestRank reader = Rollout(hub_, "reader");
  reader.Update();
  EXPECT_TRUE(reader.HearsNone<OperationFinished>()) << "its version may still be announced";
  ASSERT_TRUE(TrainerComesBack());
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_EQ(reader.Fill().name.group, "trainer");
}

TEST_F(LostStateTest, TheHighWaterMarkIsLearnedFromClaimsAndKept) {
  hub_.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(TrainerComesBack());
  EXPECT_EQ(hub_.model().high_water, version_.sequence);
  hub_.Restart();
  hub_.Restart();
  EXPECT_EQ(hub_.model().high_water, version_.sequence);
  EXPECT_EQ(hub_.model().high_water_label, "step-1");
  ASSERT_TRUE(TrainerComesBack());
  ExpectFetchable("rollout");
}

TEST_F(LostStateTest, TheLineageIsLearnedFromClaims) {
  const CommandFinished back = hub_.Command({"key", RollBack{LatestVersion{}}});
  ASSERT_OK(back.status);
  trainer_.lineage = back.lineage;
  hub_.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(TrainerComesBack());
  EXPECT_EQ(hub_.model().lineage, back.lineage);
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_GT(hub_.Command({"key-2", RollBack{LatestVersion{}}}).lineage, back.lineage);
}

// It fills a version of after the roll-back, and has heard of no end since.
TEST_F(LostStateTest, TheLineageIsLearnedFromWhatIsBeingFilledToo) {
  const CommandFinished back = hub_.Command({"key", RollBack{LatestVersion{}}});
  VersionInfo second = version_;
  second.sequence = VersionSequence::Of(version_.sequence.epoch(), 2);
  second.label = *VersionLabel::Parse("step-2");
  second.lineage = back.lineage;
  hub_.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Filling(second, {})}));
  EXPECT_EQ(hub_.model().lineage, back.lineage);
}

TEST_F(LostStateTest, ALineageThatCannotBeIsNotLearned) {
  VersionInfo invented = version_;
  invented.lineage = Lineage(uint64_t{1} << 60);
  hub_.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Filling(invented, {})}));
  EXPECT_EQ(hub_.model().lineage, Lineage());
}

// Its roll-back came before the state was lost, and so before the newcomer.
TEST_F(LostStateTest, WhoJoinedALostStateIsNotBehindWhatItLearnsLater) {
  TestRank reader = Rollout(hub_, "reader");
  reader.lineage = hub_.Command({"key", RollBack{LatestVersion{}}}).lineage;
  hub_.RestartEmpty();
  TestRank early = Rollout(hub_, "early");
  TestRank later = Rollout(hub_, "later");
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_FALSE(reader.Resume({}));  // the server begins again
  ASSERT_TRUE(ComesBack(early, {early.Announced()}));
  ASSERT_TRUE(ComesBack(reader, {}));
  ASSERT_TRUE(ComesBack(later, {later.Announced()}));
  hub_.Advance(RegistryLimits().recovery_window);
  for (TestRank* rank : {&early, &later}) {
    rank->Publish(rank->name.group);
    EXPECT_OK(rank->Finished().status) << rank->name.group;
  }
}

// It was away when the roll-back came that the older state has forgotten.
TEST_F(LostStateTest, WhoMissedAForgottenRollBackStaysBehindIt) {
  TestRank reader = Rollout(hub_, "reader");
  trainer_.Disconnect();
  const RegistryHarness::SavedState backup = hub_.Save();
  hub_.Restart();
  ASSERT_TRUE(ComesBack(reader, {}));
  hub_.Advance(RegistryLimits().recovery_window);
  const CommandFinished back = hub_.Command({"key", RollBack{LatestVersion{}}});
  ASSERT_OK(back.status);
  reader.lineage = back.lineage;
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(reader, {}));
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Announced()}));
  hub_.Advance(RegistryLimits().recovery_window);
  trainer_.Publish("step-2");
  EXPECT_THAT(trainer_.Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// The backup is of the epoch in which they live, and was made before the roll-back.
TEST_F(LostStateTest, ALabelThatAForgottenRollBackMayHaveFreedNamesAnotherVersion) {
  trainer_.Unpublish();
  trainer_.Done();
  trainer_.Publish("step-2");
  const VersionInfo second = trainer_.Finished().version;
  trainer_.Unpublish();
  trainer_.Done();
  const RegistryHarness::SavedState backup = hub_.Save();
  ASSERT_EQ(hub_.model().high_water, second.sequence);
  const CommandFinished back =
      hub_.Command({"key", RollBack{VersionLabel::Parse("step-1").value()}});
  ASSERT_OK(back.status);
  trainer_.lineage = back.lineage;
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Announced()}));
  EXPECT_EQ(hub_.model().lineage, back.lineage);
  hub_.Restart();
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Announced()}));
  hub_.Advance(RegistryLimits().recovery_window);
  TestRank other(hub_, "other", 0, 1);
  other.JoinAndRegister();
  other.Publish("step-2");
  const OperationFinished published = other.Finished();
  EXPECT_OK(published.status);
  EXPECT_GT(published.version.sequence, second.sequence);
}

TEST_F(LostStateTest, WhoStillHoldsAVersionThatAForgottenRollBackMayHaveWithdrawnKeepsItsLabel) {
  TestRank reader = Rollout(hub_, "reader");
  const RegistryHarness::SavedState backup = hub_.Save();
  const CommandFinished back = hub_.Command({"key", RollBack{LatestVersion{}}});
  ASSERT_OK(back.status);
  reader.lineage = back.lineage;
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(reader, {reader.Announced()}));
  EXPECT_EQ(hub_.model().high_water_label, "");
  ASSERT_TRUE(TrainerComesBack());
  EXPECT_TRUE(trainer_.HearsNone<PublicationRefused>());
  hub_.Advance(RegistryLimits().recovery_window);
  reader.Update(VersionLabel::Parse("step-1").value());
  EXPECT_EQ(reader.Fill().name.group, "trainer");
}

TEST_F(LostStateTest, ALabelThatAHolderHasBroughtBackOutlastsARestart) {
  TestRank reader = Rollout(hub_, "reader");
  const RegistryHarness::SavedState backup = hub_.Save();
  reader.lineage = hub_.Command({"key", RollBack{LatestVersion{}}}).lineage;
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(reader, {reader.Announced()}));
  ASSERT_EQ(hub_.model().high_water_label, "");
  ASSERT_TRUE(TrainerComesBack());
  hub_.Restart();
  EXPECT_EQ(hub_.model().high_water_label, "step-1");
}

// Its label was given again after the backup was made.
TEST_F(LostStateTest, AVersionThatTookItsLabelFromOneOfTheBackupIsLearned) {
  const RegistryHarness::SavedState backup = hub_.Save();
  hub_.Restart();
  hub_.Advance(RegistryLimits().lease);
  TestRank later(hub_, "trainer-2", 0, 1);
  later.JoinAndRegister();
  later.Publish("step-1");
  const VersionInfo second = later.Finished().version;
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(later, {later.Holding(second, true, "other")}));
  EXPECT_TRUE(later.HearsNone<PublicationRefused>());
  EXPECT_EQ(hub_.model().high_water, second.sequence);
}

TEST_F(LostStateTest, AVersionOfAnEpochAfterTheClaimIsNotBelieved) {
  hub_.RestartEmpty(Epoch(1000));
  VersionInfo invented = version_;
  invented.sequence = VersionSequence::Of(Epoch(500), 1);
  ASSERT_TRUE(ComesBack(trainer_, {trainer_.Holding(invented, true, "step-1")}));
  EXPECT_FALSE(trainer_.HearsNone<PublicationRefused>());
  EXPECT_EQ(hub_.model().high_water, VersionSequence());
}

// ---- identities

TEST_F(LostStateTest, AWorkerOfALostStateHasAnIdOfItsOwn) {
  hub_.RestartEmpty();
  TestRank other(hub_, "other", 0, 1);
  ASSERT_TRUE(other.Join());
  ASSERT_EQ(other.worker, trainer_.worker) << "both were the first of a first epoch";
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(TrainerComesBack());
  ASSERT_TRUE(ComesBack(other, {}));
  EXPECT_NE(other.worker, trainer_.worker);
  EXPECT_FALSE(hub_.IsClosed(trainer_.connection));
  EXPECT_EQ(hub_.registry().worker_count(), 2u);
}

TEST_F(LostStateTest, AnOldProcessDoesNotPutItsReplacementOutAfterTheStateWasLost) {
  TestRank old = trainer_;
  hub_.RestartEmpty();
  TestRank replacement(hub_, "trainer", 0, 1);
  ASSERT_TRUE(replacement.Join());
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_FALSE(old.Resume({}));  // the server begins again above its epoch
  ASSERT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(ComesBack(old, {}));
  EXPECT_THAT(old.refused.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("replaced")));
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
}

TEST_F(LostStateTest, AReplacementTakesItsRankBackFromTheOldProcessThatCameFirst) {
  TestRank old = trainer_;
  hub_.RestartEmpty();
  TestRank replacement(hub_, "trainer", 0, 1);
  ASSERT_TRUE(replacement.Join());
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(old, {}));
  EXPECT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(ComesBack(old, {}));
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
  hub_.Restart();
  ASSERT_TRUE(ComesBack(old, {}));
  ASSERT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
}

// The old process was stopped before the copy was made; its replacement lived in what was lost.
TEST_F(LostStateTest, AnOldProcessThatAnOlderStateKnowsDoesNotPutItsReplacementOut) {
  TestRank old = trainer_;
  old.Disconnect();
  const RegistryHarness::SavedState backup = hub_.Save();
  hub_.Restart();
  TestRank replacement(hub_, "trainer", 0, 1);
  ASSERT_TRUE(replacement.Join());
  hub_.Restart();
  ASSERT_TRUE(ComesBack(replacement, {}));
  hub_.RestartWith(backup);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(ComesBack(old, {}));
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
}

// The replacement joined the server that an older state had begun again, in a lower epoch than the
// old process has lived in.
TEST_F(LostStateTest, AProcessOfTheLostTimeDoesNotPutOutWhoReplacedItSince) {
  const RegistryHarness::SavedState backup = hub_.Save();
  for (int i = 0; i < 3; ++i) hub_.Restart();
  ASSERT_TRUE(TrainerComesBack());
  TestRank old = trainer_;
  hub_.RestartWith(backup);
  TestRank replacement(hub_, "trainer", 0, 1);
  ASSERT_TRUE(replacement.Join());
  ASSERT_LT(replacement.joined_epoch, old.joined_epoch);
  hub_.Advance(registry::kShortestEpoch);
  ASSERT_TRUE(ComesBack(old, {}));
  ASSERT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(ComesBack(old, {}));
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
}

TEST_F(LostStateTest, TheHigherWorkerIdOfOneLostEpochWins) {
  trainer_.Disconnect();
  TestRank replacement(hub_, "trainer", 0, 1);
  ASSERT_TRUE(replacement.Join());
  hub_.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(TrainerComesBack());
  ASSERT_TRUE(ComesBack(replacement, {}));
  EXPECT_FALSE(TrainerComesBack());
  EXPECT_FALSE(hub_.IsClosed(replacement.connection));
}

TEST_F(LostStateTest, AWorkerOfALostStateThatDidNotHearTheAnswerComesBackOnce) {
  hub_.RestartEmpty(Epoch(1000));
  TestRank unheard = trainer_;
  ASSERT_TRUE(TrainerComesBack());
  const WorkerId id = trainer_.worker;
  trainer_.Disconnect();
  ASSERT_TRUE(ComesBack(unheard, {}));
  EXPECT_EQ(unheard.worker, id);
  EXPECT_EQ(hub_.registry().worker_count(), 1u);
}

TEST_F(LostStateTest, AStrangerNeverHearsTheSecretOfAnAbsentWorker) {
  trainer_.Disconnect();
  hub_.Restart();
  TestRank stranger(hub_, "stranger", 0, 1);
  stranger.worker = trainer_.worker;
  stranger.joined_epoch = trainer_.joined_epoch;
  stranger.cluster = ClusterId(999);
  stranger.epoch_id = trainer_.epoch_id;
  ASSERT_TRUE(ComesBack(stranger, {}));
  EXPECT_NE(stranger.worker, trainer_.worker);
  EXPECT_FALSE(stranger.secret == DeriveMembershipSecret(hub_.identity().key, trainer_.worker,
                                                         hub_.identity().epoch_id()));
  EXPECT_TRUE(TrainerComesBack());
}

TEST_F(LostStateTest, AStrangerDoesNotTakeTheRankOfAMember) {
  TestRank stranger = trainer_;
  stranger.cluster = ClusterId(999);
  trainer_.Disconnect();
  hub_.Advance(registry::kShortestEpoch);
  hub_.Restart();
  ASSERT_TRUE(TrainerComesBack());
  EXPECT_FALSE(ComesBack(stranger, {}));
  EXPECT_FALSE(hub_.IsClosed(trainer_.connection));
}

// ---- groups

TEST_F(LostStateTest, AGroupThatComesBackTogetherGoesOnCounting) {
  std::vector<TestRank> pair = JoinedGroup(hub_, "pair", 2);
  hub_.RestartEmpty(Epoch(1000));
  for (TestRank& rank : pair) ASSERT_TRUE(ComesBack(rank, {rank.Announced()}));
  EXPECT_EQ(pair[0].generation, pair[1].generation);
  EXPECT_TRUE(pair[0].HearsNone<GroupChanged>());
}

TEST_F(LostStateTest, EqualGenerationsOfTwoStatesAreNotOneNumbering) {
  RegistryHarness hub;
  std::vector<TestRank> before = JoinedGroup(hub, "pair", 2);
  hub.RestartEmpty();
  std::vector<TestRank> after = JoinedGroup(hub, "pair", 2);
  ASSERT_EQ(before[0].generation, after[0].generation);
  hub.RestartEmpty(Epoch(1000));
  ASSERT_TRUE(after[0].Resume({after[0].Announced()}));
  ASSERT_TRUE(before[1].Resume({before[1].Announced()}));
  EXPECT_GT(before[1].generation, after[0].generation);
  EXPECT_EQ(after[0].Heard<GroupChanged>().group_generation, before[1].generation);
}

}  // namespace
}  // namespace th
