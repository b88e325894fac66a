// Copies that a group stages beside its buffers: what they count as, and when they are moved in.
#include <algorithm>
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

// The copy of a rank that has joined: another buffer on its stream.
TestRank CopyOf(const TestRank& rank) {
  TestRank copy = rank;
  copy.buffer = BufferId(2);
  copy.buffer_name = "weights.staged";
  copy.number = OperationNumber();
  AnnouncedBuffer announced = copy.Announced();
  announced.role = BufferRole::kStaged;
  announced.staged_for = rank.buffer_name;
  copy.Say(RegisterBuffer{announced});
  EXPECT_OK(copy.Heard<BufferRegistered>().status);
  return copy;
}

class StagingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    JoinAndRegister(trainer_);
    JoinAndRegister(trainer_two_);
    JoinAndRegister(rollout_);
    version_ = PublishWhole(trainer_, "step-1");
  }
  void StageWhole() {
    for (TestRank& rank : rollout_) copies_.push_back(CopyOf(rank));
    for (TestRank& copy : copies_) copy.Update();
    for (TestRank& copy : copies_) copy.FillWhole();
    for (TestRank& copy : copies_) ASSERT_EQ(copy.Finished().outcome, UpdateOutcome::kMoved);
    for (TestRank& copy : copies_) copy.Heard<OperationResolved>();
  }

  RegistryHarness hub_;
  std::vector<TestRank> trainer_ = MakeGroup(hub_, "trainer", 2);
  std::vector<TestRank> trainer_two_ = MakeGroup(hub_, "trainer-2", 2);
  std::vector<TestRank> rollout_ = MakeGroup(hub_, "rollout", 2);
  std::vector<TestRank> copies_;
  VersionInfo version_;
};

TEST_F(StagingTest, WhatIsStagedBeginsWhenAllRanksHaveCome) {
  StageWhole();
  rollout_[0].Update(version_.sequence);
  EXPECT_TRUE(rollout_[0].HearsNone<OperationResolved>()) << "its buffer stays as it is";
  rollout_[1].Update(version_.sequence);
  for (TestRank& rank : rollout_) EXPECT_EQ(rank.Heard<OperationResolved>().version, version_);
}

TEST_F(StagingTest, WhatARankHoldsIsListedThoughAnotherHasLostItsOwn) {
  StageWhole();
  rollout_[0].Disconnect();
  TestRank fresh(hub_, "rollout", 0, 2, LayoutNamed("w0"));
  fresh.JoinAndRegister();
  const std::vector<CatalogReplica> idle = hub_.List().models.at(0).idle;
  const auto staged = std::find_if(idle.begin(), idle.end(), [](const CatalogReplica& replica) {
    return replica.buffer_name == "weights.staged";
  });
  ASSERT_NE(staged, idle.end());
  EXPECT_EQ(staged->role, BufferRole::kStaged);
  ASSERT_EQ(staged->ranks.size(), 1u);
  EXPECT_EQ(staged->ranks[0].name, rollout_[1].name);
  copies_[1].Say(BufferReset{copies_[1].buffer});  // and is not when it was let go of
  const Catalog after = hub_.List();
  for (const CatalogReplica& replica : after.models.at(0).idle) {
    EXPECT_NE(replica.buffer_name, "weights.staged");
  }
}

TEST_F(StagingTest, ARankThatDoesNotComeIsNamedAndNothingWasTouched) {
  StageWhole();
  StartOperation request = rollout_[0].UpdateRequest(version_.sequence);
  request.timeout = absl::Milliseconds(100);
  rollout_[0].Start(request);
  hub_.Advance(absl::Milliseconds(150));
  EXPECT_TRUE(rollout_[0].HearsNone<OperationResolved>());
  EXPECT_THAT(
      rollout_[0].Finished().status,
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank rollout/1 had not started it"), Not(HasSubstr("rollout/0")))));
}

TEST_F(StagingTest, TheReadersOwnCopyIsItsSource) {
  StageWhole();
  for (TestRank& rank : rollout_) rank.Update(version_.sequence);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(rollout_[rank].Fill().buffer, copies_[rank].address()) << rank;
  }
}

TEST_F(StagingTest, WhatTheBuffersHoldIsNotStaged) {
  UpdateWhole(rollout_);
  TestRank copy = CopyOf(rollout_[0]);
  copy.Update();
  const OperationFinished finished = copy.Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.outcome, UpdateOutcome::kAlreadyThere);
  EXPECT_EQ(finished.version, version_);
}

TEST_F(StagingTest, ACopyIsListedAsTemporary) {
  StageWhole();
  const Catalog catalog = hub_.List();
  int temporary = 0;
  for (const CatalogReplica& replica : catalog.models[0].versions[0].replicas) {
    const bool own = replica.buffer_name == "weights";
    EXPECT_EQ(replica.role, own ? BufferRole::kPrimary : BufferRole::kStaged)
        << replica.buffer_name;
    temporary += IsTemporary(replica.role);
  }
  EXPECT_EQ(temporary, 1);
}

// The rank has its memory from before a restart.
TEST_F(StagingTest, ACopyWhoseStageWaitsIsListed) {
  hub_.Restart();
  ASSERT_TRUE(rollout_[0].Resume({rollout_[0].Announced()}));
  TestRank copy = CopyOf(rollout_[0]);
  const auto is_listed = [&] {
    const std::vector<CatalogReplica> idle = hub_.List().models.at(0).idle;
    return std::any_of(idle.begin(), idle.end(), [](const CatalogReplica& replica) {
      return replica.buffer_name == "weights.staged";
    });
  };
  EXPECT_FALSE(is_listed()) << "it has no memory";
  copy.Update();
  ASSERT_TRUE(copy.HearsNone<OperationResolved>());
  EXPECT_TRUE(is_listed());
}

// A buffer keeps what is rolled back until it moves. A copy would announce it to a server that has
// lost the roll-back.
TEST_F(StagingTest, RanksHearOfARollBackOfWhatTheyHaveStaged) {
  UpdateWhole(rollout_);
  const VersionInfo later = PublishWhole(trainer_two_, "step-2");
  StageWhole();
  ASSERT_OK(hub_.Command({"back", RollBack{version_.sequence}}).status);
  for (TestRank& copy : copies_) {
    const std::vector<PublicationRefused> refused =
        hub_.TakeAll<PublicationRefused>(copy.connection);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_EQ(refused[0].buffer, copy.buffer);
    EXPECT_EQ(refused[0].version, later.sequence);
    EXPECT_THAT(refused[0].status,
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("step-2"), HasSubstr("withdrawn by a roll-back"))));
  }
}

TEST_F(StagingTest, TheGroupThatRollsBackHearsOfWhatItHasStagedToo) {
  UpdateWhole(rollout_);
  const VersionInfo later = PublishWhole(trainer_two_, "step-2");
  StageWhole();
  rollout_[0].Say(RunCommand{"back", RollBack{version_.sequence}});
  for (TestRank& copy : copies_) {
    const std::vector<PublicationRefused> refused =
        hub_.TakeAll<PublicationRefused>(copy.connection);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_EQ(refused[0].version, later.sequence);
  }
}

TEST_F(StagingTest, ARankThatFillsItsBufferHearsOfARollBackOnce) {
  UpdateWhole(rollout_);
  PublishWhole(trainer_two_, "step-2");
  for (TestRank& rank : rollout_) copies_.push_back(CopyOf(rank));
  for (TestRank& copy : copies_) copy.Update();
  copies_[0].FillWhole();
  copies_[1].Fill();
  ASSERT_OK(hub_.Command({"back", RollBack{version_.sequence}}).status);
  for (TestRank& copy : copies_) {
    EXPECT_THAT(copy.Finished().status, StatusIs(absl::StatusCode::kAborted));
    EXPECT_TRUE(copy.HearsNone<PublicationRefused>());
  }
}

TEST_F(StagingTest, ACopyDoesNotKeepWhatIsRetained) {
  ASSERT_OK(hub_.Command({"retain", SetRetention{.keep_latest = 1}}).status);
  StageWhole();
  for (TestRank& rank : trainer_) {
    StartOperation request = rank.UnpublishRequest();
    request.keep_retained = true;
    rank.Start(request);
  }
  EXPECT_THAT(trainer_[0].Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no room to offload")));
}

TEST_F(StagingTest, ARankThatIsGoneSinceLeavesTheOthersBuffersUntouched) {
  StageWhole();
  rollout_[1].Say(UnregisterBuffer{copies_[1].buffer});
  StartOperation request = rollout_[0].UpdateRequest(version_.sequence);
  request.timeout = absl::Milliseconds(100);
  rollout_[0].Start(request);
  hub_.Advance(absl::Milliseconds(150));
  EXPECT_TRUE(rollout_[0].HearsNone<OperationResolved>());
  EXPECT_THAT(rollout_[0].Finished().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(StagingTest, ALateReleaseDoesNotEndTheNextStage) {
  StageWhole();
  PublishWhole(trainer_two_, "step-2");
  copies_[0].Update();
  copies_[0].Fill();
  rollout_[1].Say(BufferReset{copies_[1].buffer});
  EXPECT_TRUE(copies_[0].HearsNone<OperationFinished>());
  copies_[0].Done();
  copies_[1].Update();
  copies_[1].FillWhole();
  for (TestRank& copy : copies_) EXPECT_EQ(copy.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(StagingTest, ARankThatComesLateHearsTheResult) {
  UpdateWhole(rollout_);
  for (TestRank& rank : rollout_) copies_.push_back(CopyOf(rank));
  copies_[0].Update();
  EXPECT_EQ(copies_[0].Finished().outcome, UpdateOutcome::kAlreadyThere);
  PublishWhole(trainer_two_, "step-2");
  copies_[1].Update();
  const OperationFinished late = copies_[1].Finished();
  EXPECT_EQ(late.outcome, UpdateOutcome::kAlreadyThere);
  EXPECT_EQ(late.version, version_) << "the group's, not the newest";
}

TEST_F(StagingTest, RanksAgreeOnWhatABufferIs) {
  CopyOf(rollout_[0]);
  TestRank other = rollout_[1];
  other.buffer = BufferId(2);
  other.buffer_name = "weights.staged";
  other.Say(RegisterBuffer{other.Announced()});
  EXPECT_THAT(
      other.Heard<BufferRegistered>().status,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a staged copy at another rank")));
}

TEST_F(StagingTest, ASnapshotIsListedAsLongAsItIsPublished) {
  TestRank alone = Rollout(hub_, "alone");
  StartOperation request = alone.PublishRequest("step-2");
  request.snapshot_bytes = 4096;
  alone.Start(request);
  ASSERT_OK(alone.Finished().status);
  EXPECT_EQ(hub_.List().models[0].versions[0].replicas[0].ranks[0].snapshot_bytes, 4096u);
}

TEST_F(StagingTest, ABufferIsForAnotherExactlyIfItIsAStagedCopy) {
  AnnouncedBuffer announced = rollout_[0].Announced();
  announced.buffer = BufferId(7);
  announced.buffer_name = "odd";
  announced.role = BufferRole::kStaged;
  rollout_[0].Say(RegisterBuffer{announced});
  EXPECT_THAT(rollout_[0].Heard<BufferRegistered>().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not say for which")));
  announced.role = BufferRole::kOffload;
  announced.staged_for = "weights";
  rollout_[0].Say(RegisterBuffer{announced});
  EXPECT_THAT(rollout_[0].Heard<BufferRegistered>().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("only a staged copy")));
}

TEST_F(StagingTest, AllRanksStageForTheSameBuffer) {
  CopyOf(rollout_[0]);
  AnnouncedBuffer announced = rollout_[1].Announced();
  announced.buffer = BufferId(2);
  announced.buffer_name = "weights.staged";
  announced.role = BufferRole::kStaged;
  announced.staged_for = "other";
  rollout_[1].Say(RegisterBuffer{announced});
  EXPECT_THAT(rollout_[1].Heard<BufferRegistered>().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is staged for other")));
}

}  // namespace
}  // namespace th
