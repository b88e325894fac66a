// Ranks unpublished while no server was there, and the server that comes hears of it.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

// Without a server a rank ends its unpublish by itself; that is the group's result, also for a rank
// that drains still, or has not called yet.
class UnpublishedWithoutServerTest : public ::testing::Test {
 protected:
  UnpublishedWithoutServerTest() {
    JoinAndRegister(trainer_);
    version_ = PublishWhole(trainer_, "step-1");
    hub_.Restart();
  }
  void TheFirstResumesUnpublished() {
    AnnouncedBuffer drained = trainer_[0].Announced();
    drained.last_finished =
        FinishedOperation{.number = OperationNumber(2), .kind = OperationKind::kUnpublish};
    ASSERT_TRUE(trainer_[0].Resume({drained}));
    trainer_[0].number = OperationNumber(2);
  }
  void TheSecondResumesHolding() {
    AnnouncedBuffer holding = trainer_[1].Holding(version_, true, "step-1");
    holding.last_finished = FinishedOperation{.number = OperationNumber(1), .version = version_};
    ASSERT_TRUE(trainer_[1].Resume({holding}));
  }
  // Beside the second, which still holds the version; the next operation of the group fails.
  void TheFirstResumesUnpublishedAndGoesOn() {
    TheFirstResumesUnpublished();
    TheSecondResumesHolding();
    StartOperation next = trainer_[0].UpdateRequest();
    next.timeout = absl::Seconds(1);
    trainer_[0].Start(next);
    hub_.Advance(absl::Seconds(1));
    ASSERT_EQ(trainer_[0].Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  void BothResumeHolding() {
    for (TestRank& rank : trainer_) {
      AnnouncedBuffer holding = rank.Holding(version_, true, "step-1");
      holding.last_finished = FinishedOperation{.number = OperationNumber(1), .version = version_};
      ASSERT_TRUE(rank.Resume({holding}));
    }
  }
  // The rank asks to keep what is retained, hears nothing in its time, and drains of itself.
  static void DrainsOfItself(TestRank& rank) {
    StartOperation unpublish = rank.UnpublishRequest();
    unpublish.keep_retained = true;
    unpublish.timeout = absl::Seconds(1);
    rank.Start(unpublish);
    rank.Done();
  }
  void BothDrainOfThemselves() {
    for (TestRank& rank : trainer_) DrainsOfItself(rank);
  }
  // The rank's other buffer fills from the one that the rank published.
  void ResumesReadByItsOwnWorker(TestRank& rank) {
    AnnouncedBuffer holding = rank.Holding(version_, true, "step-1");
    holding.last_finished = FinishedOperation{.number = OperationNumber(1), .version = version_};
    TestRank reader = rank;
    reader.buffer = BufferId(rank.buffer.value + 1);
    reader.buffer_name = "evaluated";
    ASSERT_TRUE(rank.Resume({holding, reader.Filling(version_, {rank.address()})}));
  }
  void ExpectThatNothingIsHeld() {
    EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "idle");
    for (const CatalogReplica& replica : hub_.List().models[0].idle) {
      if (replica.buffer_name != "weights") continue;
      for (const CatalogRank& rank : replica.ranks) {
        EXPECT_EQ(rank.bytes_held, 0u) << rank.name.ToString();
      }
    }
  }
  void ExpectThatTheNextPublishWorks() {
    hub_.Advance(absl::Seconds(2));
    for (TestRank& rank : trainer_) rank.Publish("step-2");
    for (TestRank& rank : trainer_) EXPECT_OK(rank.Finished().status);
  }

  RegistryHarness hub_;
  std::vector<TestRank> trainer_ = MakeGroup(hub_, "trainer", 2);
  VersionInfo version_;
};

TEST_F(UnpublishedWithoutServerTest, WhoDrainsStillHearsTheResult) {
  TheSecondResumesHolding();
  trainer_[1].Unpublish();
  TheFirstResumesUnpublished();
  EXPECT_OK(trainer_[1].Finished().status);
  ExpectThatTheNextPublishWorks();
}

TEST_F(UnpublishedWithoutServerTest, WhoCallsLaterHearsTheResult) {
  TheFirstResumesUnpublished();
  TheSecondResumesHolding();
  trainer_[1].Unpublish();
  EXPECT_OK(trainer_[1].Finished().status);
  ExpectThatTheNextPublishWorks();
}

TEST_F(UnpublishedWithoutServerTest, WhatRanksHaveDrainedOfThemselvesIsNotWaitedFor) {
  BothResumeHolding();
  BothDrainOfThemselves();
  for (TestRank& rank : trainer_) EXPECT_OK(rank.Finished().status);
  ExpectThatTheNextPublishWorks();
}

TEST_F(UnpublishedWithoutServerTest, WhatRanksHaveDrainedIsGoneThoughTheOperationNeverBegan) {
  BothResumeHolding();
  for (TestRank& rank : trainer_) rank.Update();  // waits for the end of the recovery
  BothDrainOfThemselves();
  hub_.Advance(absl::Milliseconds(1200));
  for (TestRank& rank : trainer_) {
    EXPECT_EQ(rank.Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  ExpectThatTheNextPublishWorks();
}

// Its stream breaks once it has heard the result, and its group ends another operation meanwhile.
TEST_F(UnpublishedWithoutServerTest, WhatARankHasDrainedWhileItsGroupWentOnIsGone) {
  TheFirstResumesUnpublishedAndGoesOn();
  trainer_[1].Unpublish();
  ASSERT_OK(trainer_[1].Finished().status);
  ExpectThatNothingIsHeld();
}

// It has heard that the unpublish is over from the server before.
TEST_F(UnpublishedWithoutServerTest, WhatARankDoesNotAnnounceAnyMoreIsGoneThoughItsGroupWentOn) {
  TheFirstResumesUnpublishedAndGoesOn();
  trainer_[1].Disconnect();
  AnnouncedBuffer drained = trainer_[1].Announced();
  drained.last_finished =
      FinishedOperation{.number = OperationNumber(2), .kind = OperationKind::kUnpublish};
  ASSERT_TRUE(trainer_[1].Resume({drained}));
  ExpectThatNothingIsHeld();
}

// A rank that has said that it has drained does not say so again: no reader of its buffer keeps it.
TEST_F(UnpublishedWithoutServerTest, WhatRanksHaveDrainedIsGoneThoughTheirOwnWorkersReadIt) {
  for (TestRank& rank : trainer_) ResumesReadByItsOwnWorker(rank);
  for (TestRank& rank : trainer_) rank.Update();  // waits for the end of the recovery
  BothDrainOfThemselves();
  hub_.Advance(absl::Milliseconds(1200));
  for (TestRank& rank : trainer_) {
    EXPECT_EQ(rank.Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  ExpectThatNothingIsHeld();
  ExpectThatTheNextPublishWorks();
}

TEST_F(UnpublishedWithoutServerTest, WhatARankHasDrainedIsGoneThoughAnotherBringsTheResult) {
  ResumesReadByItsOwnWorker(trainer_[1]);
  trainer_[1].Update();  // waits for the end of the recovery
  DrainsOfItself(trainer_[1]);
  AnnouncedBuffer drained = trainer_[0].Announced();
  drained.last_finished =
      FinishedOperation{.number = OperationNumber(3), .kind = OperationKind::kUnpublish};
  ASSERT_TRUE(trainer_[0].Resume({drained}));
  EXPECT_OK(trainer_[1].Finished().status);
  ExpectThatNothingIsHeld();
}

// The second rank's unpublish waits behind its publish, which the first does not ask for again.
TEST_F(UnpublishedWithoutServerTest, WhatHasRunOutOfTimeSinceStaysSoForAllRanks) {
  ASSERT_TRUE(trainer_[1].Resume({trainer_[1].Announced()}));
  trainer_[1].number = OperationNumber();
  trainer_[1].Publish("step-1");
  StartOperation unpublish = trainer_[1].UnpublishRequest();
  unpublish.timeout = absl::Seconds(1);
  trainer_[1].Start(unpublish);
  hub_.Advance(absl::Seconds(2));
  EXPECT_EQ(trainer_[1].Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
  TheFirstResumesUnpublished();
  EXPECT_EQ(trainer_[1].Finished().status.code(), absl::StatusCode::kAborted);  // the publish
  trainer_[0].number = OperationNumber(1);
  trainer_[0].Start(trainer_[0].UnpublishRequest());
  EXPECT_EQ(trainer_[0].Finished().status.code(), absl::StatusCode::kDeadlineExceeded);
}

// Only who has begun the unpublish drains for it.
TEST_F(UnpublishedWithoutServerTest, DoneOfAnUpdateThatWasRefusedTakesNothingAway) {
  TheFirstResumesUnpublished();
  TheSecondResumesHolding();
  trainer_[1].number = OperationNumber(1);
  trainer_[1].Update();
  EXPECT_EQ(trainer_[1].Finished().status.code(), absl::StatusCode::kInvalidArgument);
  const uint64_t refused = hub_.registry().counters().messages_refused;
  trainer_[1].Done();
  trainer_[1].number = OperationNumber();
  trainer_[1].Done();
  EXPECT_EQ(hub_.registry().counters().messages_refused, refused + 2);
}

// The rank's numbers are of another numbering: none of its group's operations is meant.
TEST_F(UnpublishedWithoutServerTest, AnUnpublishOfAnEarlierNumberingLetsGoOfNothing) {
  TestRank fresh(hub_, "trainer", 1, 2, trainer_[1].layout);
  fresh.JoinAndRegister();
  TheFirstResumesUnpublished();
  hub_.Advance(RegistryLimits().recovery_window);
  trainer_[0].number = OperationNumber();
  for (TestRank* rank : {&trainer_[0], &fresh}) rank->Publish("step-2");
  for (TestRank* rank : {&trainer_[0], &fresh}) EXPECT_OK(rank->Finished().status);
  EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "holding");
}

}  // namespace
}  // namespace th
