#include "th/scenario_runs/scenario_comparison.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {
namespace {

using ::testing::HasSubstr;

ScenarioResult Stalled(ScenarioPolicy policy, double trainer, double rollout) {
  ScenarioResult result;
  result.scenario = "web.scenario";
  result.policy = policy;
  RankResult& publisher = result.ranks.emplace_back();
  publisher.role = GroupRole::kTrainer;
  publisher.stall.Add(StallCause::kDrain, absl::Seconds(trainer));
  RankResult& reader = result.ranks.emplace_back();
  reader.stall.Add(StallCause::kBytes, absl::Seconds(rollout));
  return result;
}

TEST(ScenarioComparisonTest, PutsRealAndSimulatedSideBySideAndComparesPoliciesWithinEach) {
  const std::vector<ComparedRun> runs = {
      {Stalled(ScenarioPolicy::kNearest, 0, 2), Stalled(ScenarioPolicy::kNearest, 0, 1.5)},
      {Stalled(ScenarioPolicy::kBroadcast, 2, 2), Stalled(ScenarioPolicy::kBroadcast, 2, 4)}};
  const nlohmann::json report = ComparisonToJson(runs);
  EXPECT_EQ(report["scenario"], "web.scenario");
  EXPECT_EQ(report["runs"][0]["difference"], -0.25);
  EXPECT_EQ(report["runs"][1]["policy"], "broadcast");
  EXPECT_EQ(report["runs"][1]["real"]["trainer_stall"]["seconds"], 2);
  EXPECT_EQ(report["runs"][1]["real"]["ratio"], 2);
  EXPECT_EQ(report["runs"][1]["simulated"]["ratio"], 4);
  const std::string table = ComparisonTable(runs);
  EXPECT_THAT(table, HasSubstr("broadcast  real"));
  EXPECT_THAT(table, HasSubstr("simulated"));
}

}  // namespace
}  // namespace th
