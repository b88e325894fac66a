#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"
#include "th/registry_state/state.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::registry::kCallsAgainWithin;
using ::th::testing::StatusIs;

struct RefusedStart {
  std::string name;
  std::function<void(StartOperation&)> change;
  absl::StatusCode code;
  std::string says;
};

class RefusedStartTest : public ::testing::TestWithParam<RefusedStart> {};

TEST_P(RefusedStartTest, IsAnsweredAndLeavesTheNumberingAlone) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  StartOperation request = trainer.PublishRequest("step-1");
  GetParam().change(request);
  trainer.Say(request);
  const OperationFinished finished = trainer.Finished();
  EXPECT_EQ(finished.key, request.key);
  EXPECT_THAT(finished.status, StatusIs(GetParam().code, HasSubstr(GetParam().says)));
  trainer.Publish("step-1");
  EXPECT_OK(trainer.Finished().status);
}

INSTANTIATE_TEST_SUITE_P(
    Requests, RefusedStartTest,
    ::testing::Values(
        RefusedStart{"NumberZero", [](StartOperation& r) { r.key.number = OperationNumber(0); },
                     absl::StatusCode::kInvalidArgument, "numbered from 1"},
        RefusedStart{"SkipsAhead", [](StartOperation& r) { r.key.number = OperationNumber(3); },
                     absl::StatusCode::kFailedPrecondition, "its next one is 1"},
        RefusedStart{"UnknownBuffer", [](StartOperation& r) { r.key.buffer = BufferId(9); },
                     absl::StatusCode::kNotFound, "buffer 9 is not registered"},
        RefusedStart{"NoTime", [](StartOperation& r) { r.timeout = absl::ZeroDuration(); },
                     absl::StatusCode::kInvalidArgument, "gives the operation no time"},
        RefusedStart{"UnknownKind",
                     [](StartOperation& r) { r.kind = static_cast<OperationKind>(9); },
                     absl::StatusCode::kInvalidArgument, "operation kind 9"},
        RefusedStart{"NoLabel", [](StartOperation& r) { r.label = VersionLabel(); },
                     absl::StatusCode::kInvalidArgument, "needs a label"},
        RefusedStart{"LargeAttributes",
                     [](StartOperation& r) {
                       r.attributes["blob"] = std::string(kMaxAttributesBytes + 1, 'x');
                     },
                     absl::StatusCode::kInvalidArgument, ""}),
    [](const auto& param) { return param.param.name; });

TEST(TransactionsTest, ARepeatHasTheFirstOnesResult) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  const StartOperation request = trainer.PublishRequest("step-1");
  trainer.Start(request);
  const OperationFinished first = trainer.Finished();
  trainer.Say(request);
  const OperationFinished again = trainer.Finished();
  EXPECT_EQ(again.key, first.key);
  EXPECT_EQ(again.version, first.version);
  EXPECT_EQ(hub.registry().counters().versions_published, 1u);
}

TEST(TransactionsTest, ARepeatAsAnotherKindIsRefusedNamingBoth) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  StartOperation request = trainer.PublishRequest("step-1");
  trainer.Start(request);
  trainer.Finished();
  request.kind = OperationKind::kUnpublish;
  trainer.Say(request);
  EXPECT_THAT(trainer.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ended as publish"), HasSubstr("calls it unpublish"))));
}

TEST(TransactionsTest, AResultThatIsForgottenIsAnError) {
  RegistryHarness hub;
  std::vector<TestRank> rollout;
  for (uint32_t rank = 0; rank < 2; ++rank) rollout.emplace_back(hub, "rollout", rank, 2);
  JoinAndRegister(rollout);
  for (size_t i = 0; i <= registry::kMaxResultsKept; ++i) {
    rollout[0].Update();
    EXPECT_EQ(rollout[0].Finished().not_available, NotAvailableReason::kNotPublished);
  }
  rollout[1].Update();
  EXPECT_THAT(rollout[1].Finished().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("is forgotten")));
  rollout[1].Update();
  EXPECT_EQ(rollout[1].Finished().not_available, NotAvailableReason::kNotPublished)
      << "the next one is remembered";
}

TEST(TransactionsTest, OperationsWaitInOrderForTheOneBeforeThem) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  trainer[0].Unpublish();
  trainer[0].Done();
  EXPECT_TRUE(trainer[0].HearsNone<OperationFinished>());
  trainer[1].Publish("step-1");
  EXPECT_OK(trainer[1].Finished().status);
  trainer[1].Unpublish();
  trainer[1].Done();
  const auto finished = hub.TakeAll<OperationFinished>(trainer[0].connection);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[0].kind, OperationKind::kPublish);
  EXPECT_EQ(finished[1].kind, OperationKind::kUnpublish);
  EXPECT_OK(finished[1].status);
}

TEST(TransactionsTest, OnlySoManyOperationsWait) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  for (uint64_t i = 1; i < registry::kMaxQueuedOperations; ++i) trainer[0].Unpublish();
  EXPECT_TRUE(trainer[0].HearsNone<OperationFinished>());
  trainer[0].Unpublish();
  EXPECT_THAT(trainer[0].Finished().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                                     HasSubstr("at most 8 may be unfinished")));
}

TEST(TransactionsTest, TheShortestDeadlineOfTheRanksCounts) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 3);
  StartOperation slow = trainer[0].PublishRequest("step-1");
  slow.timeout = absl::InfiniteDuration();
  trainer[0].Start(slow);
  StartOperation fast = trainer[1].PublishRequest("step-1");
  fast.timeout = absl::Seconds(1);
  trainer[1].Start(fast);
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(trainer[0].Finished().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("trainer/2")));
}

TEST(TransactionsTest, AnOperationThatWaitsInVainNamesTheOneItWaitsFor) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  StartOperation second = trainer[0].UnpublishRequest();
  second.timeout = absl::Seconds(1);
  trainer[0].Start(second);
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(trainer[0].Finished().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waited for operation 1")));
  trainer[1].Publish("step-1");
  EXPECT_OK(trainer[0].Finished().status);
}

// A group whose caller waits for all its ranks, when one rank has lost a call: that rank is one
// operation behind, hears the result of the one before, and the others wait for it in vain.
class LaggingRankTest : public ::testing::Test {
 protected:
  LaggingRankTest() { JoinAndRegister(group_); }
  // All but the last rank start the next operation, and wait in vain.
  void ExpireWithoutTheLast() { ExpireWithoutTheLast(group_[0].UpdateRequest()); }
  void ExpireWithoutTheLast(StartOperation request) {
    request.timeout = absl::Seconds(2);
    group_[0].Start(request);
    hub_.Advance(absl::Seconds(2));
    EXPECT_THAT(group_[0].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                      HasSubstr("rollout-1/1 had not started it")));
  }

  RegistryHarness hub_;
  TestRank trainer_ = Trainer(hub_, "step-1");
  std::vector<TestRank> group_ = {TestRank(hub_, "rollout-1", 0, 2),
                                  TestRank(hub_, "rollout-1", 1, 2)};
};

TEST_F(LaggingRankTest, ALateRankHearsTheResult) {
  ExpireWithoutTheLast();
  EXPECT_TRUE(group_[0].HearsNone<GroupChanged>());
  group_[1].Update();
  EXPECT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LaggingRankTest, AGroupThatMissesTheSameRankTwiceCountsAnew) {
  ExpireWithoutTheLast();
  group_[1].Update();
  ExpireWithoutTheLast();
  for (TestRank& rank : group_) {
    const GroupChanged changed = rank.Heard<GroupChanged>();
    EXPECT_EQ(changed.rank, group_[1].name);
    EXPECT_GT(changed.group_generation, rank.generation);
    rank.generation = changed.group_generation;
    rank.number = OperationNumber();
  }
  UpdateWhole(group_);
}

// It was stopped, say, and calls in a loop of its own: the saved results bring it up to the others.
TEST_F(LaggingRankTest, ARankThatCallsNothingHearsAllResults) {
  ExpireWithoutTheLast();
  ExpireWithoutTheLast();
  EXPECT_TRUE(group_[0].HearsNone<GroupChanged>());
  for (int missed = 0; missed < 2; ++missed) {
    group_[1].Update();
    EXPECT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  UpdateWhole(group_);
}

TEST_F(LaggingRankTest, ARankThatStaysSeveralOperationsBehindLagsToo) {
  ExpireWithoutTheLast();
  ExpireWithoutTheLast();
  group_[1].Update();  // hears how the first ended, when the second has ended too
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpireWithoutTheLast();
  EXPECT_EQ(group_[0].Heard<GroupChanged>().rank, group_[1].name);
}

// The others may go on at once from an operation that needs no rank's help.
TEST_F(LaggingRankTest, ARankThatMissesEverySecondOperationLagsWhereTheOthersEndAtOnce) {
  ExpireWithoutTheLast();
  group_[0].Update(*VersionLabel::Parse("step-2"));
  EXPECT_EQ(group_[0].Finished().not_available, NotAvailableReason::kNotPublished);
  group_[1].Update();
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpireWithoutTheLast();
  EXPECT_EQ(group_[0].Heard<GroupChanged>().rank, group_[1].name);
}

TEST_F(LaggingRankTest, ARankThatComesInTimeInBetweenDoesNotLag) {
  ExpireWithoutTheLast();
  group_[1].Update();
  UpdateWhole(group_);
  ExpireWithoutTheLast(group_[0].UnpublishRequest());
  EXPECT_TRUE(group_[0].HearsNone<GroupChanged>());
}

// A call that the group's result cannot answer is another one than the others', so the rank is
// behind.
class OtherCallTest : public LaggingRankTest {
 protected:
  OtherCallTest() {
    UpdateWhole(group_);
    group_[0].Update();
    EXPECT_EQ(group_[0].Finished().outcome, UpdateOutcome::kAlreadyThere);
  }
  void CallOnBehindTheOthers() {
    for (TestRank& rank : group_) {
      rank.Update();
      EXPECT_EQ(rank.Finished().outcome, UpdateOutcome::kAlreadyThere);
    }
  }
};

TEST_F(OtherCallTest, ARankThatHasCalledForAnotherVersionLagsOnceAnOperationExpiresWithoutIt) {
  group_[1].Update(*VersionLabel::Parse("step-2"));
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kAborted));
  CallOnBehindTheOthers();
  ExpireWithoutTheLast(group_[0].UnpublishRequest());
  EXPECT_EQ(group_[0].Heard<GroupChanged>().rank, group_[1].name);
}

TEST_F(OtherCallTest, ARankThatHasCalledItByAnotherKindLagsOnceAnOperationExpiresWithoutIt) {
  group_[1].Publish("step-2");
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kInvalidArgument));
  CallOnBehindTheOthers();
  ExpireWithoutTheLast(group_[0].UnpublishRequest());
  EXPECT_EQ(group_[0].Heard<GroupChanged>().rank, group_[1].name);
}

TEST_F(OtherCallTest, ARankThatCallsNothingSinceDoesNotLag) {
  group_[1].Update(*VersionLabel::Parse("step-2"));
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kAborted));
  ExpireWithoutTheLast(group_[0].UnpublishRequest());
  EXPECT_TRUE(group_[0].HearsNone<GroupChanged>());
}

// A start that was on its way when the group counted anew is refused, and its caller told to call
// again. Who calls for all ranks waits for those whose calls were not refused.
class LostCallTest : public LaggingRankTest {
 protected:
  void BumpGroupGeneration() {
    StartOperation late = group_[1].UpdateRequest();
    group_[1].Say(UnregisterBuffer{group_[1].buffer});
    group_[1].buffer = BufferId(2);
    ASSERT_OK(group_[1].Register());
    HearOfIt();
    late.key.buffer = group_[1].buffer;
    late.key.number = OperationNumber(1);
    late.group_generation = GroupGeneration(group_[1].generation.value - 1);
    late_ = late;
  }
  // How often, by the first rank.
  size_t HearOfIt() {
    size_t heard = 0;
    for (TestRank& rank : group_) {
      const auto changes = hub_.TakeAll<GroupChanged>(rank.connection);
      if (changes.empty()) continue;
      rank.generation = changes.back().group_generation;
      rank.number = OperationNumber();
      if (&rank == &group_[0]) heard = changes.size();
    }
    return heard;
  }
  void LoseTheCall() {
    group_[1].Start(late_);
    EXPECT_TRUE(group_[1].HearsNone<OperationFinished>());
    group_[1].number = OperationNumber();
  }

  StartOperation late_;
};

TEST_F(LostCallTest, WhoeverWaitsForTheCallOfARankThatLostItIsToldSoon) {
  BumpGroupGeneration();
  LoseTheCall();
  group_[0].Update();
  hub_.Advance(kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 1u);
  UpdateWhole(group_);
}

TEST_F(LostCallTest, ItIsAllTheSameWhoComesFirst) {
  BumpGroupGeneration();
  group_[0].Update();
  LoseTheCall();
  hub_.Advance(kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 1u);
  UpdateWhole(group_);
}

TEST_F(LostCallTest, ARankThatCallsAgainByItselfIsWaitedFor) {
  BumpGroupGeneration();
  LoseTheCall();
  group_[0].Update();
  hub_.Advance(kCallsAgainWithin / 2);
  group_[1].Update();
  hub_.Advance(kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 0u);
  for (TestRank& rank : group_) rank.FillWhole();
  for (TestRank& rank : group_) EXPECT_OK(rank.Finished().status);
}

TEST_F(LostCallTest, ItIsAwaitedInTheNextOperationToo) {
  BumpGroupGeneration();
  LoseTheCall();
  StartOperation first = group_[0].UpdateRequest();
  first.timeout = kCallsAgainWithin / 2;
  group_[0].Start(first);
  group_[0].Update();
  hub_.Advance(first.timeout);
  ASSERT_THAT(group_[0].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  hub_.Advance(kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 1u);
}

TEST_F(LostCallTest, ARankThatHearsASavedResultHasCalledAgain) {
  BumpGroupGeneration();
  ExpireWithoutTheLast();
  LoseTheCall();
  group_[1].Update();
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  group_[0].Update();
  hub_.Advance(2 * kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 0u);
}

TEST_F(LostCallTest, WhoHeardASavedResultMeanwhileIsWaitedForAsLongAsTheCallLasts) {
  BumpGroupGeneration();
  ExpireWithoutTheLast();
  LoseTheCall();
  group_[0].Update();
  group_[1].Update();
  ASSERT_THAT(group_[1].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  hub_.Advance(2 * kCallsAgainWithin);
  EXPECT_TRUE(group_[0].HearsNone<OperationFinished>());
  EXPECT_EQ(HearOfIt(), 0u);
}

// One caller waits for all ranks: from the lost call on the rank hears of each operation what the
// others heard before, and nobody notices as long as operations end at once.
TEST_F(LostCallTest, ARankThatHasHeardSavedResultsSinceLagsOnceAnOperationExpiresWithoutIt) {
  BumpGroupGeneration();
  group_[0].Update(*VersionLabel::Parse("step-2"));
  LoseTheCall();
  ASSERT_EQ(group_[0].Finished().not_available, NotAvailableReason::kNotPublished);
  for (int behind = 0; behind < 2; ++behind) {
    group_[0].Update(*VersionLabel::Parse("step-2"));
    group_[1].Update(*VersionLabel::Parse("step-2"));
    for (TestRank& rank : group_) {
      ASSERT_EQ(rank.Finished().not_available, NotAvailableReason::kNotPublished);
    }
  }
  ExpireWithoutTheLast();
  EXPECT_EQ(HearOfIt(), 1u);
  UpdateWhole(group_);
}

TEST_F(LostCallTest, ARankThatHasCaughtUpSinceDoesNotLag) {
  BumpGroupGeneration();
  group_[0].Update(*VersionLabel::Parse("step-2"));
  LoseTheCall();
  group_[1].Update(*VersionLabel::Parse("step-2"));
  UpdateWhole(group_);
  ExpireWithoutTheLast(group_[0].UnpublishRequest());
  EXPECT_EQ(HearOfIt(), 0u);
}

TEST_F(LostCallTest, WhoLostNoneHasItsTime) {
  BumpGroupGeneration();
  group_[0].Update();
  hub_.Advance(2 * kCallsAgainWithin);
  EXPECT_EQ(HearOfIt(), 0u);
}

// It drains, whatever the others do meanwhile.
TEST(UnpublishingTest, ARankIsNoSourceAfterItsUnpublishFailedThoughOthersFillAlready) {
  const Location host{.host = "host-1"};
  RegistryHarness hub;
  std::vector<TestRank> trainer = MakeGroup(hub, "trainer", 2);
  std::vector<TestRank> pair = MakeGroup(hub, "pair", 2);
  std::vector<TestRank> readers = MakeGroup(hub, "readers", 2);
  for (TestRank* rank : {&pair[0], &readers[0]}) rank->location = host;
  for (auto* group : {&trainer, &pair, &readers}) JoinAndRegister(*group);
  PublishWhole(trainer, "step-1");
  UpdateWhole(pair);
  pair[1].Unpublish();
  pair[1].Say(BufferReset{pair[1].buffer});
  pair[1].Update();
  pair[0].Unpublish();
  ASSERT_THAT(pair[0].Finished().status, StatusIs(absl::StatusCode::kAborted));
  for (TestRank& reader : readers) reader.Update();
  EXPECT_EQ(readers[0].Fill().buffer, trainer[0].address()) << "pair[0] is nearer";
}

TEST(UnpublishingTest, TheReplicaIsNoSourceFromTheFirstRequestOn) {
  RegistryHarness hub;
  std::vector<TestRank> trainer;
  for (uint32_t rank = 0; rank < 2; ++rank) trainer.emplace_back(hub, "trainer", rank, 2);
  JoinAndRegister(trainer);
  PublishWhole(trainer, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  trainer[1].Unpublish();
  rollout.Ready();
  EXPECT_TRUE(rollout.HearsNone<AssignSources>());
  EXPECT_THAT(rollout.Finished().status, StatusIs(absl::StatusCode::kUnavailable));
}

// It drains all the same, once it has heard.
TEST(UnpublishingTest, ARankWhoseUnpublishIsRefusedIsNoSource) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  StartOperation ahead = trainer.UnpublishRequest();
  ahead.key.number = OperationNumber(ahead.key.number.value + 5);
  trainer.Say(ahead);
  ASSERT_THAT(trainer.Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Finished().not_available, NotAvailableReason::kGone);
}

TEST(UnpublishingTest, ItEndsWhenAllRanksAreDrained) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "step-1");
  for (TestRank& rank : trainer) rank.Unpublish();
  trainer[0].Done();
  EXPECT_TRUE(trainer[0].HearsNone<OperationFinished>());
  trainer[1].Done();
  for (TestRank& rank : trainer) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_EQ(finished.version, version);
  }
}

TEST(UnpublishingTest, WhatIsNotPublishedCannotBe) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  trainer.Unpublish();
  EXPECT_THAT(trainer.Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not published")));
}

TEST(UnpublishingTest, AMissingRankIsNamedAtTheDeadline) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  StartOperation request = trainer[0].UnpublishRequest();
  request.timeout = absl::Seconds(2);
  trainer[0].Start(request);
  trainer[0].Done();
  hub.Advance(absl::Seconds(2));
  EXPECT_THAT(trainer[0].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                     HasSubstr("trainer/1 had not started it")));
}

TEST(UnpublishingTest, ADrainingSourceStillServesWhoReadsFromItAndIsGivenToNobodyElse) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank first = Rollout(hub, "first");
  first.Update();
  first.Fill();
  trainer.Unpublish();
  EXPECT_TRUE(first.HearsNone<AssignSources>()) << "its reader goes on";
  TestRank second = Rollout(hub, "second");
  second.Update();
  EXPECT_EQ(second.Fill().buffer, first.address()) << "fed by the one that drains";
  first.Done();
  EXPECT_OK(first.Finished().status);
  trainer.Done();
  EXPECT_OK(trainer.Finished().status);
  second.Done();
  EXPECT_OK(second.Finished().status);
}

TEST(UnpublishingTest, DoneWithAPublishIsRefused) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  trainer[0].Done();
  EXPECT_EQ(hub.registry().counters().messages_refused, 1u);
}

TEST(UnpublishingTest, ARankThatDrainedWhileItsStreamWasBrokenMayStillUnpublish) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Disconnect();
  AnnouncedBuffer nothing = trainer.Announced();
  nothing.last_finished = FinishedOperation{.number = OperationNumber(1)};
  ASSERT_TRUE(trainer.Resume({nothing}));
  trainer.Unpublish();
  trainer.Done();
  EXPECT_OK(trainer.Finished().status);
}

TEST(UnpublishingTest, APublishWhoseResultWasMissedStaysPublished) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  trainer[0].Publish("step-1");
  trainer[0].Disconnect();
  trainer[1].Publish("step-1");
  ASSERT_OK(trainer[1].Finished().status);
  ASSERT_TRUE(trainer[0].Resume({trainer[0].Announced()}));
  StartOperation again = trainer[0].PublishRequest("step-1");
  again.key.number = OperationNumber(1);
  trainer[0].Start(again);
  EXPECT_OK(trainer[0].Finished().status);
  TestRank rollout(hub, "rollout", 0, 1, LayoutNamed("w0"));
  rollout.JoinAndRegister();
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer[0].address());
}

}  // namespace
}  // namespace th
