// Sources that do not bring all that was asked of them: let go, slow at the end, silent or removed.
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/pipeline_replicator/replicator_harness.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LostSourcesTest : public ReplicatorHarness {};

// ---- letting go

TEST_F(LostSourcesTest, WhatWasAskedOfASourceThatIsLetGoIsAskedOfNobodyElse) {
  fill_.AddSource(kA, At(0));
  fill_.AddSource(kB, At(0));
  ASSERT_THAT(Ask(kA), ElementsAre(R(0, 4), R(4, 8), R(8, 12), R(12, 16)));
  fill_.DetachSource(kA, At(0));
  EXPECT_THAT(Ask(kB), ElementsAre(R(16, 20), R(20, 24), R(24, 28), R(28, 32)));
  EXPECT_TRUE(fill_.BeginSegment(kA, S(0)));
  EXPECT_EQ(Give(kA, 0), Verdict::kAccepted);
  EXPECT_THAT(Ask(kA), IsEmpty());
  EXPECT_EQ(fill_.bytes_from(kA), kSegmentBytes);
}

TEST_F(LostSourcesTest, WhatASourceThatIsLetGoHasNotSentIsAskedOfOthersOnceItIsRemoved) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  Give(kA, 0);
  fill_.DetachSource(kA, At(0));
  fill_.RemoveSource(kA);
  fill_.AddSource(kB, At(0));
  EXPECT_THAT(Ask(kB), ElementsAre(R(1, 5), R(5, 9), R(9, 13), R(13, 17)));
}

TEST_F(LostSourcesTest, SourceThatIsLetGoAndOwesNothingIsNamedAndNotBlamed) {
  fill_.AddSource(kA, At(0));
  fill_.DetachSource(kA, At(5));
  EXPECT_EQ(fill_.NextDeadline(), absl::InfinitePast());
  EXPECT_THAT(fill_.PollLost(At(5)),
              ElementsAre(PipelineReplicator::LostSource{
                  .source = kA, .silent_for = absl::Milliseconds(5), .detached = true}));
  EXPECT_THAT(fill_.PollLost(At(5)), IsEmpty());
}

TEST_F(LostSourcesTest, SourceThatIsLetGoHasUntilTheEndOfTheGracefulSwitch) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  fill_.DetachSource(kA, At(0));
  fill_.HandleAlive(kA, At(900));
  EXPECT_THAT(fill_.PollLost(At(999)), IsEmpty());
  EXPECT_EQ(fill_.NextDeadline(), At(1000));
  EXPECT_THAT(fill_.PollLost(At(1000)),
              ElementsAre(PipelineReplicator::LostSource{
                  .source = kA, .silent_for = absl::Milliseconds(100), .detached = true}));
  fill_.AddSource(kB, At(1000));
  EXPECT_EQ(Ask(kB, At(1000)).front(), R(0, 4));
}

TEST_F(LostSourcesTest, SilentSourceThatIsLetGoIsNotWaitedFor) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  fill_.DetachSource(kA, At(0));
  EXPECT_EQ(fill_.NextDeadline(), At(400));
  EXPECT_THAT(fill_.PollLost(At(400)),
              ElementsAre(PipelineReplicator::LostSource{
                  .source = kA, .silent_for = absl::Milliseconds(400), .detached = true}));
}

// ---- the tail

class TailTest : public LostSourcesTest {
 protected:
  // A sits on [16, 32) since t = 100; B has delivered the rest and is idle.
  void SetUp() override {
    fill_.AddSource(kB, At(0));
    for (int i = 0; i < 4; ++i) fill_.PollRequest(kB, At(0));  // [0, 16)
    fill_.AddSource(kA, At(100));
    ASSERT_THAT(Ask(kA, At(100)), ElementsAre(R(16, 20), R(20, 24), R(24, 28), R(28, 32)));
    for (uint64_t i = 0; i < 16; ++i) Give(kB, i, At(100));
  }
};

TEST_F(TailTest, IdleSourceTakesOverTheEndOfASlowOne) {
  EXPECT_THAT(Ask(kB, At(200)), ElementsAre(R(28, 32)));
}

TEST_F(TailTest, NothingIsTakenOverFromASourceThatWasLetGo) {
  fill_.DetachSource(kA, At(200));
  EXPECT_THAT(Ask(kB, At(200)), IsEmpty());
}

TEST_F(TailTest, SourceAskedJustNowIsGivenTime) { EXPECT_THAT(Ask(kB, At(140)), IsEmpty()); }

TEST_F(TailTest, SourceThatHasProvedNothingTakesNothingOver) {
  fill_.AddSource(kC, At(100));
  EXPECT_THAT(Ask(kC, At(200)), IsEmpty());
}

TEST_F(TailTest, FasterSourceIsNotRelievedByASlowerOne) {
  for (uint64_t i = 16; i < 30; ++i) Give(kA, i, At(110));
  EXPECT_THAT(Ask(kB, At(200)), IsEmpty());
}

TEST_F(TailTest, FirstCopyCountsAndTheSecondIsNotWritten) {
  Ask(kB, At(200));
  ASSERT_TRUE(fill_.BeginSegment(kB, S(28)));
  EXPECT_FALSE(fill_.BeginSegment(kA, S(28)));
  EXPECT_EQ(Give(kB, 28, At(200)), Verdict::kAccepted);
  EXPECT_EQ(Give(kA, 28, At(200)), Verdict::kDuplicate);
  EXPECT_EQ(fill_.bytes_from(kA), 0);
}

TEST_F(TailTest, HeldSegmentIsNeverWrittenAgain) {
  Ask(kB, At(200));
  Give(kB, 28, At(200));
  EXPECT_FALSE(fill_.WantsSegment(kA, S(28)));
  EXPECT_FALSE(fill_.BeginSegment(kA, S(28)));
  EXPECT_TRUE(fill_.HandleDiscarded(kA, S(28), At(200)));
}

TEST_F(TailTest, SegmentThatIsBeingWrittenIsNotTakenOver) {
  ASSERT_TRUE(fill_.BeginSegment(kA, S(31)));
  EXPECT_THAT(Ask(kB, At(200)), ElementsAre(R(27, 31)));
}

// ---- losses

TEST_F(LostSourcesTest, SilentSourceIsLostAfterTheSilenceAndOnlyOnce) {
  fill_.AddSource(kA, At(0));
  Ask(kA, At(10));
  EXPECT_EQ(fill_.NextDeadline(), At(410));
  EXPECT_THAT(fill_.PollLost(At(409)), IsEmpty());
  EXPECT_THAT(fill_.PollLost(At(410)),
              ElementsAre(PipelineReplicator::LostSource{
                  .source = kA, .corrupt = false, .silent_for = absl::Milliseconds(400)}));
  EXPECT_THAT(fill_.PollLost(At(9999)), IsEmpty());
  EXPECT_EQ(fill_.NextDeadline(), absl::InfiniteFuture());
}

enum class SignOfLife { kAlive, kSegment, kCorruptSegment, kDiscarded, kOwnPause };
class SignOfLifeTest : public LostSourcesTest, public ::testing::WithParamInterface<SignOfLife> {};
TEST_P(SignOfLifeTest, PostponesTheLoss) {
  fill_.AddSource(kA, At(0));
  Ask(kA, At(0));
  switch (GetParam()) {
    case SignOfLife::kAlive:
      fill_.HandleAlive(kA, At(300));
      break;
    case SignOfLife::kSegment:
      Give(kA, 0, At(300));
      break;
    case SignOfLife::kCorruptSegment:
      GiveCorrupt(kA, 0, At(300));
      break;
    case SignOfLife::kDiscarded:
      fill_.HandleDiscarded(kA, S(0), At(300));
      break;
    case SignOfLife::kOwnPause:
      fill_.HandlePause(absl::Milliseconds(300));
      break;
  }
  EXPECT_EQ(fill_.NextDeadline(), At(700));
  EXPECT_THAT(fill_.PollLost(At(699)), IsEmpty());
  EXPECT_EQ(fill_.PollLost(At(700)).size(), 1);
}
INSTANTIATE_TEST_SUITE_P(All, SignOfLifeTest,
                         ::testing::Values(SignOfLife::kAlive, SignOfLife::kSegment,
                                           SignOfLife::kCorruptSegment, SignOfLife::kDiscarded,
                                           SignOfLife::kOwnPause));

TEST_F(LostSourcesTest, SourceAtRestIsNeverSilent) {
  fill_.AddSource(kA, At(0));
  EXPECT_THAT(fill_.PollLost(At(100000)), IsEmpty());
  Ask(kA, At(100000));  // its time starts now
  EXPECT_EQ(fill_.NextDeadline(), At(100400));
}

TEST_F(LostSourcesTest, RequestsOfALostSourceGoToAnother) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  Give(kA, 0);
  fill_.AddSource(kB, At(300));
  ASSERT_THAT(Ask(kB, At(300)), ElementsAre(R(16, 20), R(20, 24), R(24, 28), R(28, 32)));
  for (uint64_t i = 16; i < 20; ++i) Give(kB, i, At(399));
  ASSERT_EQ(fill_.PollLost(At(400)).size(), 1);
  EXPECT_THAT(Ask(kB, At(400)), ElementsAre(R(1, 5)));
}

TEST_F(LostSourcesTest, RequestsOfARemovedSourceGoToAnother) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  fill_.RemoveSource(kA);
  fill_.AddSource(kB, At(0));
  EXPECT_EQ(fill_.PollRequest(kB, At(0))->range, R(0, 4));
  EXPECT_EQ(Give(kA, 0), Verdict::kUnexpected);
}

TEST_F(LostSourcesTest, BytesOfARemovedSourceStayAccounted) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  Give(kA, 0);
  fill_.RemoveSource(kA);
  EXPECT_EQ(fill_.bytes_from(kA), kSegmentBytes);
}

// ---- waiting

TEST_F(LostSourcesTest, ASourceIsWaitedForWhileSomethingAskedOfItIsOutstanding) {
  fill_.AddSource(kA, At(0));
  EXPECT_EQ(fill_.waited_for(kA, At(50)), absl::ZeroDuration()) << "nothing was asked";
  ASSERT_TRUE(fill_.PollRequest(kA, At(100)).has_value());
  EXPECT_EQ(fill_.waited_for(kA, At(130)), absl::Milliseconds(30));
  fill_.HandlePause(absl::Milliseconds(10));  // this process did not run
  EXPECT_EQ(fill_.waited_for(kA, At(130)), absl::Milliseconds(20));
  Give(kA, 0, At(140));
  Give(kA, 1, At(140));
  Give(kA, 2, At(150));
  EXPECT_EQ(fill_.waited_for(kA, At(160)), absl::Milliseconds(50)) << "one is still to come";
  Give(kA, 3, At(160));
  EXPECT_EQ(fill_.waited_for(kA, At(500)), absl::Milliseconds(50));
  ASSERT_TRUE(fill_.PollRequest(kA, At(500)).has_value());
  EXPECT_EQ(fill_.waited_for(kA, At(505)), absl::Milliseconds(55));
  fill_.RemoveSource(kA);
  EXPECT_EQ(fill_.waited_for(kA, At(900)), absl::Milliseconds(50));
}

}  // namespace
}  // namespace th
