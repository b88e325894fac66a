// The scenario files that are named on the command line can be read and run.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/scenario_run.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::th::testing::IsOk;

std::vector<std::string>& Files() {
  static auto& files = *new std::vector<std::string>;
  return files;
}

std::string TextOf(const std::string& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(ScenarioFilesTest, EveryFileRunsAndEveryVersionReachesItsReaders) {
  ASSERT_THAT(Files(), Not(IsEmpty()));
  for (const std::string& file : Files()) {
    SCOPED_TRACE(file);
    const auto scenario = ParseScenario(file, TextOf(file), {});
    ASSERT_THAT(scenario, IsOk());
    const auto result = RunScenario(*scenario, ScenarioPolicy::kNearest, {});
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->violations, IsEmpty());
    EXPECT_EQ(result->versions.size(), scenario->training.steps);
    for (const VersionResult& version : result->versions) EXPECT_GT(version.groups, 0u);
    EXPECT_GT(result->RolloutStall().total(), absl::ZeroDuration());
  }
}

// The GPUs' stall of the run, of trainer and rollouts, with the file's variable `stage` as given.
absl::Duration StallWithStage(const std::string& file, const std::string& stage) {
  const auto scenario = ParseScenario(file, TextOf(file), {{"stage", stage}});
  EXPECT_THAT(scenario, IsOk());
  if (!scenario.ok()) return absl::InfiniteDuration();
  const auto result = RunScenario(*scenario, ScenarioPolicy::kNearest, {});
  EXPECT_THAT(result, IsOk());
  if (!result.ok()) return absl::InfiniteDuration();
  EXPECT_THAT(result->violations, IsEmpty());
  return result->TrainerStall().total() + result->RolloutStall().total();
}

// Readers that stage stall for the apply alone: a copy in memory, where without staging they wait
// for a link.
TEST(ScenarioFilesTest, StagingTakesNearlyAllStallOfTheStandaloneLab) {
  const auto lab = std::find_if(Files().begin(), Files().end(), [](const std::string& file) {
    return absl::EndsWith(file, "/standalone_staging_lab.scenario");
  });
  ASSERT_NE(lab, Files().end());
  const absl::Duration staged = StallWithStage(*lab, "yes"), waited = StallWithStage(*lab, "no");
  EXPECT_GT(staged, absl::ZeroDuration());
  EXPECT_LE(staged, 0.05 * waited) << staged << " of " << waited;
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  th::Files().assign(argv + 1, argv + argc);
  return RUN_ALL_TESTS();
}
