#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::th::testing::StatusIs;

TEST(UpdatingTest, AGroupMovesTogether) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  rollout[0].Update();
  EXPECT_EQ(rollout[0].Heard<OperationResolved>().version, version);
  rollout[1].Update();
  EXPECT_EQ(rollout[0].Fill().buffer, trainer[0].address());
  EXPECT_EQ(rollout[1].Fill().buffer, trainer[1].address());
  rollout[0].Done();
  EXPECT_TRUE(rollout[0].HearsNone<OperationFinished>()) << "one rank is not the group";
  rollout[1].Done();
  for (TestRank& rank : rollout) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_EQ(finished.outcome, UpdateOutcome::kMoved);
    EXPECT_EQ(finished.version, version);
  }
}

TEST(UpdatingTest, ARankThatIsDoneBeforeAnotherHasAskedWaitsForIt) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
  PublishWhole(trainer, "step-1");
  rollout[0].Update();
  rollout[0].Fill();
  rollout[0].Done();
  EXPECT_TRUE(rollout[0].HearsNone<OperationFinished>());
  rollout[1].Update();
  rollout[1].Fill();
  rollout[1].Done();
  EXPECT_EQ(rollout[0].Finished().outcome, UpdateOutcome::kMoved);
}

TEST(UpdatingTest, LaterRanksGetTheFirstOnesVersion) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 2; ++rank) rollout.emplace_back(hub, "rollout", rank, 2);
  JoinAndRegister(rollout);
  rollout[0].Update();
  const VersionInfo first = rollout[0].Heard<OperationResolved>().version;
  TestRank second_trainer(hub, "trainer-2", 0, 1);
  second_trainer.JoinAndRegister();
  second_trainer.Publish("step-2");
  ASSERT_OK(second_trainer.Finished().status);
  rollout[1].Update();
  EXPECT_EQ(rollout[1].Heard<OperationResolved>().version, first);
}

TEST(UpdatingTest, WhoHoldsItAlreadyIsToldAtOnce) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.FillWhole();
  rollout.Finished();
  rollout.Update();
  const OperationFinished again = rollout.Finished();
  EXPECT_EQ(again.outcome, UpdateOutcome::kAlreadyThere);
}

TEST(UpdatingTest, ALayoutThatNobodyHoldsIsAnErrorThatNamesTheFirstDifferentTensor) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  rollout.emplace_back(hub, "rollout", 0, 2);
  rollout.emplace_back(hub, "rollout", 1, 2, LayoutNamed("w", 8));
  JoinAndRegister(rollout);
  rollout[0].Update();
  EXPECT_THAT(rollout[0].Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rollout/1"), HasSubstr("step-1"), HasSubstr("'w'"))));
  rollout[1].Update();
  EXPECT_THAT(rollout[1].Finished().status, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(UpdatingTest, AFillingReaderIsASourceFromItsStart) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank first = Rollout(hub, "first");
  TestRank second = Rollout(hub, "second");
  first.Update();
  EXPECT_TRUE(first.Fill().publisher);
  second.Update();
  const AssignedSource source = second.Fill();
  EXPECT_EQ(source.buffer, first.address());
  EXPECT_TRUE(source.partial);
  EXPECT_EQ(source.name.ToString(), "first/0");
  EXPECT_EQ(source.generation, first.buffer_generation);
}

TEST(UpdatingTest, TheCapabilityOfAnAssignmentIsTheSourcesToCheck) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  const AssignedSource source = rollout.Fill();
  EXPECT_OK(VerifyCapability(trainer.capability_key, source.capability));
  EXPECT_THAT(VerifyCapability(rollout.capability_key, source.capability),
              Not(th::testing::IsOk()));
  EXPECT_EQ(source.capability.claims.reader, rollout.worker);
  EXPECT_EQ(source.capability.claims.source, trainer.address());
  EXPECT_EQ(source.capability.claims.assignment, rollout.assignment);
}

TEST(UpdatingTest, WhatAMovingReplicaHeldIsNoSourceForNewReaders) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank relay = Rollout(hub, "relay");
  relay.Update();
  relay.FillWhole();
  relay.Finished();
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  second.Finished();
  relay.Update();
  TestRank reader = Rollout(hub, "reader");
  reader.Update(VersionSelector(*VersionLabel::Parse("step-1")));
  EXPECT_EQ(reader.Fill().buffer, trainer.address());
}

TEST(UpdatingTest, AVersionWithoutASourceRightNowIsWaitedFor) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  trainer.Disconnect();
  rollout.Update();
  rollout.Ready();
  const AssignSources none = rollout.Heard<AssignSources>();
  EXPECT_TRUE(none.sources.empty());
  EXPECT_THAT(none.why_empty, HasSubstr("no holder is connected"));
  AnnouncedBuffer announced = trainer.Holding(
      {.sequence = none.version, .label = *VersionLabel::Parse("step-1")}, true, "step-1");
  announced.last_finished = FinishedOperation{.number = OperationNumber(1)};
  ASSERT_TRUE(trainer.Resume({announced}));
  EXPECT_EQ(rollout.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

TEST(UpdatingTest, WhenTheLastHolderIsGoneItsReadersAreToldTheReasonAndTheNewestThereIs) {
  RegistryHarness hub;
  TestRank old(hub, "old", 0, 1);
  old.JoinAndRegister();
  old.Publish("step-1");
  old.Seal(old.Finished().version.sequence, "step-1");
  TestRank trainer = Trainer(hub, "step-2");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  trainer.Say(Leave{});
  EXPECT_THAT(rollout.Heard<AssignSources>().why_empty, HasSubstr("last holder is gone"));
  EXPECT_TRUE(rollout.HearsNone<OperationFinished>()) << "it may have everything already";
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank rollout/0"), HasSubstr("step-2"),
                             HasSubstr("last holder is gone"), HasSubstr("step-1"))));
}

TEST(UpdatingTest, AReaderThatHasEverythingWhenItsLastHolderGoesMayStillSaySo) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  trainer.Unpublish();
  trainer.Done();
  ASSERT_OK(trainer.Finished().status);
  rollout.Done();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  TestRank late = Rollout(hub, "late");
  late.Update();
  EXPECT_EQ(late.Heard<OperationResolved>().root, RootNamed("step-1"));
  EXPECT_EQ(late.Fill().buffer, rollout.address()) << "the version lives on in its reader";
}

TEST(UpdatingTest, ADeadHoldersReadersAreAssignedOthersWhenItsLeaseEnds) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank first = Rollout(hub, "first");
  TestRank second = Rollout(hub, "second");
  first.Update();
  first.Fill();
  second.Update();
  ASSERT_EQ(second.Fill().buffer, first.address());
  first.Disconnect();
  EXPECT_TRUE(second.HearsNone<AssignSources>()) << "its edges live until the lease ends";
  for (int i = 0; i < 3; ++i) {
    hub.Advance(absl::Seconds(2));
    trainer.Say(Heartbeat{});
    second.Say(Heartbeat{});
  }
  EXPECT_EQ(second.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

TEST(UpdatingTest, ADeadRankInvalidatesItsWholeReplicaAsASource) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = MakeGroup(hub, "trainer", 2);
  std::vector<TestRank> relay = MakeGroup(hub, "relay", 2);
  std::vector<TestRank> reader = MakeGroup(hub, "reader", 2);
  for (auto* group : {&trainer, &relay, &reader}) JoinAndRegister(*group);
  PublishWhole(trainer, "step-1");
  UpdateWhole(relay);
  for (TestRank& rank : reader) rank.Update();
  ASSERT_EQ(reader[0].Fill().buffer, relay[0].address());
  relay[1].Say(Leave{});
  EXPECT_EQ(reader[0].Heard<AssignSources>().sources.at(0).buffer, trainer[0].address());
}

TEST(UpdatingTest, ASlowRankIsNamedWithWhatItLacksAtTheDeadline) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 3; ++rank) rollout.emplace_back(hub, "rollout", rank, 3);
  JoinAndRegister(rollout);
  for (TestRank& rank : rollout) {
    StartOperation request = rank.UpdateRequest();
    request.timeout = absl::Seconds(3);
    if (rank.name.rank != Rank(2)) rank.Start(request);
  }
  rollout[0].FillWhole();
  rollout[1].Fill();
  SegmentSet held;
  held.Add(SegmentIndex(0));
  rollout[1].Say(FillProgress{rollout[1].key(), hub.model().high_water, held});
  hub.Advance(absl::Seconds(3));
  EXPECT_THAT(rollout[0].Finished().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank rollout/1 holds 1 of 4 segments"),
                             HasSubstr("fills from rollout/0"),
                             HasSubstr("rollout/2 had not started it"))));
}

TEST(UpdatingTest, ARankThatFailsEndsTheUpdateForAllAndIsNoSource) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 2; ++rank) rollout.emplace_back(hub, "rollout", rank, 2);
  JoinAndRegister(rollout);
  for (TestRank& rank : rollout) rank.Update();
  for (TestRank& rank : rollout) rank.Fill();
  TestRank reader = Rollout(hub, "reader");
  reader.Update();
  reader.Fill();
  rollout[1].Fail(absl::DataLossError("disk on fire"), true);
  EXPECT_THAT(rollout[0].Finished().status,
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("rank rollout/1"), HasSubstr("disk on fire"))));
  EXPECT_EQ(reader.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

TEST(UpdatingTest, AFailureWithoutReasonIsStillAFailure) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fail(absl::OkStatus());
  EXPECT_THAT(rollout.Finished().status,
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("rollout/0")));
}

TEST(UpdatingTest, SurvivorsOfAReplacementNeedNoBytes) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 2; ++rank) rollout.emplace_back(hub, "rollout", rank, 2);
  JoinAndRegister(rollout);
  UpdateWhole(rollout);
  rollout[1].Disconnect();
  TestRank again(hub, "rollout", 1, 2);
  again.JoinAndRegister();
  rollout[0].number = OperationNumber();
  rollout[0].Heard<GroupChanged>();
  rollout[0].Update();
  again.Update();
  EXPECT_EQ(again.Fill().buffer, rollout[0].address()) << "a survivor's shard is there";
  hub.TakeAll<AssignSources>(rollout[0].connection);
  rollout[0].Say(ReadyToFill{rollout[0].key(), rollout[0].buffer_generation});
  EXPECT_TRUE(rollout[0].HearsNone<AssignSources>());
  rollout[0].Done();
  again.Done();
  EXPECT_EQ(rollout[0].Finished().outcome, UpdateOutcome::kMoved);
}

TEST(UpdatingTest, AGroupThatAnnouncesAgainWhatItHeldBeforeAFailedUpdateIsASourceAgain) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank relay = Rollout(hub, "relay");
  relay.Update();
  relay.FillWhole();
  const VersionInfo version = relay.Finished().version;
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  second.Finished();
  relay.Update();
  relay.Fail(absl::CancelledError("not now"));
  trainer.Say(Leave{});
  relay.Say(RegisterBuffer{relay.Holding(version, false, "step-1")});
  TestRank reader = Rollout(hub, "reader");
  reader.Update(VersionSelector(version.sequence));
  EXPECT_EQ(reader.Fill().buffer, relay.address());
}

struct RefusedStep {
  std::string name;
  void (*step)(TestRank&);
};

class RefusedStepTest : public ::testing::TestWithParam<RefusedStep> {};

// A rank that is in the middle of an update says what does not fit.
TEST_P(RefusedStepTest, IsCountedAndChangesNothing) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  const AssignedSource source = rollout.Fill();
  const uint64_t before = hub.registry().counters().messages_refused;
  GetParam().step(rollout);
  EXPECT_EQ(hub.registry().counters().messages_refused, before + 1);
  EXPECT_TRUE(rollout.HearsNone<AssignSources>());
  rollout.Done();
  EXPECT_OK(rollout.Finished().status) << "the update goes on after what was refused";
  EXPECT_EQ(source.buffer, trainer.address());
}

OperationKey Another(const TestRank& rank) { return {rank.buffer, rank.number.Next()}; }

INSTANTIATE_TEST_SUITE_P(
    Steps, RefusedStepTest,
    ::testing::Values(
        RefusedStep{"ReadyInAnotherOperation",
                    [](TestRank& r) {
                      r.Say(ReadyToFill{Another(r), BufferGeneration(9)});
                    }},
        RefusedStep{"DoneInAnotherOperation", [](TestRank& r) { r.Say(RankDone{Another(r)}); }},
        RefusedStep{"FailedInAnotherOperation",
                    [](TestRank& r) {
                      r.Say(RankFailed{Another(r), absl::InternalError("no")});
                    }},
        RefusedStep{"DoneInAnUnknownBuffer",
                    [](TestRank& r) {
                      r.Say(RankDone{{BufferId(9), r.number}});
                    }},
        RefusedStep{"ProgressOfAnotherVersion",
                    [](TestRank& r) {
                      r.Say(FillProgress{r.key(), VersionSequence(9), SegmentSet()});
                    }},
        RefusedStep{
            "ProgressBeyondTheLayout",
            [](TestRank& r) {
              r.Say(FillProgress{r.key(), VersionSequence::Of(Epoch(1), 1), SegmentSet::AllOf(5)});
            }},
        RefusedStep{"SourceOfAnotherAssignment",
                    [](TestRank& r) {
                      r.Say(SourceFailed{r.key(), AssignmentId(99), r.address()});
                    }},
        RefusedStep{"SourceThatWasNotAssigned",
                    [](TestRank& r) {
                      r.Say(SourceFailed{r.key(), r.assignment, {WorkerId(9), BufferId(9)}});
                    }},
        RefusedStep{"AnUnaskedLayout",
                    [](TestRank& r) { r.Say(LayoutUpload{LayoutNamed("stranger")}); }},
        RefusedStep{"SealByAReader",
                    [](TestRank& r) { r.Seal(VersionSequence::Of(Epoch(1), 1), "x"); }},
        RefusedStep{"ResetOfAnUnknownBuffer", [](TestRank& r) { r.Say(BufferReset{BufferId(9)}); }},
        RefusedStep{"UnregisterOfAnUnknownBuffer",
                    [](TestRank& r) { r.Say(UnregisterBuffer{BufferId(9)}); }}),
    [](const auto& param) { return param.param.name; });

TEST(UpdatingTest, DoneBeforeReadyIsRefused) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Done();
  EXPECT_TRUE(rollout.HearsNone<OperationFinished>());
  EXPECT_EQ(hub.registry().counters().messages_refused, 1u);
}

TEST(UpdatingTest, RanksThatUpdateToDifferentVersionsAreNamed) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 2; ++rank) rollout.emplace_back(hub, "rollout", rank, 2);
  JoinAndRegister(rollout);
  rollout[0].Update();
  rollout[1].Update(VersionSelector(*VersionLabel::Parse("step-1")));
  EXPECT_THAT(rollout[0].Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rollout/1 updates to step-1, not to latest")));
}

TEST(UpdatingTest, AStreamThatComesBackInMidFillGoesOnUndisturbed) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  const VersionInfo version = rollout.Heard<OperationResolved>().version;
  rollout.Disconnect();
  ASSERT_TRUE(rollout.Resume({rollout.Filling(version, {trainer.address()})}));
  StartOperation same = rollout.UpdateRequest();
  same.key.number = rollout.number;
  rollout.Start(same);
  EXPECT_EQ(rollout.Heard<OperationResolved>().version, version);
  rollout.Say(ReadyToFill{rollout.key(), rollout.buffer_generation});
  EXPECT_TRUE(rollout.HearsNone<AssignSources>());
  rollout.Done();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
}

TEST(UpdatingTest, AShardThatWasCompletedWhileTheStreamWasBrokenCounts) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  const VersionInfo version = rollout.Heard<OperationResolved>().version;
  rollout.Disconnect();
  AnnouncedBuffer announced = rollout.Holding(version, false, "step-1");
  announced.held->group_committed = false;
  ASSERT_TRUE(rollout.Resume({announced}));
  rollout.Done();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
}

TEST(UpdatingTest, ARankThatWasDoneAndAnnouncesItsBufferEmptyEndsTheUpdateForAll) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
  for (TestRank& rank : rollout) rank.Update();
  rollout[0].FillWhole();
  rollout[0].Say(RegisterBuffer{rollout[0].Announced()});
  for (TestRank& rank : rollout) {
    EXPECT_THAT(rank.Finished().status,
                StatusIs(absl::StatusCode::kAborted, HasSubstr("rank rollout/0 was done and has")));
  }
}

TEST(UpdatingTest, AStreamThatMissedItsAssignmentHearsItAgain) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  const VersionInfo version = rollout.Heard<OperationResolved>().version;
  rollout.Disconnect();
  ASSERT_TRUE(rollout.Resume({rollout.Filling(version, {})}));
  EXPECT_EQ(rollout.Heard<AssignSources>().sources.at(0).buffer, trainer.address());
}

}  // namespace
}  // namespace th
