// Whether the scenario files that are named on the command line can be read and run.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenario.h"
#include "th/simulator/scenario_run.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::th::testing::IsOk;

std::vector<std::string>& Files() {
  static auto& files = *new std::vector<std::string>;
  return files;
}

TEST(ScenarioFilesTest, EveryFileRunsAndEveryVersionReachesItsReaders) {
  ASSERT_THAT(Files(), Not(IsEmpty()));
  for (const std::string& file : Files()) {
    SCOPED_TRACE(file);
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    const auto scenario = ParseScenario(file, text.str(), {});
    ASSERT_THAT(scenario, IsOk());
    const auto result = RunScenario(*scenario, ScenarioPolicy::kNearest, {});
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->violations, IsEmpty());
    EXPECT_EQ(result->versions.size(), scenario->training.steps);
    for (const VersionResult& version : result->versions) EXPECT_GT(version.groups, 0u);
    EXPECT_GT(result->RolloutStall().total(), absl::ZeroDuration());
  }
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  th::Files().assign(argv + 1, argv + argc);
  return RUN_ALL_TESTS();
}
