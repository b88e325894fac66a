// Ranks that free their buffers and register them again, one of them or all, without waiting for
// each other.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/answer.h"
#include "th/protocol/freed_names.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

void Unregister(TestRank& rank) { rank.Say(UnregisterBuffer{rank.buffer}); }

// As a session does that has freed its buffer before.
void RegisterAnew(TestRank& rank) {
  rank.buffer = BufferId(rank.buffer.value + 1);
  rank.number = OperationNumber();
  EXPECT_OK(rank.Register());
}

void RegisterAgain(TestRank& rank) {
  Unregister(rank);
  RegisterAnew(rank);
}

// The rank has heard that its group counts anew: until when it did so last.
bool HearsOfNewGeneration(TestRank& rank, RegistryHarness& hub) {
  const auto changes = hub.TakeAll<GroupChanged>(rank.connection);
  for (const GroupChanged& change : changes) rank.generation = change.group_generation;
  rank.number = OperationNumber();
  return !changes.empty();
}

class RegisteredAgainTest : public ::testing::Test {
 protected:
  RegisteredAgainTest() : trainer_(JoinedGroup(hub_, "trainer", 2)) {}

  // Does what its session does: its own bytes are what the next publish is about.
  void Forget(TestRank& rank) {
    rank.Say(BufferReset{rank.buffer});
    hub_.TakeAll<OperationFinished>(rank.connection);
  }
  void HearAll() {
    for (TestRank& rank : trainer_) {
      HearsOfNewGeneration(rank, hub_);
      hub_.TakeAll<OperationFinished>(rank.connection);
    }
  }

  RegistryHarness hub_;
  std::vector<TestRank> trainer_;
};

TEST_F(RegisteredAgainTest, AllRanksOneAfterTheOtherPublishWhatTheySayAndNothingElse) {
  const VersionInfo before = PublishWhole(trainer_, "step-1");
  RegisterAgain(trainer_[0]);
  EXPECT_TRUE(HearsOfNewGeneration(trainer_[0], hub_));
  trainer_[0].Publish("step-2");
  EXPECT_TRUE(trainer_[0].HearsNone<OperationFinished>()) << "what the buffer before it was told";
  RegisterAgain(trainer_[1]);
  EXPECT_THAT(trainer_[0].Finished().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("trainer/1"), HasSubstr("unregistered buffer weights"))));
  HearAll();
  const VersionInfo after = PublishWhole(trainer_, "step-2");
  EXPECT_EQ(after.label.text(), "step-2");
  EXPECT_NE(after.sequence, before.sequence);
}

TEST_F(RegisteredAgainTest, OneRankAloneAndItsGroupPublishesAgain) {
  PublishWhole(trainer_, "step-1");
  RegisterAgain(trainer_[0]);
  HearAll();
  Forget(trainer_[1]);
  EXPECT_EQ(PublishWhole(trainer_, "step-2").label.text(), "step-2");
}

TEST_F(RegisteredAgainTest, WhatOthersWaitForEndsNamingTheRankAndWhatToDo) {
  PublishWhole(trainer_, "step-1");
  std::vector<TestRank> other = JoinedGroup(hub_, "rollout", 2);
  UpdateWhole(other);
  TestRank& waits = other[1];
  Unregister(other[0]);
  waits.Update();
  RegisterAnew(other[0]);
  EXPECT_THAT(waits.Finished().status,
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("rank rollout/0 has registered buffer weights again"),
                             HasSubstr("ask again"))));
  EXPECT_EQ(waits.Heard<GroupChanged>().rank, other[0].name);
}

TEST_F(RegisteredAgainTest, ReadersThatRegisterAgainMoveAgainAndHearNothingOld) {
  PublishWhole(trainer_, "step-1");
  std::vector<TestRank> rollout = JoinedGroup(hub_, "rollout", 2);
  UpdateWhole(rollout);
  for (TestRank& rank : rollout) RegisterAgain(rank);
  for (TestRank& rank : rollout) EXPECT_TRUE(HearsOfNewGeneration(rank, hub_));
  for (TestRank& rank : rollout) rank.Update();
  for (TestRank& rank : rollout) {
    EXPECT_TRUE(rank.HearsNone<OperationFinished>()) << "it holds nothing yet";
    rank.FillWhole();
  }
  for (TestRank& rank : rollout) EXPECT_EQ(rank.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(RegisteredAgainTest, NumbersNeverMeetThoseOfBuffersThatAreAllGone) {
  PublishWhole(trainer_, "step-1");
  const GroupGeneration before = trainer_[0].generation;
  for (TestRank& rank : trainer_) Unregister(rank);
  for (TestRank& rank : trainer_) RegisterAnew(rank);
  for (TestRank& rank : trainer_) {
    EXPECT_TRUE(HearsOfNewGeneration(rank, hub_));
    EXPECT_GT(rank.generation, before);
  }
  EXPECT_EQ(trainer_[0].generation.value, before.value + 1) << "the others came into it";
  PublishWhole(trainer_, "step-2");
}

TEST_F(RegisteredAgainTest, WhereNoNumberWasUsedNobodyIsDisturbed) {
  for (TestRank& rank : trainer_) RegisterAgain(rank);
  for (TestRank& rank : trainer_) EXPECT_TRUE(rank.HearsNone<GroupChanged>());
  PublishWhole(trainer_, "step-1");
}

TEST_F(RegisteredAgainTest, AnotherNameDisturbsNobody) {
  PublishWhole(trainer_, "step-1");
  for (TestRank& rank : trainer_) {
    Unregister(rank);
    rank.buffer_name = "adapter";
    RegisterAnew(rank);
  }
  for (TestRank& rank : trainer_) EXPECT_TRUE(rank.HearsNone<GroupChanged>());
  PublishWhole(trainer_, "step-2");
}

TEST_F(RegisteredAgainTest, ABufferThatIsRegisteredOnceMoreIsTheSameWhileItIsThere) {
  PublishWhole(trainer_, "step-1");
  trainer_[0].Say(RegisterBuffer{trainer_[0].Announced()});
  EXPECT_TRUE(trainer_[0].HearsNone<GroupChanged>());
  RegisterAgain(trainer_[0]);
  HearAll();
  AnnouncedBuffer again = trainer_[0].Announced();
  again.counts_after = GroupGeneration(trainer_[0].generation.value - 1);
  trainer_[0].Say(RegisterBuffer{again});
  EXPECT_TRUE(trainer_[0].HearsNone<GroupChanged>());
}

TEST_F(RegisteredAgainTest, ManyTimesAndAlwaysANewGeneration) {
  for (int round = 1; round <= 20; ++round) {
    const GroupGeneration before = trainer_[1].generation;
    PublishWhole(trainer_, absl::StrCat("step-", round));
    if (round % 3 != 0) RegisterAgain(trainer_[0]);
    if (round % 3 != 1) RegisterAgain(trainer_[1]);
    HearAll();
    EXPECT_GT(trainer_[1].generation, before);
    if (round % 3 == 0) Forget(trainer_[0]);
    if (round % 3 == 1) Forget(trainer_[1]);
  }
}

// ---- without a stream, or without the server

TEST_F(RegisteredAgainTest, WhileItsStreamIsBroken) {
  PublishWhole(trainer_, "step-1");
  trainer_[0].Disconnect();
  trainer_[0].buffer = BufferId(2);
  AnnouncedBuffer again = trainer_[0].Announced();
  again.counts_after = trainer_[0].generation;
  ASSERT_TRUE(trainer_[0].Resume({again}));
  EXPECT_OK(trainer_[0].Heard<BufferRegistered>().status) << "the name is free";
  HearAll();
  Forget(trainer_[1]);
  EXPECT_EQ(PublishWhole(trainer_, "step-2").label.text(), "step-2");
}

class AcrossRestartTest : public RegisteredAgainTest {
 protected:
  AcrossRestartTest() { version_ = PublishWhole(trainer_, "step-1"); }

  AnnouncedBuffer Again(TestRank& rank) {
    rank.buffer = BufferId(rank.buffer.value + 1);
    rank.number = OperationNumber();
    AnnouncedBuffer again = rank.Announced();
    again.counts_after = rank.generation;
    return again;
  }
  AnnouncedBuffer AsBefore(const TestRank& rank) {
    AnnouncedBuffer same =
        rank.Holding(version_, true, absl::StrCat("step-1", rank.layout.tensors()[0].name));
    same.last_finished = FinishedOperation{.number = OperationNumber(1), .version = version_};
    return same;
  }
  void PassWindow() {
    for (int i = 0; i < 6; ++i) {
      hub_.Advance(absl::Seconds(1));
      for (TestRank& rank : trainer_) rank.Say(Heartbeat{});
    }
  }

  VersionInfo version_;
};

TEST_F(AcrossRestartTest, WhatOthersAnnounceIsNotToldToABufferThatIsNew) {
  hub_.Restart();
  ASSERT_TRUE(trainer_[1].Resume({AsBefore(trainer_[1])}));
  ASSERT_TRUE(trainer_[0].Resume({Again(trainer_[0])}));
  EXPECT_TRUE(HearsOfNewGeneration(trainer_[0], hub_));
  EXPECT_TRUE(HearsOfNewGeneration(trainer_[1], hub_));
  trainer_[0].Publish("step-2");
  PassWindow();
  EXPECT_TRUE(trainer_[0].HearsNone<OperationFinished>());
  Forget(trainer_[1]);
  HearAll();
  for (TestRank& rank : trainer_) rank.Publish("step-2");
  for (TestRank& rank : trainer_) EXPECT_EQ(rank.Finished().version.label.text(), "step-2");
}

TEST_F(AcrossRestartTest, WhoComesBackFirstMakesNoDifference) {
  hub_.Restart();
  ASSERT_TRUE(trainer_[0].Resume({Again(trainer_[0])}));
  ASSERT_TRUE(trainer_[1].Resume({AsBefore(trainer_[1])}));
  HearAll();
  EXPECT_EQ(trainer_[0].generation, trainer_[1].generation);
  trainer_[0].Publish("step-2");
  PassWindow();
  EXPECT_TRUE(trainer_[0].HearsNone<OperationFinished>());
}

TEST_F(AcrossRestartTest, AGenerationThatTheServerKnowsNothingOfLocksNobodyOut) {
  AnnouncedBuffer again = Again(trainer_[0]);
  again.counts_after = GroupGeneration(trainer_[0].generation.value + 1000);
  trainer_[0].Say(UnregisterBuffer{BufferId(1)});
  trainer_[0].Say(RegisterBuffer{again});
  EXPECT_OK(trainer_[0].Heard<BufferRegistered>().status);
  HearAll();
  EXPECT_GT(trainer_[0].generation, again.counts_after);
  Forget(trainer_[1]);
  PublishWhole(trainer_, "step-2");
  RegisterAgain(trainer_[0]);
  HearAll();
  Forget(trainer_[1]);
  PublishWhole(trainer_, "step-3");
}

// Believed, it would make the group's own claims impossible: its generations would be of an epoch
// after those that its members have lived in.
TEST_F(AcrossRestartTest, AGenerationBeyondAllIsRefused) {
  AnnouncedBuffer again = Again(trainer_[0]);
  const uint64_t epoch = hub_.epoch().value;
  for (const uint64_t generation :
       {~uint64_t{0}, (epoch + 1) << 32, (epoch << 32) + ~uint32_t{0}}) {
    again.counts_after = GroupGeneration(generation);
    trainer_[0].Say(RegisterBuffer{again});
    EXPECT_THAT(trainer_[0].Heard<BufferRegistered>().status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("beyond all")))
        << generation;
  }
  hub_.Restart();
  EXPECT_FALSE(trainer_[1].Resume({}, GroupGeneration(~uint64_t{0})));
  EXPECT_THAT(trainer_[1].refused.status, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RegisteredAgainTest, AlsoInTheEpochsAfterTheHighestThatAClaimMayName) {
  hub_.RestartEmpty(kLastEpoch);
  trainer_ = JoinedGroup(hub_, "trainer", 2);
  PublishWhole(trainer_, "step-1");
  AnnouncedBuffer again = trainer_[0].Announced();
  again.counts_after = trainer_[0].generation;
  trainer_[0].Say(UnregisterBuffer{trainer_[0].buffer});
  trainer_[0].Say(RegisterBuffer{again});
  EXPECT_OK(trainer_[0].Heard<BufferRegistered>().status);
}

// ---- an answer is compared with what was asked

TEST_F(RegisteredAgainTest, AResultOfAnotherLabelIsHandedToNobody) {
  const VersionInfo version = PublishWhole(trainer_, "step-1");
  StartOperation late = trainer_[0].PublishRequest("step-2");
  late.key.number = OperationNumber(1);
  trainer_[0].Say(late);
  const OperationFinished finished = trainer_[0].Finished();
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kAborted,
                                        AllOf(HasSubstr("step-1"), HasSubstr("'step-2'"))));
  late.label = VersionLabel();
  late.derived_from = VersionSequence(version.sequence.value + 1);
  trainer_[0].Say(late);
  EXPECT_THAT(trainer_[0].Finished().status, StatusIs(absl::StatusCode::kAborted));
  late.derived_from = version.sequence;
  trainer_[0].Say(late);
  EXPECT_OK(trainer_[0].Finished().status);
}

TEST_F(RegisteredAgainTest, AResultOfAnotherSelectorIsHandedToNobody) {
  PublishWhole(trainer_, "step-1");
  std::vector<TestRank> rollout = JoinedGroup(hub_, "rollout", 2);
  UpdateWhole(rollout);
  rollout[0].Update();
  EXPECT_EQ(rollout[0].Finished().outcome, UpdateOutcome::kAlreadyThere);
  rollout[1].Update(VersionSelector(*VersionLabel::Parse("step-7")));
  const absl::Status status = rollout[1].Finished().status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("step-7 was asked for")));
  EXPECT_TRUE(SaysNothingDoneForRank(status));
}

}  // namespace
}  // namespace th
