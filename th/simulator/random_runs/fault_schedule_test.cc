#include "th/simulator/random_runs/fault_schedule.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

constexpr absl::Duration kDuration = absl::Seconds(10);

std::vector<Fault> Draw(uint64_t seed) {
  SeededRandom random(seed);
  return DrawFaults(&random, kDuration);
}

TEST(FaultScheduleTest, KeepsItsLimitsAndHasEveryKindOfFault) {
  std::set<FaultKind> kinds;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<Fault> faults = Draw(seed);
    EXPECT_GE(faults.size(), kMinFaults);
    EXPECT_LE(faults.size(), kMaxFaults);
    EXPECT_TRUE(std::is_sorted(faults.begin(), faults.end(),
                               [](const Fault& a, const Fault& b) { return a.at < b.at; }));
    for (const Fault& fault : faults) {
      kinds.insert(fault.kind);
      EXPECT_LT(fault.at, kDuration);
      EXPECT_GE(fault.lasting, kMinFaultLasting);
      EXPECT_LT(fault.lasting, kMaxFaultLasting);
    }
  }
  EXPECT_EQ(kinds.size(), kFaultKinds);
}

TEST(FaultScheduleTest, LaterKindsAreInSomeSeedsOnlyAndEachIsThere) {
  std::set<FaultKind> kinds;
  uint64_t without = 0;
  constexpr uint64_t kSeeds = 600;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<Fault> faults = DrawLaterFaults(seed, kDuration);
    without += faults.empty() ? 1 : 0;
    EXPECT_LE(faults.size(), 7 * kMaxOfFamily);
    for (const Fault& fault : faults) {
      kinds.insert(fault.kind);
      EXPECT_GE(fault.kind, FaultKind::kBreakEndpoint);
      EXPECT_LT(fault.at, kDuration);
      EXPECT_LT(fault.lasting, kMaxFaultLasting);
    }
  }
  EXPECT_EQ(kinds.size(), kLaterFaultKinds);
  EXPECT_GT(without, kSeeds / 20);
  EXPECT_LT(without, kSeeds / 4);
}

TEST(FaultScheduleTest, ASeedNamesOneScheduleForEver) {
  const std::vector<Fault> faults = Draw(7), again = Draw(7), other = Draw(8);
  ASSERT_EQ(faults.size(), again.size());
  for (size_t i = 0; i < faults.size(); ++i) EXPECT_EQ(faults[i].ToString(), again[i].ToString());
  EXPECT_NE(faults.front().ToString(), other.front().ToString());
}

TEST(FaultScheduleTest, SaysWhatWhoAndForHowLong) {
  Fault fault{.at = absl::Milliseconds(3214),
              .kind = FaultKind::kStopWorker,
              .target = 5,
              .lasting = absl::Milliseconds(1200)};
  EXPECT_EQ(fault.ToString(), "3.214 s: stop worker 5 for 1.200 s");
  fault.kind = FaultKind::kKillWorker;
  EXPECT_EQ(fault.ToString(), "3.214 s: kill worker 5");
  fault.kind = FaultKind::kRestartServer;
  EXPECT_EQ(fault.ToString(), "3.214 s: restart the server for 1.200 s");
  fault.kind = FaultKind::kBreakEndpoint;
  EXPECT_EQ(fault.ToString(), "3.214 s: break the first endpoint of worker 5 for 1.200 s");
  fault.kind = FaultKind::kSilenceServer;
  EXPECT_EQ(fault.ToString(), "3.214 s: silence the server's host for 1.200 s");
}

}  // namespace
}  // namespace th
