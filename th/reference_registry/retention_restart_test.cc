// Versions stay retained while the server restarts, and operations may run out of time before they
// were looked at.
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"
#include "th/reference_registry/retention_fixture.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::th::testing::StatusIs;

class RetentionRestartTest : public RetentionTest {
 protected:
  // A group with room for copies that has published "one", which is retained, wants to unpublish
  // it, and has heard in every rank that it copies it first.
  std::vector<TestRank> GroupAskedToCopyFirst() {
    KeepLatest(1);
    std::vector<TestRank> group = RoomyGroup();
    PublishWhole(group, "one");
    for (TestRank& rank : group) AskToUnpublish(rank);
    for (TestRank& rank : group) EXPECT_TRUE(rank.Finished().must_offload);
    return group;
  }
  // The answer that the rank gets to an unpublish whose second is over.
  OperationFinished UnpublishWithinASecond(TestRank& rank, bool keep_retained) {
    StartOperation request = rank.UnpublishRequest();
    request.keep_retained = keep_retained;
    request.timeout = absl::Seconds(1);
    rank.Start(request);
    hub_.Advance(absl::Seconds(1));
    return rank.Finished();
  }
  static AnnouncedBuffer HoldingStill(const TestRank& rank, const VersionInfo& version) {
    return rank.Holding(version, /*publisher=*/true, version.label.text());
  }
  // It has heard that its unpublish waits for a copy.
  static AnnouncedBuffer WaitingForCopy(const TestRank& rank, const VersionInfo& version) {
    AnnouncedBuffer waits = HoldingStill(rank, version);
    waits.last_finished = FinishedOperation{.number = rank.number,
                                            .kind = OperationKind::kUnpublish,
                                            .version = version,
                                            .must_offload = true};
    return waits;
  }
  // It has drained while no server was there.
  static AnnouncedBuffer DrainedAlone(const TestRank& rank, const VersionInfo& version) {
    AnnouncedBuffer drained = rank.Announced();
    drained.last_finished = FinishedOperation{
        .number = rank.number, .kind = OperationKind::kUnpublish, .version = version};
    return drained;
  }
};

TEST_F(RetentionRestartTest, WhatARankHasHeardIsNotDecidedAnew) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  const OperationNumber publish = group[1].number;
  for (TestRank& rank : group) AskToUnpublish(rank);
  ASSERT_TRUE(group[0].Finished().must_offload);
  hub_.Restart();
  // The other rank has not heard it, is back first, and nothing is retained any more.
  group[1].number = publish;
  AnnouncedBuffer unaware = HoldingStill(group[1], one);
  unaware.last_finished =
      FinishedOperation{.number = publish, .kind = OperationKind::kPublish, .version = one};
  ASSERT_TRUE(group[1].Resume({unaware}));
  KeepLatest(0);
  AskToUnpublish(group[1]);
  hub_.Advance(absl::Seconds(2));  // beyond the recovery window
  EXPECT_TRUE(group[1].HearsNone<OperationResolved>());
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  EXPECT_TRUE(group[1].Finished().must_offload);
}

// Back first, it brings the end of the operation along; who waits for a copy hears that end.
TEST_F(RetentionRestartTest, ARankThatDrainedAloneAndIsBackFirstEndsItForItsGroup) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  AskToUnpublish(group[1]);
  ASSERT_TRUE(group[0].Finished().must_offload);
  hub_.Restart();
  ASSERT_TRUE(group[1].Resume({DrainedAlone(group[1], one)}));
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  StartOperation again = group[0].UnpublishRequest();
  again.key.number = group[0].number;
  again.keep_retained = true;
  group[0].Start(again);
  const OperationFinished finished = group[0].Finished();
  EXPECT_OK(finished.status);
  EXPECT_FALSE(finished.must_offload);
}

// A server before this one has heard its end: it does not ask again.
TEST_F(RetentionRestartTest, ARankThatDrainedAloneAndIsBackLastEndsItForItsGroup) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  for (TestRank& rank : group) AskToUnpublish(rank);
  ASSERT_TRUE(group[0].Finished().must_offload);
  hub_.Restart();
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  ASSERT_TRUE(group[1].Resume({DrainedAlone(group[1], one)}));
  const OperationFinished finished = group[0].Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.key.number, group[0].number);
  EXPECT_FALSE(finished.must_offload);
}

TEST_F(RetentionRestartTest, ARankThatDrainedAloneEndsItForThoseThatWaitForACopy) {
  std::vector<TestRank> group = GroupAskedToCopyFirst();
  DrainAlone(group[1]);
  for (TestRank& rank : group) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_FALSE(finished.must_offload);
    EXPECT_TRUE(rank.HearsNone<GroupChanged>());
  }
  EXPECT_THAT(hub_.Log(), HasSubstr("retained version lost"));
  group[0].Update();
  EXPECT_TRUE(group[0].HearsNone<GroupChanged>()) << "the numbers go on";
}

TEST_F(RetentionRestartTest, WhoDrainsAloneLosesNothingThatAnotherGroupHolds) {
  std::vector<TestRank> group = GroupAskedToCopyFirst();
  std::vector<TestRank> other = MakeGroup(hub_, "rollout", 2);
  JoinAndRegister(other);
  UpdateWhole(other);
  DrainAlone(group[1]);
  EXPECT_OK(group[1].Finished().status);
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("retained version lost")));
}

TEST_F(RetentionRestartTest, ARankThatDrainedAloneMakesAGroupThatHasGoneOnCountAnew) {
  std::vector<TestRank> group = GroupAskedToCopyFirst();
  group[0].Update();
  DrainAlone(group[1]);
  const GroupChanged changed = group[0].Heard<GroupChanged>();
  EXPECT_EQ(changed.rank, group[1].name);
  EXPECT_GT(changed.group_generation, group[0].generation);
  EXPECT_FALSE(group[1].HearsNone<GroupChanged>());
}

// ---- its stream stands: it was stopped, say, and its time for the unpublish was over when it woke

TEST_F(RetentionRestartTest, ARankThatHasDrainedInsteadOfCopyingEndsItForThoseThatWaitForACopy) {
  std::vector<TestRank> group = GroupAskedToCopyFirst();
  group[1].Done();
  for (TestRank& rank : group) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_FALSE(finished.must_offload);
    EXPECT_EQ(finished.key.number, group[0].number);
    EXPECT_TRUE(rank.HearsNone<GroupChanged>());
  }
  EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "idle");
  EXPECT_THAT(hub_.Log(), HasSubstr("retained version lost"));
  PublishWhole(group, "two");
}

TEST_F(RetentionRestartTest, ARankThatHasDrainedInsteadOfCopyingHoldsNothingThoughItsWorkerReads) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  for (TestRank& rank : group) AskToUnpublish(rank);
  for (TestRank& rank : group) ASSERT_TRUE(rank.Finished().must_offload);
  std::vector<TestRank> copies;
  for (TestRank& rank : group) {
    copies.push_back(RegisteredCopy(rank, one, rank.number));
    copies.back().Update(one.sequence);
  }
  for (TestRank& copy : copies) copy.Ready();
  group[1].Done();
  EXPECT_EQ(group[1].Finished().key.number, group[1].number);
  for (const CatalogReplica& replica : hub_.List().models[0].idle) {
    if (replica.buffer_name != "weights") continue;
    EXPECT_GT(replica.ranks[0].bytes_held, 0u) << "it copies yet";
    EXPECT_EQ(replica.ranks[1].bytes_held, 0u);
  }
}

TEST_F(RetentionRestartTest, ARankThatHasDrainedInsteadOfCopyingMakesAGroupThatWentOnCountAnew) {
  std::vector<TestRank> group = GroupAskedToCopyFirst();
  group[0].Update();
  group[1].Done();
  EXPECT_EQ(group[0].Heard<GroupChanged>().rank, group[1].name);
}

// ---- its time for an update was over when it woke

class FailedInsteadOfCopyingTest : public RetentionRestartTest {
 protected:
  // A group that is about to leave "one", which is retained, for "two", and has heard in every rank
  // that it copies "one" first.
  std::vector<TestRank> GroupAskedToCopyBeforeItMoves() {
    KeepLatest(2);
    std::vector<TestRank> group = RoomyGroup();
    one_ = PublishWhole(group, "one");
    others_ = MakeGroup(hub_, "other", 2);
    JoinAndRegister(others_);
    PublishWhole(others_, "two");
    for (TestRank& rank : group) AskToUpdate(rank);
    for (TestRank& rank : group) EXPECT_TRUE(rank.Finished().must_offload);
    return group;
  }

  VersionInfo one_;
  std::vector<TestRank> others_;
};

TEST_F(FailedInsteadOfCopyingTest, ARankMakesThoseThatWaitForItsCopyCountAnew) {
  std::vector<TestRank> group = GroupAskedToCopyBeforeItMoves();
  TestRank copy = RegisteredCopy(group[0], one_, group[0].number);
  copy.Update(one_.sequence);
  group[1].Fail(absl::DeadlineExceededError("no end after 1s"));
  for (TestRank& rank : group) EXPECT_EQ(rank.Heard<GroupChanged>().rank, group[1].name);
  EXPECT_THAT(hub_.Log(), HasSubstr("has failed what its group was to offload for"));
}

TEST_F(FailedInsteadOfCopyingTest, OfAGroupThatHasGoneOnNothingIsCountedAnew) {
  std::vector<TestRank> group = GroupAskedToCopyBeforeItMoves();
  const OperationNumber reported = group[1].number;
  UpdateWhole(group);
  group[1].Say(
      RankFailed{{group[1].buffer, reported}, absl::DeadlineExceededError("no end"), false});
  for (TestRank& rank : group) EXPECT_TRUE(rank.HearsNone<GroupChanged>());
}

TEST_F(FailedInsteadOfCopyingTest, NobodyWaitsInAGroupOfOneRank) {
  KeepLatest(2);
  TestRank alone = Roomy("trainer");
  Publish(alone, "one");
  TestRank other = Roomy("other");
  Publish(other, "two");
  AskToUpdate(alone);
  ASSERT_TRUE(alone.Finished().must_offload);
  alone.Fail(absl::DeadlineExceededError("no end after 1s"));
  EXPECT_TRUE(alone.HearsNone<GroupChanged>());
}

// ---- what runs out of time before it was looked at takes nothing away

TEST_F(RetentionRestartTest, AnUnpublishThatRunsOutOfTimeBehindAnotherOperationStaysPublished) {
  std::vector<TestRank> group = RoomyGroup();
  group[0].Publish("one");
  const OperationFinished finished = UnpublishWithinASecond(group[0], /*keep_retained=*/true);
  EXPECT_THAT(finished.status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waited for operation 1")));
  EXPECT_TRUE(finished.must_offload);
}

TEST_F(RetentionRestartTest, AnUnpublishThatRunsOutOfTimeWhileTheServerRecoversStaysPublished) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  hub_.Restart();
  AnnouncedBuffer still = HoldingStill(group[0], one);
  still.last_finished =
      FinishedOperation{.number = group[0].number, .kind = OperationKind::kPublish, .version = one};
  ASSERT_TRUE(group[0].Resume({still}));
  const OperationFinished finished = UnpublishWithinASecond(group[0], /*keep_retained=*/true);
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(finished.must_offload);
}

TEST_F(RetentionRestartTest, OneThatDoesNotAskToKeepItDrainsAsItSaid) {
  std::vector<TestRank> group = RoomyGroup();
  group[0].Publish("one");
  EXPECT_FALSE(UnpublishWithinASecond(group[0], /*keep_retained=*/false).must_offload);
}

}  // namespace
}  // namespace th
