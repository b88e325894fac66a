#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

FinishedOperation Ended(const OperationFinished& finished) {
  return {.number = finished.key.number,
          .kind = finished.kind,
          .status = finished.status,
          .outcome = finished.outcome,
          .not_available = finished.not_available,
          .version = finished.version};
}

// A trainer that has published step-1 and a rollout that fills from it when the server dies.
class RestartTest : public ::testing::Test {
 protected:
  RestartTest() : trainer_(hub_, "trainer", 0, 1), rollout_(hub_, "rollout", 0, 1) {
    trainer_.JoinAndRegister();
    trainer_.Publish("step-1");
    published_ = trainer_.Finished();
    version_ = published_.version;
    trainer_.Seal(version_.sequence, "step-1");
    rollout_.JoinAndRegister();
    rollout_.Update();
    rollout_.Fill();
  }

  bool TrainerResumes() {
    AnnouncedBuffer announced = trainer_.Holding(version_, true, "step-1");
    announced.last_finished = Ended(published_);
    return trainer_.Resume({announced});
  }
  bool RolloutResumes() {
    return rollout_.Resume({rollout_.Filling(version_, {trainer_.address()})});
  }
  void RolloutAsksAgain() {
    StartOperation again = rollout_.UpdateRequest();
    again.key.number = rollout_.number;
    again.resolved = version_;
    rollout_.Start(again);
    rollout_.Say(ReadyToFill{rollout_.key(), rollout_.buffer_generation});
  }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank rollout_;
  OperationFinished published_;
  VersionInfo version_;
};

TEST_F(RestartTest, AFillGoesOnUndisturbedAndEndsForTheGroup) {
  hub_.Restart();
  ASSERT_TRUE(RolloutResumes());
  ASSERT_TRUE(TrainerResumes());
  RolloutAsksAgain();
  EXPECT_TRUE(rollout_.HearsNone<AssignSources>()) << "it has its source";
  rollout_.Done();
  const OperationFinished finished = rollout_.Finished();
  EXPECT_EQ(finished.outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(finished.version, version_);
}

TEST_F(RestartTest, WorkersKeepTheirIdentityAndGetNewKeys) {
  const WorkerId before = trainer_.worker;
  const CapabilityKey key = trainer_.capability_key;
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  EXPECT_EQ(trainer_.worker, before);
  EXPECT_EQ(trainer_.joined_epoch, hub_.epoch());
  EXPECT_NE(trainer_.capability_key, key);
}

TEST_F(RestartTest, AnswersThatResolveVersionsWaitForTheWindow) {
  hub_.Restart();
  TestRank late = Rollout(hub_, "late");
  late.Update();
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), LatestVersion{}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(late.HearsNone<OperationFinished>());
  ASSERT_TRUE(TrainerResumes());
  EXPECT_TRUE(late.HearsNone<OperationResolved>());
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_EQ(late.Heard<OperationResolved>().version, version_);
  EXPECT_EQ(late.Fill().buffer, trainer_.address());
}

TEST_F(RestartTest, APublishWaitsForTheWindowToo) {
  hub_.Restart();
  TestRank second(hub_, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  EXPECT_TRUE(second.HearsNone<OperationFinished>());
  hub_.Advance(RegistryLimits().recovery_window);
  const OperationFinished finished = second.Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.version.sequence, VersionSequence::Of(hub_.epoch(), 1));
  EXPECT_GT(finished.version.sequence, version_.sequence);
}

TEST_F(RestartTest, LatestNeverGoesBehindTheHighWaterMark) {
  TestRank second(hub_, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  ASSERT_OK(second.Finished().status);
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  hub_.Advance(RegistryLimits().recovery_window);
  TestRank late = Rollout(hub_, "late");
  late.Update();
  EXPECT_EQ(late.Finished().not_available, NotAvailableReason::kLost);
  late.Update(VersionSelector(*VersionLabel::Parse("step-2")));
  EXPECT_EQ(late.Finished().not_available, NotAvailableReason::kLost);
  late.Update(VersionSelector(*VersionLabel::Parse("step-1")));
  EXPECT_EQ(late.Heard<OperationResolved>().version, version_);
}

// Nobody can tell whether the bytes are the same, so it is another version.
TEST_F(RestartTest, TheLabelOfALostVersionMayBePublishedAgain) {
  hub_.Restart();
  hub_.Advance(RegistryLimits().lease);
  TestRank again(hub_, "trainer", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-1");
  const OperationFinished finished = again.Finished();
  EXPECT_OK(finished.status);
  EXPECT_GT(finished.version.sequence, version_.sequence);
  TestRank late = Rollout(hub_, "late");
  late.Update(VersionSelector(*VersionLabel::Parse("step-1")));
  EXPECT_EQ(late.Heard<OperationResolved>().version, finished.version);
}

TEST_F(RestartTest, ALostVersionIsForgottenOnceItsLabelIsGivenAgain) {
  TestRank second(hub_, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  ASSERT_OK(second.Finished().status);
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  hub_.Advance(RegistryLimits().lease);
  TestRank again(hub_, "trainer-3", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-2");
  ASSERT_OK(again.Finished().status);
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), LatestVersion{1}), IsOkAndHolds(version_));
}

// One holder was cut off while the label was given again, and both come back to a third server.
TEST_F(RestartTest, OfTwoVersionsWithOneLabelTheLaterHasIt) {
  hub_.Restart();
  hub_.Advance(RegistryLimits().lease);
  TestRank later(hub_, "trainer-2", 0, 1);
  later.JoinAndRegister();
  later.Publish("step-1");
  const VersionInfo second = later.Finished().version;
  TestRank newest(hub_, "trainer-3", 0, 1);
  newest.JoinAndRegister();
  newest.Publish("step-2");
  ASSERT_OK(newest.Finished().status);
  for (const bool later_first : {false, true}) {
    SCOPED_TRACE(later_first);
    hub_.Restart();
    const auto resume_later = [&] {
      ASSERT_TRUE(later.Resume({later.Holding(second, true, "other")}));
      EXPECT_TRUE(later.HearsNone<PublicationRefused>());
    };
    if (later_first) resume_later();
    ASSERT_TRUE(TrainerResumes());
    EXPECT_EQ(trainer_.HearsNone<PublicationRefused>(), !later_first);
    if (!later_first) resume_later();
    hub_.Advance(RegistryLimits().recovery_window);
    EXPECT_THAT(hub_.registry().Resolve(TestModel(), second.label), IsOkAndHolds(second));
  }
}

TEST_F(RestartTest, ALabelThatMayBeBroughtBackIsWaitedFor) {
  hub_.Restart();
  TestRank again(hub_, "trainer-2", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-1");
  hub_.Advance(RegistryLimits().recovery_window);
  EXPECT_TRUE(again.HearsNone<OperationFinished>());
  ASSERT_TRUE(TrainerResumes());
  again.Seal(version_.sequence, "step-1");
  const OperationFinished finished = again.Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.version.sequence, version_.sequence);
}

TEST_F(RestartTest, APublishThatWaitedIsNotNewerThanWhatWasPublishedMeanwhile) {
  hub_.Restart();
  TestRank again(hub_, "trainer-2", 0, 1);
  TestRank other(hub_, "trainer-3", 0, 1);
  for (TestRank* rank : {&again, &other}) rank->JoinAndRegister();
  again.Publish("step-1");
  hub_.Advance(RegistryLimits().recovery_window);
  other.Publish("step-2");
  const VersionInfo newest = other.Finished().version;
  EXPECT_TRUE(again.HearsNone<OperationFinished>());
  PassAlive(hub_, {&again, &other}, RegistryLimits().lease);
  EXPECT_OK(again.Finished().status);
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), LatestVersion{}), IsOkAndHolds(newest));
}

TEST_F(RestartTest, APublishThatWaitsInVainSaysWhatFor) {
  hub_.Restart();
  TestRank again(hub_, "trainer-2", 0, 1);
  again.JoinAndRegister();
  StartOperation publish = again.PublishRequest("step-1");
  publish.timeout = RegistryLimits().lease / 2;
  again.Start(publish);
  hub_.Advance(publish.timeout);
  EXPECT_THAT(again.Finished().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still recovering")));
}

TEST_F(RestartTest, ALostVersionThatComesBackAfterItsLabelWasGivenAgainIsRefused) {
  hub_.Restart();
  hub_.Advance(RegistryLimits().lease);
  TestRank again(hub_, "trainer-2", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-1");
  ASSERT_OK(again.Finished().status);
  ASSERT_TRUE(TrainerResumes());
  EXPECT_THAT(trainer_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("label belongs to another version")));
}

TEST_F(RestartTest, AnEdgeIsAdoptedBeforeItsSourceIsBackAndKeepsTheGraphAcyclic) {
  TestRank second = Rollout(hub_, "second");
  second.Update();
  ASSERT_EQ(second.Fill().buffer, rollout_.address());
  hub_.Restart();
  ASSERT_TRUE(second.Resume({second.Filling(version_, {rollout_.address()})}));
  ASSERT_TRUE(RolloutResumes());
  RolloutAsksAgain();
  ASSERT_TRUE(TrainerResumes());
  rollout_.Say(
      SourceFailed{rollout_.key(), AssignmentId(), trainer_.address(), SourceFailure::kStalled});
  const AssignSources assigned = rollout_.Heard<AssignSources>();
  for (const AssignedSource& source : assigned.sources) {
    EXPECT_NE(source.buffer, second.address()) << "it fills from this very reader";
  }
}

TEST_F(RestartTest, AnnouncedEdgesThatWouldCloseACycleAreNotAdopted) {
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  TestRank second = Rollout(hub_, "second");
  ASSERT_TRUE(rollout_.Resume({rollout_.Filling(version_, {second.address()})}));
  second.Say(RegisterBuffer{second.Filling(version_, {rollout_.address()})});
  RolloutAsksAgain();
  EXPECT_OK(hub_.registry().CheckInvariants());
}

TEST_F(RestartTest, ASourceThatDoesNotComeBackIsReplaced) {
  TestRank second(hub_, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-1");
  second.Seal(second.Finished().version.sequence, "step-1");
  hub_.Restart();
  ASSERT_TRUE(RolloutResumes());
  RolloutAsksAgain();
  ASSERT_TRUE(second.Resume({second.Holding(version_, true, "step-1")}));
  EXPECT_TRUE(rollout_.HearsNone<AssignSources>());
  for (int i = 0; i < 3; ++i) {
    hub_.Advance(absl::Seconds(2));
    rollout_.Say(Heartbeat{});
    second.Say(Heartbeat{});
  }
  EXPECT_EQ(rollout_.Heard<AssignSources>().sources.at(0).buffer, second.address());
}

TEST_F(RestartTest, AFillThatHasLostNothingIsLeftAloneWhenNobodyMayComeBackAnyMore) {
  TestRank second = Rollout(hub_, "second");
  second.Update();
  second.FillWhole();
  second.Finished();
  hub_.Restart();
  ASSERT_TRUE(RolloutResumes());
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(second.Resume({second.Holding(version_, false, "step-1")}));
  RolloutAsksAgain();
  PassAlive(hub_, {&trainer_, &rollout_, &second}, RegistryLimits().lease + absl::Seconds(1));
  EXPECT_TRUE(rollout_.HearsNone<AssignSources>()) << "another holder is no nearer";
}

TEST_F(RestartTest, AFillIsMovedToANearerSourceThatHasComeBack) {
  TestRank near(hub_, "near", 0, 1);
  near.location.host = rollout_.location.host;
  near.JoinAndRegister();
  near.Update();
  near.FillWhole();
  near.Finished();
  hub_.Restart();
  ASSERT_TRUE(RolloutResumes());
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(near.Resume({near.Holding(version_, false, "step-1")}));
  RolloutAsksAgain();
  EXPECT_TRUE(rollout_.HearsNone<AssignSources>()) << "others may be nearer yet";
  PassAlive(hub_, {&trainer_, &rollout_, &near}, RegistryLimits().lease + absl::Seconds(1));
  EXPECT_EQ(rollout_.Heard<AssignSources>().sources.at(0).buffer, near.address());
}

TEST_F(RestartTest, ARankThatMissedTheResultGetsItFromTheOthers) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  for (TestRank& rank : pair) rank.Update();
  for (TestRank& rank : pair) rank.FillWhole();
  const OperationFinished finished = pair[0].Finished();
  ASSERT_EQ(finished.outcome, UpdateOutcome::kMoved);
  hub_.Restart();
  // Rank 1 has its shard and has not heard the end.
  AnnouncedBuffer unaware = pair[1].Holding(version_, false, "step-1");
  unaware.held->group_committed = false;
  ASSERT_TRUE(pair[1].Resume({unaware}));
  StartOperation again = pair[1].UpdateRequest();
  again.key.number = OperationNumber(1);
  again.resolved = version_;
  pair[1].Start(again);
  EXPECT_TRUE(pair[1].HearsNone<OperationFinished>());
  AnnouncedBuffer aware = pair[0].Holding(version_, false, "step-1");
  aware.last_finished = Ended(finished);
  ASSERT_TRUE(pair[0].Resume({aware}));
  EXPECT_EQ(pair[1].Finished().outcome, UpdateOutcome::kMoved);
  hub_.Advance(RegistryLimits().recovery_window);
  pair[0].Update();
  EXPECT_TRUE(pair[0].HearsNone<OperationFinished>()) << "the other may know how it ended";
  pair[1].Update();
  EXPECT_EQ(pair[0].Finished().outcome, UpdateOutcome::kAlreadyThere);
}

TEST_F(RestartTest, ARankThatDoesNotComeBackEndsItsGroupsOperationsByName) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  for (TestRank& rank : pair) rank.Update();
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  StartOperation again = pair[0].UpdateRequest();
  again.key.number = OperationNumber(1);
  again.resolved = version_;
  pair[0].Start(again);
  for (int i = 0; i < 3; ++i) {
    hub_.Advance(absl::Seconds(2));
    pair[0].Say(Heartbeat{});
    trainer_.Say(Heartbeat{});
  }
  EXPECT_THAT(pair[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("pair/1"), HasSubstr("has not come back"))));
}

// The caller's own word is compared with what its rank says of it.
TEST_F(RestartTest, AResolutionThatIsNoAnswerToWhatWasAskedIsRefused) {
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(rollout_.Resume({rollout_.Announced()}));
  StartOperation again = rollout_.UpdateRequest(*VersionLabel::Parse("step-7"));
  again.key.number = OperationNumber(1);
  again.resolved = version_;
  rollout_.Start(again);
  EXPECT_THAT(rollout_.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rollout/0"), HasSubstr("step-7 was asked for"))));
}

TEST_F(RestartTest, RanksThatWereMovingElsewhereAreToldApart) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  TestRank second(hub_, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  const VersionInfo later = second.Finished().version;
  for (TestRank& rank : pair) rank.Update();
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(second.Resume({second.Holding(later, true, "step-2")}));
  for (TestRank& rank : pair) ASSERT_TRUE(rank.Resume({rank.Announced()}));
  StartOperation again = pair[0].UpdateRequest();
  again.key.number = OperationNumber(1);
  again.resolved = version_;
  pair[0].Start(again);
  again.resolved = later;
  pair[1].Start(again);
  EXPECT_THAT(pair[0].Finished().status,
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("pair/1"), HasSubstr("step-2"), HasSubstr("ask again"))));
}

TEST_F(RestartTest, AFreshRankAmongReturnedOnesBeginsANewGeneration) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  hub_.Restart();
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  TestRank fresh(hub_, "pair", 1, 2);
  ASSERT_TRUE(fresh.Join());
  EXPECT_EQ(fresh.generation.value >> 32, hub_.epoch().value);
  EXPECT_EQ(pair[0].Heard<GroupChanged>().group_generation, fresh.generation);
}

// Its question may be on its way when the server stops waiting for those who do not come back.
TEST_F(RestartTest, WhatARankKnowsThatHasJustComeBackIsWaitedForUntilItHasSettled) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  hub_.Restart();
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  pair[0].Update();
  hub_.Advance(RegistryLimits().lease - absl::Milliseconds(1));
  ASSERT_TRUE(pair[1].Resume({pair[1].Announced()}));
  trainer_.Say(Heartbeat{});
  pair[0].Say(Heartbeat{});
  hub_.Advance(RegistryLimits().lease / 2);
  EXPECT_TRUE(pair[0].HearsNone<OperationResolved>());
  pair[1].Say(Heartbeat{});  // may have left before it heard that its buffer is registered
  EXPECT_TRUE(pair[0].HearsNone<OperationResolved>());
  pair[1].Say(Heartbeat{});
  EXPECT_EQ(pair[0].Heard<OperationResolved>().version, version_);
}

// The results of a group go with its last rank. Those that come back later than that may be asking
// for an operation that has ended without them.
TEST_F(RestartTest, RanksOfAGroupWhoseResultsAreForgottenCountAnew) {
  std::vector<TestRank> pair = JoinedGroup(hub_, "pair", 2);
  hub_.Restart();
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  pair[0].Update();
  hub_.Advance(RegistryLimits().lease);  // it waited for the other rank, and is not heard any more
  ASSERT_FALSE(pair[0].Finished().status.ok());
  const GroupGeneration forgotten = pair[1].generation;
  ASSERT_TRUE(pair[1].Resume({pair[1].Announced()}));
  EXPECT_GT(pair[1].generation, forgotten);
}

// It went on alone for many operations less than the other rank: nobody knows how they ended.
TEST_F(RestartTest, ARankThatAsksForWhatIsForgottenMakesItsGroupBumpItsGeneration) {
  std::vector<TestRank> pair = JoinedGroup(hub_, "pair", 2);
  hub_.Restart();
  for (TestRank& rank : pair) {
    rank.number = OperationNumber(rank.name.rank == Rank(0) ? 5 : 1);
    AnnouncedBuffer announced = rank.Announced();
    announced.last_finished =
        FinishedOperation{.number = rank.number, .kind = OperationKind::kUnpublish};
    ASSERT_TRUE(rank.Resume({announced}));
  }
  hub_.Advance(RegistryLimits().recovery_window);
  pair[0].Update();
  pair[1].Update();
  EXPECT_THAT(pair[1].Finished().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("is forgotten")));
  PassAlive(hub_, {&pair[0], &pair[1]}, absl::Seconds(2));
  EXPECT_GT(pair[0].Heard<GroupChanged>().group_generation, pair[0].generation);
}

// A group that nobody has heard of since the restart has lost nothing.
TEST_F(RestartTest, AGroupThatComesBackLateGoesOnCounting) {
  std::vector<TestRank> pair = JoinedGroup(hub_, "pair", 2);
  hub_.Restart();
  hub_.Advance(RegistryLimits().lease * 3);
  const GroupGeneration before = pair[1].generation;
  ASSERT_TRUE(pair[1].Resume({pair[1].Announced()}));
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  EXPECT_EQ(pair[1].generation, before);
  EXPECT_EQ(pair[0].generation, before);
}

// Ranks that come back with two numberings: the one that is ahead brings along what ended in it.
class NumberingsTest : public RestartTest {
 protected:
  NumberingsTest() {
    for (uint32_t rank = 0; rank < 2; ++rank) pair_.emplace_back(hub_, "pair", rank, 2);
    JoinAndRegister(pair_);
    hub_.Restart();
    fresh_ = std::make_unique<TestRank>(hub_, "pair", 1, 2);  // before the other one comes back
    fresh_->JoinAndRegister();
  }

  std::vector<TestRank> pair_;
  std::unique_ptr<TestRank> fresh_;
};

TEST_F(NumberingsTest, TheFirstReturnAmongNewProcessesBeginsANewOneAndEndsWhatTheyAsk) {
  fresh_->Update();
  const GroupGeneration present = fresh_->generation;
  ASSERT_TRUE(pair_[0].Resume({pair_[0].Announced()}));
  EXPECT_GT(pair_[0].generation, present);
  EXPECT_THAT(fresh_->Finished().status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(fresh_->Heard<GroupChanged>().group_generation, pair_[0].generation);
}

TEST_F(NumberingsTest, ARankThatHasMissedAResultMakesTheGroupBeginANewOne) {
  StartOperation request = fresh_->UpdateRequest();
  request.timeout = absl::Seconds(1);
  fresh_->Start(request);
  hub_.Advance(absl::Seconds(1));
  EXPECT_FALSE(fresh_->Finished().status.ok());
  const GroupGeneration present = fresh_->generation;
  ASSERT_TRUE(pair_[0].Resume({pair_[0].Announced()}));
  EXPECT_GT(pair_[0].generation, present);
  EXPECT_EQ(fresh_->Heard<GroupChanged>().group_generation, pair_[0].generation);
}

TEST_F(NumberingsTest, ARankThatIsAheadMakesTheGroupBeginANewOne) {
  hub_.Restart();
  ASSERT_TRUE(pair_[0].Resume({pair_[0].Announced()}));
  const GroupGeneration behind = pair_[0].generation;
  const GroupGeneration ahead = fresh_->generation;
  ASSERT_GT(ahead, behind);
  ASSERT_TRUE(fresh_->Resume({fresh_->Announced()}));
  EXPECT_GT(fresh_->generation, ahead);
  EXPECT_EQ(pair_[0].Heard<GroupChanged>().group_generation, fresh_->generation);
}

// Ranks that have called different things while there was no server: what one of them knows to have
// ended is no result of what the other one waits for.
TEST_F(RestartTest, AnEndOfAnotherKindIsNoResultForWhoWaits) {
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) pair.emplace_back(hub_, "pair", rank, 2);
  JoinAndRegister(pair);
  hub_.Restart();
  ASSERT_TRUE(pair[0].Resume({pair[0].Announced()}));
  pair[0].Publish("step-2");
  AnnouncedBuffer reported = pair[1].Announced();
  reported.last_finished = FinishedOperation{.number = OperationNumber(1),
                                             .kind = OperationKind::kUpdate,
                                             .outcome = UpdateOutcome::kNotAvailable,
                                             .not_available = NotAvailableReason::kNotPublished};
  ASSERT_TRUE(pair[1].Resume({reported}));
  const OperationFinished refused = pair[0].Finished();
  EXPECT_EQ(refused.kind, OperationKind::kPublish);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("ended as update"), HasSubstr("publish"))));
  StartOperation again = pair[1].UpdateRequest();
  again.key.number = OperationNumber(1);
  pair[1].Start(again);
  EXPECT_EQ(pair[1].Finished().not_available, NotAvailableReason::kNotPublished);
}

// The rank drains once it hears the error, and does not say so.
class BadEndOfUnpublishTest : public RestartTest,
                              public ::testing::WithParamInterface<FinishedOperation> {};

TEST_P(BadEndOfUnpublishTest, WhoWaitsForItIsNoSourceAnyMore) {
  std::vector<TestRank> pair = MakeGroup(hub_, "pair", 2);
  JoinAndRegister(pair);
  const VersionInfo held = PublishWhole(pair, "step-2");
  hub_.Restart();
  AnnouncedBuffer behind = pair[0].Holding(held, true, "step-2w0");
  behind.last_finished = FinishedOperation{
      .number = OperationNumber(1), .kind = OperationKind::kPublish, .version = held};
  ASSERT_TRUE(pair[0].Resume({behind}));
  StartOperation unpublish = pair[0].UnpublishRequest();
  unpublish.keep_retained = true;
  pair[0].Start(unpublish);
  AnnouncedBuffer reported = pair[1].Holding(held, true, "step-2w1");
  reported.last_finished = GetParam();
  reported.last_finished->number = unpublish.key.number;
  reported.last_finished->version = held;
  ASSERT_TRUE(pair[1].Resume({reported}));
  ASSERT_FALSE(pair[0].Finished().status.ok());
  std::vector<TestRank> readers = MakeGroup(hub_, "readers", 2);
  JoinAndRegister(readers);
  hub_.Advance(RegistryLimits().recovery_window);
  for (TestRank& reader : readers) reader.Update(held.label);
  for (TestRank& reader : readers) reader.Ready();
  EXPECT_TRUE(readers[0].HearsNone<AssignSources>());
}

INSTANTIATE_TEST_SUITE_P(
    Ends, BadEndOfUnpublishTest,
    ::testing::Values(FinishedOperation{.kind = OperationKind::kUpdate,
                                        .outcome = UpdateOutcome::kAlreadyThere},
                      FinishedOperation{.kind = OperationKind::kUnpublish,
                                        .status = absl::DeadlineExceededError("out of time")}));

// One of eight ranks had not heard that its group counts anew when the server died.
TEST_F(RestartTest, OneDiscrepancyMakesAGroupCountAnewOnce) {
  constexpr uint32_t kRanks = 8;
  for (uint32_t lagging = 0; lagging < kRanks; ++lagging) {
    SCOPED_TRACE(lagging);
    const std::string group = absl::StrCat("group-", lagging);
    std::vector<TestRank> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(hub_, group, rank, kRanks);
    JoinAndRegister(ranks);
    const GroupGeneration old = ranks[0].generation;
    ranks[7].Disconnect();
    TestRank replaced(hub_, group, 7, kRanks);
    ASSERT_TRUE(replaced.Join());
    hub_.Restart();
    uint32_t aborted = 0, reported = 0;
    for (uint32_t i = 0; i < kRanks - 1; ++i) {
      TestRank& rank = ranks[i];
      ASSERT_TRUE(rank.Resume({rank.Announced()}, i == lagging ? old : replaced.generation));
      rank.Update();  // it asks again at once what had not ended
    }
    for (TestRank& rank : ranks) {
      for (const auto& finished : hub_.TakeAll<OperationFinished>(rank.connection)) {
        aborted += absl::IsAborted(finished.status) ? 1 : 0;
      }
      reported += static_cast<uint32_t>(hub_.TakeAll<GroupChanged>(rank.connection).size());
    }
    EXPECT_LE(aborted, 1u);
    EXPECT_LE(reported, kRanks);
  }
}

TEST_F(RestartTest, BytesThatDifferFromTheKnownRootAreRefused) {
  TestRank second = Rollout(hub_, "second");
  hub_.Restart();
  ASSERT_TRUE(second.Resume({second.Holding(version_, false, "step-1")}));
  ASSERT_TRUE(TrainerResumes());
  ASSERT_TRUE(rollout_.Resume({rollout_.Holding(version_, false, "other bytes")}));
  EXPECT_THAT(rollout_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rollout/0")));
}

struct Impossible {
  std::string name;
  void (*change)(AnnouncedBuffer&);
  std::string says;
};

class ImpossibleTest : public ::testing::TestWithParam<Impossible> {};

TEST_P(ImpossibleTest, IsRefusedAndNotBelieved) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const VersionInfo version = *hub.registry().Resolve(TestModel(), LatestVersion{});
  hub.Restart();
  AnnouncedBuffer announced = trainer.Holding(version, true, "step-1");
  GetParam().change(announced);
  ASSERT_TRUE(trainer.Resume({announced}));
  EXPECT_THAT(trainer.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr(GetParam().says)));
  EXPECT_EQ(hub.registry().counters().messages_refused, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Claims, ImpossibleTest,
    ::testing::Values(
        Impossible{
            "AboveTheHighWaterMark",
            [](AnnouncedBuffer& b) { b.held->version.sequence = VersionSequence::Of(Epoch(1), 7); },
            "rolled back, or never published"},
        Impossible{"AnotherLabel",
                   [](AnnouncedBuffer& b) { b.held->version.label = VersionLabel::FromStep(9); },
                   "its label is 'step-1'"},
        Impossible{"AnotherVersionsLabel",
                   [](AnnouncedBuffer& b) { b.held->version.sequence = VersionSequence(5); },
                   "label belongs to another version"},
        Impossible{"NoLabel",
                   [](AnnouncedBuffer& b) {
                     b.held->version.sequence = VersionSequence(5);
                     b.held->version.label = VersionLabel();
                   },
                   "its label is empty"},
        Impossible{"SegmentsBeyondTheLayout",
                   [](AnnouncedBuffer& b) {
                     b.held->complete = false;
                     b.held->segments = SegmentSet::AllOf(99);
                   },
                   "segments that its layout lacks"}),
    [](const auto& param) { return param.param.name; });

// The server died between its fsync and its answer, and the trainer asks again.
TEST(RecoveryTest, ARepeatedRollBackDoesNotRunAgainAfterARestart) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const RunCommand roll_back{"resume-1", RollBack{LatestVersion{}}};
  const CommandFinished first = hub.Command(roll_back);
  ASSERT_OK(first.status);
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  trainer.lineage = first.lineage;
  trainer.Say(roll_back);  // its group goes on in the new lineage
  trainer.Publish("step-2");
  ASSERT_OK(trainer.Finished().status);
  const VersionSequence mark = hub.model().high_water;

  hub.Restart();
  const CommandFinished again = hub.Command(roll_back);
  ASSERT_OK(again.status);
  EXPECT_EQ(again.lineage, first.lineage);
  EXPECT_EQ(again.version.sequence, first.version.sequence);
  EXPECT_EQ(again.version.label, first.version.label);
  EXPECT_EQ(hub.model().high_water, mark) << "what was published since is not withdrawn";
  EXPECT_EQ(hub.model().lineage, first.lineage);
}

TEST(RecoveryTest, WithoutAnEarlierServerNothingWaits) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  hub.RestartWithoutRecovery();
  TestRank late = Rollout(hub, "late");
  late.Update();
  EXPECT_EQ(late.Finished().not_available, NotAvailableReason::kLost);
}

}  // namespace
}  // namespace th
