#include "th/scenario_runs/simulate_scenario.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

constexpr char kText[] =
    "let nic=1GB/s seed=1\nseed $seed\nsite here\n"
    "hosts t site=here up=$nic down=$nic inside=10GB/s\n"
    "hosts r site=here count=2 up=$nic down=$nic inside=10GB/s\n"
    "weights rank_bytes=1GB segment=100MB\n"
    "group trainer role=trainer ranks=1 on=t\n"
    "group reader role=rollout ranks=1 count=2 on=r\n"
    "train trainer first=1s\nupdate reader after=publish\nend 60s\n";

absl::StatusOr<ScenarioRuns> RunAll(ScenarioFlags flags) {
  flags.file = "f.scenario";
  return RunScenarios(flags, kText, [] { return false; });
}

TEST(SimulateScenarioTest, RunsEverySettingUnderEveryPolicy) {
  const auto runs =
      RunAll({.policies = {"nearest", "direct"}, .set = {"seed=7"}, .sweep = {"nic=1GB/s,2GB/s"}});
  ASSERT_THAT(runs, IsOk());
  EXPECT_FALSE(runs->interrupted());
  ASSERT_EQ(runs->done.size(), 4u);
  EXPECT_EQ(runs->done[3].swept, (ScenarioOverrides{{"nic", "2GB/s"}}));
  EXPECT_EQ(runs->done[3].result.policy, ScenarioPolicy::kDirect);
  EXPECT_EQ(runs->done[3].result.seed, 7u);
}

TEST(SimulateScenarioTest, AStopBetweenTwoRunsLeavesWhatHasRun) {
  int asked = 0;
  const ScenarioFlags flags{.file = "f.scenario", .policies = {"nearest"}, .sweep = {"seed=1,2,3"}};
  const auto runs = RunScenarios(flags, kText, [&asked] { return ++asked == 2; });
  ASSERT_THAT(runs, IsOk());
  EXPECT_TRUE(runs->interrupted());
  EXPECT_EQ(runs->planned, 3u);
  ASSERT_EQ(runs->done.size(), 2u);
  EXPECT_EQ(runs->done[1].result.seed, 2u);
}

TEST(SimulateScenarioTest, AVariableHasItsValueFromOnePlace) {
  const std::vector<std::pair<ScenarioFlags, std::string>> refused = {
      {{.set = {"seed=1", "seed=2"}}, "'seed' is set twice"},
      {{.set = {"seed=1"}, .sweep = {"seed=1,2"}}, "'seed' is set and swept"},
      {{.sweep = {"seed=1,2", "seed=3"}}, "'seed' is swept twice"},
      {{.sweep = {"seed=1,,2"}}, "'seed=1,,2' has an empty value"},
      {{.sweep = {"seed=,"}}, "'seed=,' has an empty value"},
      {{.sweep = {"seed="}}, "'seed=' is not name=value"}};
  for (const auto& [flags, says] : refused) {
    EXPECT_THAT(RunAll(flags).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)));
  }
}

}  // namespace
}  // namespace th
