#include "th/transfer/stream/stall_watch.h"

#include "gtest/gtest.h"

namespace th::stream {
namespace {

using Step = StallWatch::Step;

class StallWatchTest : public ::testing::Test {
 protected:
  static absl::Time At(absl::Duration since_start) { return absl::UnixEpoch() + since_start; }

  StallWatch watch_;
};

TEST_F(StallWatchTest, GivesBackThenCutsWhileSlotsAreAwaited) {
  watch_.HandleFull(At(absl::ZeroDuration()));
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime - kStallTick), true), Step::kKeep);
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime), true), Step::kGiveBack);
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime + kKeptTime - kStallTick), true), Step::kKeep);
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime + kKeptTime), true), Step::kCut);
}

TEST_F(StallWatchTest, KeepsEverythingWhileNobodyWaits) {
  watch_.HandleFull(At(absl::ZeroDuration()));
  for (int second = 1; second < 1000; ++second) {
    EXPECT_EQ(watch_.HandleTick(At(absl::Seconds(second)), false), Step::kKeep);
  }
}

TEST_F(StallWatchTest, ReaderIsStalledFromWhenItFirstTookNothing) {
  watch_.HandleFull(At(absl::ZeroDuration()));
  watch_.HandleFull(At(kStalledTime - kStallTick));
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime), true), Step::kGiveBack);
  EXPECT_EQ(watch_.StalledFor(At(kStalledTime)), kStalledTime);
}

TEST_F(StallWatchTest, ReaderThatTakesBytesBeginsAnew) {
  watch_.HandleFull(At(absl::ZeroDuration()));
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime), true), Step::kGiveBack);
  watch_.HandleTaken();
  EXPECT_EQ(watch_.StalledFor(At(10 * kStalledTime)), absl::ZeroDuration());
  EXPECT_EQ(watch_.HandleTick(At(10 * kStalledTime), true), Step::kKeep) << "it is not stalled";
  watch_.HandleFull(At(10 * kStalledTime));
  EXPECT_EQ(watch_.HandleTick(At(11 * kStalledTime - kStallTick), true), Step::kKeep);
  EXPECT_EQ(watch_.HandleTick(At(11 * kStalledTime), true), Step::kGiveBack);
}

TEST_F(StallWatchTest, OnlySlotsThatAreAwaitedAllTheTimeCutAReader) {
  watch_.HandleFull(At(absl::ZeroDuration()));
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime), true), Step::kGiveBack);
  EXPECT_EQ(watch_.HandleTick(At(kStalledTime + kStallTick), false), Step::kKeep);
  const absl::Time again = At(10 * kStalledTime);
  EXPECT_EQ(watch_.HandleTick(again, true), Step::kGiveBack);
  EXPECT_EQ(watch_.HandleTick(again + kKeptTime - kStallTick, true), Step::kKeep);
  EXPECT_EQ(watch_.HandleTick(again + kKeptTime, true), Step::kCut);
}

}  // namespace
}  // namespace th::stream
