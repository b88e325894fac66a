#include "th/simulator/scenarios/stall_clock.h"

#include "gtest/gtest.h"

namespace th {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(StallClockTest, AddsUpWhatIsWaitedForByCause) {
  StallClock clock;
  clock.Begin(StallCause::kServer, At(1));
  clock.Switch(StallCause::kBytes, At(2));
  clock.End(At(5));
  clock.Begin(StallCause::kBytes, At(9));
  clock.End(At(10));
  EXPECT_EQ(clock.times().of(StallCause::kServer), absl::Seconds(1));
  EXPECT_EQ(clock.times().of(StallCause::kBytes), absl::Seconds(4));
  EXPECT_EQ(clock.times().total(), absl::Seconds(5));
}

TEST(StallClockTest, NothingIsCountedWhileNoStallGoesOn) {
  StallClock clock;
  clock.Switch(StallCause::kBytes, At(1));
  clock.End(At(2));
  EXPECT_FALSE(clock.running());
  EXPECT_EQ(clock.times().total(), absl::ZeroDuration());
}

TEST(StallClockTest, ABeginEndsWhatWentOn) {
  StallClock clock;
  clock.Begin(StallCause::kCopy, At(1));
  clock.Begin(StallCause::kGroup, At(3));
  EXPECT_TRUE(clock.running());
  clock.End(At(4));
  EXPECT_EQ(clock.times().of(StallCause::kCopy), absl::Seconds(2));
  EXPECT_EQ(clock.times().of(StallCause::kGroup), absl::Seconds(1));
}

}  // namespace
}  // namespace th
