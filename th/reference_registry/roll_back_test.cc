#include <string>
#include <vector>

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

RunCommand To(const std::string& label, const std::string& key = "k") {
  RunCommand command{.idempotency_key = key};
  command.command = RollBack{.to = *ParseVersionSelector(label)};
  return command;
}

// Two trainers of one rank: the first publishes step-1, the second step-2.
class RollBackTest : public ::testing::Test {
 protected:
  RollBackTest() : first_(Trainer(hub_, "step-1")), second_(hub_, "trainer-2", 0, 1) {
    second_.JoinAndRegister();
    second_.Publish("step-2");
    const OperationFinished finished = second_.Finished();
    second_.Seal(finished.version.sequence, "step-2");
    later_ = finished.version;
  }

  RegistryHarness hub_;
  TestRank first_;
  TestRank second_;
  VersionInfo later_;
};

TEST_F(RollBackTest, LaterVersionsAreWithdrawnAndLatestGoesBack) {
  const CommandFinished finished = hub_.Command(To("step-1"));
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.version.label.text(), "step-1");
  EXPECT_EQ(finished.lineage, Lineage(1));
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), LatestVersion{}),
              IsOkAndHolds(finished.version));
  EXPECT_EQ(hub_.model().high_water, finished.version.sequence);
  EXPECT_EQ(hub_.model().high_water_label, "step-1");
  EXPECT_EQ(hub_.registry().counters().versions_withdrawn, 1u);
}

TEST_F(RollBackTest, ItsPublishersAreTold) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  const PublicationRefused refused = second_.Heard<PublicationRefused>();
  EXPECT_EQ(refused.version, later_.sequence);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("roll-back")));
  EXPECT_TRUE(first_.HearsNone<PublicationRefused>());
}

TEST_F(RollBackTest, GroupThatAskedIsNotToldThatItsOwnPublicationIsWithdrawn) {
  second_.Say(To("step-1"));
  ASSERT_OK(second_.Heard<CommandFinished>().status);
  EXPECT_TRUE(second_.HearsNone<PublicationRefused>());
}

TEST_F(RollBackTest, ReadersOfWithdrawnVersionsAreTold) {
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  ASSERT_OK(hub_.Command(To("step-1")).status);
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("step-2"), HasSubstr("newest version is step-1"))));
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, first_.address());
}

TEST_F(RollBackTest, AReplicaThatHasTheWithdrawnVersionMovesBack) {
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.FillWhole();
  ASSERT_EQ(rollout.Finished().version, later_);
  ASSERT_OK(hub_.Command(To("step-1")).status);
  StartOperation request = rollout.UpdateRequest();
  request.floor = later_.sequence;
  rollout.Start(request);
  EXPECT_EQ(rollout.Heard<OperationResolved>().version.label.text(), "step-1");
  rollout.FillWhole();
  const OperationFinished finished = rollout.Finished();
  EXPECT_EQ(finished.outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(finished.lineage, Lineage(1));
}

TEST_F(RollBackTest, ARepetitionBeginsNoFurtherLineage) {
  ASSERT_OK(hub_.Command(To("step-1", "first")).status);
  const CommandFinished again = hub_.Command(To("step-1", "second"));
  ASSERT_OK(again.status);
  EXPECT_EQ(again.version.label.text(), "step-1");
  EXPECT_EQ(again.lineage, Lineage(1));
  EXPECT_EQ(hub_.model().roll_backs.size(), 1u);
}

TEST_F(RollBackTest, ARepetitionAfterALaterVersionWithdrawsThatOne) {
  ASSERT_OK(hub_.Command(To("step-1", "first")).status);
  TestRank later(hub_, "trainer-3", 0, 1);
  later.JoinAndRegister();
  later.Publish("step-3");
  ASSERT_OK(later.Finished().status);
  EXPECT_EQ(hub_.Command(To("step-1", "second")).lineage, Lineage(2));
  EXPECT_EQ(later.Heard<PublicationRefused>().status.code(), absl::StatusCode::kAborted);
}

TEST_F(RollBackTest, PublishesOfTheOldLineageAreRefusedUntilTheWorkerJoinsAgain) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  second_.Publish("step-3");
  EXPECT_THAT(second_.Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("trainer-2/0"), HasSubstr("join again"))));
  second_.Disconnect();
  TestRank again(hub_, "trainer-2", 0, 1);
  again.JoinAndRegister();
  EXPECT_EQ(again.lineage, Lineage(1));
  again.Publish("step-3");
  EXPECT_OK(again.Finished().status);
}

TEST_F(RollBackTest, AResumedWorkerDoesNotForgetThatItLivesInThePast) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  second_.Disconnect();
  ASSERT_TRUE(second_.Resume({second_.Announced()}));
  EXPECT_EQ(second_.lineage, Lineage(0));
  second_.Publish("step-3");
  EXPECT_THAT(second_.Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RollBackTest, TheGroupThatAskedGoesOn) {
  second_.Say(To("step-1"));
  const CommandFinished finished = second_.Heard<CommandFinished>();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.lineage, Lineage(1));
  second_.Unpublish();
  second_.Done();
  ASSERT_OK(second_.Finished().status);
  second_.Publish("step-2");
  const OperationFinished again = second_.Finished();
  EXPECT_OK(again.status) << "the label is free again";
  EXPECT_GT(again.version.sequence, later_.sequence);
}

// A copy at a trainer that lives in the past, in a buffer beside the one that it trains in.
TestRank CopyOf(const TestRank& rank, BufferRole role) {
  TestRank copy = rank;
  copy.buffer = BufferId(2);
  copy.buffer_name = "weights.copy";
  copy.role = role;
  copy.number = OperationNumber();
  AnnouncedBuffer announced = copy.Announced();
  if (role == BufferRole::kStaged) announced.staged_for = rank.buffer_name;
  copy.Say(RegisterBuffer{announced});
  EXPECT_OK(copy.Heard<BufferRegistered>().status);
  return copy;
}

TEST_F(RollBackTest, ACopyLeavesItsGroupInThePast) {
  for (const BufferRole role : {BufferRole::kStaged, BufferRole::kOffload, BufferRole::kSiteCopy}) {
    RegistryHarness hub;
    TestRank target = Trainer(hub, "step-1");
    TestRank trainer = Rollout(hub, "trainer-2");
    trainer.Publish("step-2");
    ASSERT_OK(trainer.Finished().status);
    ASSERT_OK(hub.Command(To("step-1")).status);
    TestRank copy = CopyOf(trainer, role);
    copy.Update();
    copy.FillWhole();
    const OperationFinished finished = copy.Finished();
    ASSERT_OK(finished.status);
    EXPECT_EQ(finished.lineage, Lineage(0));
    trainer.Publish("step-3");
    EXPECT_THAT(trainer.Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
  }
}

TEST_F(RollBackTest, AnUpdateToTheTargetLeadsIntoThePresent) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  second_.Update();
  second_.FillWhole();
  EXPECT_EQ(second_.Finished().lineage, Lineage(1));
  second_.Unpublish();
  second_.Done();
  ASSERT_OK(second_.Finished().status);
  second_.Publish("step-3");
  EXPECT_OK(second_.Finished().status);
}

TEST_F(RollBackTest, AnUpdateToWhatWasPublishedSinceLeadsIntoThePresent) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  TestRank third(hub_, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  ASSERT_OK(third.Finished().status);
  second_.Update();
  second_.FillWhole();
  EXPECT_EQ(second_.Finished().lineage, Lineage(1));
}

TEST_F(RollBackTest, AnUpdateToAVersionBeforeTheTargetLeavesItsGroupInThePast) {
  TestRank rollout = Rollout(hub_, "rollout");
  ASSERT_OK(hub_.Command(To("step-2")).status);
  rollout.Update(VersionSelector(*VersionLabel::Parse("step-1")));
  rollout.FillWhole();
  const OperationFinished finished = rollout.Finished();
  ASSERT_OK(finished.status);
  EXPECT_EQ(finished.lineage, Lineage(0));
  rollout.Unpublish();
  rollout.Done();
  ASSERT_OK(rollout.Finished().status);
  rollout.Publish("step-3");
  EXPECT_THAT(rollout.Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// The version that is asked for was published after the roll-back, though the rank does not know of
// that.
TEST_F(RollBackTest, AFloorOfThePresentHoldsForARankOfThePastToo) {
  TestRank rollout = Rollout(hub_, "rollout");
  ASSERT_OK(hub_.Command(To("step-1")).status);
  TestRank third(hub_, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  StartOperation request = rollout.UpdateRequest(VersionSelector(*VersionLabel::Parse("step-1")));
  request.floor = third.Finished().version.sequence;
  rollout.Start(request);
  EXPECT_TRUE(rollout.HearsNone<OperationResolved>());
}

// The answer was lost with the server, or only one rank has heard it.
TEST_F(RollBackTest, TheGroupThatAskedGoesOnAfterARestart) {
  second_.Say(To("step-1"));
  hub_.Restart();
  ASSERT_TRUE(second_.Resume({second_.Announced()}));
  EXPECT_EQ(second_.lineage, Lineage(1));
  hub_.Advance(absl::Seconds(2));
  second_.number = OperationNumber();  // it announces no operation
  second_.Publish("step-2");
  EXPECT_OK(second_.Finished().status);
}

// A process of the group that was thought dead before the roll-back.
TEST_F(RollBackTest, AnEarlierGenerationOfTheGroupIsLeftInThePastByARestart) {
  TestRank zombie = second_;
  second_.Disconnect();
  TestRank replacement(hub_, "trainer-2", 0, 1);
  replacement.JoinAndRegister();
  replacement.Say(To("step-1"));
  hub_.Restart();
  ASSERT_TRUE(zombie.Resume({zombie.Announced()}));
  EXPECT_EQ(zombie.lineage, Lineage(0));
}

TEST_F(RollBackTest, AnotherGroupIsLeftInThePastByARestart) {
  second_.Say(To("step-1"));
  hub_.Restart();
  ASSERT_TRUE(first_.Resume({first_.Announced()}));
  EXPECT_EQ(first_.lineage, Lineage(0));
}

TEST_F(RollBackTest, APublishThatIsUnderWayEnds) {
  TestRank half(hub_, "half", 0, 2);
  half.JoinAndRegister();
  half.Publish("step-3");
  ASSERT_OK(hub_.Command(To("step-1")).status);
  EXPECT_THAT(half.Finished().status, StatusIs(absl::StatusCode::kAborted));
}

TEST_F(RollBackTest, ARepeatOfTheKeyDoesNothingMore) {
  const CommandFinished once = hub_.Command(To("step-1"));
  const CommandFinished twice = hub_.Command(To("step-1"));
  EXPECT_EQ(twice.lineage, once.lineage);
  EXPECT_EQ(hub_.model().lineage, Lineage(1));
}

TEST_F(RollBackTest, RollingBackToTheLatestOnlyMovesTheLineage) {
  ASSERT_OK(hub_.Command(To("step-2")).status);
  EXPECT_EQ(hub_.model().lineage, Lineage(1));
  EXPECT_EQ(hub_.registry().counters().versions_withdrawn, 0u);
}

TEST_F(RollBackTest, PinsOfWithdrawnVersionsAreGone) {
  RunCommand pin{.idempotency_key = "pin"};
  pin.command = PinVersion{.version = later_.sequence, .owner = "eval"};
  ASSERT_OK(hub_.Command(pin).status);
  ASSERT_OK(hub_.Command(To("step-1")).status);
  EXPECT_TRUE(hub_.model().pins.empty());
}

TEST_F(RollBackTest, UnknownAndWithdrawnTargetsAreRefused) {
  EXPECT_THAT(hub_.Command(To("step-9")).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-9")));
  ASSERT_OK(hub_.Command(To("step-1", "k2")).status);
  EXPECT_THAT(hub_.Command(To("step-2", "k3")).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("withdrawn")));
}

TEST_F(RollBackTest, ARestartDoesNotReviveWhatWasWithdrawn) {
  ASSERT_OK(hub_.Command(To("step-1")).status);
  TestRank third(hub_, "trainer-3", 0, 1);
  third.JoinAndRegister();
  third.Publish("step-3");
  ASSERT_OK(third.Finished().status);
  hub_.Restart();
  ASSERT_TRUE(second_.Resume({second_.Holding(later_, true, "step-2")}));
  EXPECT_THAT(second_.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rolled back")));
  hub_.Advance(absl::Seconds(2));
  EXPECT_THAT(hub_.registry().Resolve(TestModel(), later_.sequence),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(RollBackPointsTest, AreBoundedAndNeverForgetAWithdrawal) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-0");
  std::vector<VersionInfo> withdrawn;
  for (int i = 1; i <= 70; ++i) {
    for (const char* kind : {"kept", "lost"}) {
      trainer.Unpublish();
      trainer.Done();
      trainer.Finished();
      trainer.Publish(absl::StrCat(kind, i));
      const OperationFinished finished = trainer.Finished();
      ASSERT_OK(finished.status);
      if (std::string(kind) == "lost") withdrawn.push_back(finished.version);
    }
    trainer.Say(To(absl::StrCat("kept", i), absl::StrCat("key", i)));
    ASSERT_OK(trainer.Heard<CommandFinished>().status);
  }
  EXPECT_EQ(hub.model().roll_backs.size(), kMaxRollBacksKept);
  hub.Restart();
  for (const VersionInfo& version : withdrawn) {
    ASSERT_TRUE(trainer.Resume({trainer.Holding(version, true, "x")}));
    EXPECT_FALSE(trainer.HearsNone<PublicationRefused>()) << version.ToString();
  }
}

}  // namespace
}  // namespace th
