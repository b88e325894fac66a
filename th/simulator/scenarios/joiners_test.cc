// A crowd that comes at once, and sources that leave with notice while they are read.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenarios/scenario_run.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::th::testing::IsOk;

// A trainer, and groups of one rank on hosts of their own: a shard takes a second over a link.
std::string Fleet(int joiners) {
  return absl::StrCat(R"(site here
latency same_site=100us
hosts t site=here up=1GB/s down=1GB/s inside=10GB/s
hosts j site=here count=)",
                      joiners, R"( up=1GB/s down=1GB/s inside=10GB/s
weights rank_bytes=1GB segment=10MB
group trainer role=trainer ranks=1 on=t
group joiner role=spot ranks=1 count=)",
                      joiners, " on=j\ntrain trainer first=1s\n");
}

ScenarioResult RunWell(const std::string& text) {
  const auto scenario = ParseScenario("f.scenario", text, {});
  EXPECT_THAT(scenario, IsOk());
  auto result = RunScenario(*scenario, ScenarioPolicy::kNearest, {});
  EXPECT_THAT(result, IsOk());
  EXPECT_THAT(result->violations, IsEmpty());
  EXPECT_EQ(result->calls_open, 0u);
  return *std::move(result);
}

// Four readers at once is the most that one source is given while there are others: the rest hangs
// from those.
TEST(JoinersTest, AHundredAtOnceDoNotFloodTheFirstSource) {
  const ScenarioResult result = RunWell(Fleet(100) + "at 5s join joiner 100\nend 100s\n");
  EXPECT_EQ(result.updates_failed, 0u);
  EXPECT_EQ(result.reads.size(), 100u);
  EXPECT_LE(result.CopiesSent(), 4);
  EXPECT_LT(absl::ToDoubleSeconds(result.SlowestRead()), 10) << "100 if all came to the trainer";
}

// The checker says so when what was on its way at the switch is thrown away.
TEST(JoinersTest, RelaysThatLeaveWithNoticeHoldNobodyUpForLong) {
  std::string text = Fleet(20) + "at 5s join joiner 20\n";
  for (int i = 1; i <= 5; ++i) {
    absl::StrAppend(&text, "at ", 5200 + 50 * i, "ms preempt joiner-", i, " notice=300ms\n");
  }
  const ScenarioResult result = RunWell(text + "end 100s\n");
  int others = 0;
  for (const ReadResult& read : result.reads) {
    if (read.group.size() == std::string("joiner-1").size() && read.group <= "joiner-5") continue;
    ++others;
  }
  EXPECT_EQ(others, 15);
  EXPECT_LT(absl::ToDoubleSeconds(result.SlowestRead()), 6);
}

}  // namespace
}  // namespace th
