#include "th/scenario_runs/scenario_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

constexpr char kScenario[] = R"(let nic=1GB/s
site here
hosts t site=here up=$nic down=$nic inside=10GB/s
hosts r site=here count=2 up=$nic down=$nic inside=10GB/s
weights rank_bytes=1GB segment=100MB
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 count=2 on=r
train trainer first=1s
update reader after=publish
end 60s
)";

ScenarioRunReport RunOf(ScenarioPolicy policy, const std::string& nic) {
  const ScenarioOverrides swept = {{"nic", nic}};
  const Scenario scenario = ParseScenario("s.scenario", kScenario, swept).value();
  return {swept, RunScenario(scenario, policy, {}).value()};
}

TEST(ScenarioReportTest, TheTableComparesWithTheFirstRunOfTheSameVariables) {
  const std::string table = ScenarioTable({RunOf(ScenarioPolicy::kNearest, "1GB/s"),
                                           RunOf(ScenarioPolicy::kBroadcast, "1GB/s"),
                                           RunOf(ScenarioPolicy::kNearest, "2GB/s")});
  EXPECT_THAT(table, HasSubstr("POLICY"));
  EXPECT_THAT(table, HasSubstr("nearest"));
  EXPECT_THAT(table, HasSubstr(" 1.00 "));
  EXPECT_THAT(table, HasSubstr("nic=2GB/s"));
  // Three wait for 1.1 s where two waited for 1.0 and 1.1.
  EXPECT_THAT(table, HasSubstr(" 1.57 "));
}

TEST(ScenarioReportTest, TheDetailsSayWhatWasWaitedForAndWhatWentWhere) {
  const std::string text = ScenarioDetails(RunOf(ScenarioPolicy::kNearest, "1GB/s").result);
  EXPECT_THAT(text, HasSubstr("WAITS FOR"));
  EXPECT_THAT(text, HasSubstr("reader-2/0"));
  EXPECT_THAT(text, HasSubstr("step-1"));
  EXPECT_THAT(text, HasSubstr("2.00 GB"));
  EXPECT_THAT(text, HasSubstr("host t up"));
}

TEST(ScenarioReportTest, TheObjectHasEveryRunAndRank) {
  const nlohmann::json object =
      ScenarioToJson({RunOf(ScenarioPolicy::kNearest, "1GB/s")}, /*ranks=*/true);
  EXPECT_EQ(object["scenario"], "s.scenario");
  EXPECT_EQ(object["violations"], 0);
  const nlohmann::json& run = object["runs"][0];
  EXPECT_EQ(run["policy"], "nearest");
  EXPECT_EQ(run["variables"]["nic"], "1GB/s");
  EXPECT_EQ(run["ranks"].size(), 3u);
  EXPECT_EQ(run["ranks"][0]["bytes_sent"], 1'000'000'000u);
  EXPECT_EQ(run["ranks"][2]["bytes_from"]["reader-1/0"], 1'000'000'000u);
  EXPECT_NEAR(run["versions"][0]["last_reader_seconds"].get<double>(), 1.1, 0.01);
  const nlohmann::json& stall = run["rollout_stall"];
  double by_cause = 0;
  for (const auto& [cause, seconds] : stall["by_cause"].items()) by_cause += seconds.get<double>();
  EXPECT_NEAR(by_cause, stall["seconds"].get<double>(), 1e-6);
}

TEST(ScenarioReportTest, ARunInWhichNoUpdateMovedHasNoTimes) {
  ScenarioRunReport run = RunOf(ScenarioPolicy::kNearest, "1GB/s");
  run.result.reads.clear();
  run.result.versions[0].groups = 0;
  run.result.updates_failed = 2;
  EXPECT_EQ(ResultCells(run.result, "-")[4], "-");
  EXPECT_EQ(ResultCells(run.result, "-")[5], "-");
  const nlohmann::json object = ScenarioToJson({run}, /*ranks=*/false)["runs"][0];
  EXPECT_TRUE(object["slowest_update_seconds"].is_null());
  EXPECT_TRUE(object["last_update_seconds"].is_null());
  EXPECT_TRUE(object["versions"][0]["slowest_update_seconds"].is_null());
}

TEST(ScenarioReportTest, EqualRunsGiveEqualReports) {
  const auto report = [] {
    return ScenarioToJson({RunOf(ScenarioPolicy::kNearest, "1GB/s")}, /*ranks=*/true).dump();
  };
  EXPECT_EQ(report(), report());
}

}  // namespace
}  // namespace th
