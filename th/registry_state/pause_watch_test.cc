#include "th/registry_state/pause_watch.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(PauseWatchTest, PulsesInTimeAreNoPause) {
  PauseWatch watch(kStart);
  for (int i = 1; i <= 100; ++i) {
    EXPECT_EQ(watch.Pulse(kStart + i * kMaxPulseGap), absl::ZeroDuration());
  }
}

TEST(PauseWatchTest, ALongGapIsAPauseOnce) {
  PauseWatch watch(kStart);
  const absl::Time woken = kStart + absl::Hours(1);
  EXPECT_EQ(watch.Pulse(woken), absl::Hours(1));
  EXPECT_EQ(watch.Pulse(woken), absl::ZeroDuration()) << "as noted by another thread";
  EXPECT_EQ(watch.Pulse(woken + kMaxPulseGap), absl::ZeroDuration());
}

// Threads read the clock before they take the lock.
TEST(PauseWatchTest, APulseFromBeforeTheLastIsNone) {
  PauseWatch watch(kStart);
  EXPECT_EQ(watch.Pulse(kStart + kMaxPulseGap), absl::ZeroDuration());
  EXPECT_EQ(watch.Pulse(kStart), absl::ZeroDuration());
  EXPECT_EQ(watch.Pulse(kStart + 2 * kMaxPulseGap), absl::ZeroDuration());
}

}  // namespace
}  // namespace th
