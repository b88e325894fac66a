#include "th/scenario_runs/model_check.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/scenario_runs/link_model.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Points whose real seconds are what the simulator says under `truth`.
ModelCheck RunUnder(const ModelCheckOptions& options, const LinkModel& truth) {
  ModelCheck check{.rate = options.rate, .bytes = options.bytes, .rounds = options.rounds};
  check.points = ModelPoints(options);
  check.flow_seconds =
      static_cast<double>(options.bytes) / (static_cast<double>(options.rate) * truth.goodput);
  for (ModelPoint& point : check.points) {
    auto scenario = ParseScenario(point.name, point.scenario, {});
    EXPECT_OK(scenario) << point.scenario;
    const auto result =
        RunScenario(OnRealLinks(*std::move(scenario), truth), ScenarioPolicy::kNearest, {});
    EXPECT_OK(result);
    point.real_seconds = {LastReaderSeconds(*result, point.without)};
  }
  return check;
}

TEST(ModelCheckTest, FitsWithFewReadersAndPredictsMoreTroubleAndTwoSites) {
  const ModelCheckOptions options{.bytes = 16 << 20, .rounds = 1, .predicted_hosts = {8}};
  std::vector<std::string> fitted, predicted;
  for (const ModelPoint& point : ModelPoints(options)) {
    (point.fitted ? fitted : predicted).push_back(point.name);
  }
  EXPECT_THAT(fitted, ElementsAre("1 reader", "2 readers", "4 readers"));
  EXPECT_THAT(predicted, ElementsAre("8 readers", HasSubstr("stopped"), HasSubstr("killed"),
                                     HasSubstr("two sites")));
}

TEST(ModelCheckTest, PredictsItselfAndSaysHowFarOffItIs) {
  const ModelCheckOptions options{.bytes = 16 << 20, .rounds = 1, .predicted_hosts = {8}};
  ModelCheck check = RunUnder(options, {.goodput = 0.95, .hop_bytes = 300 << 10});
  ASSERT_OK(Predict(options, &check));
  EXPECT_LT(check.Within(), 0.03);
  EXPECT_LT(check.WithinFitted(), 0.03);

  // A predicted point that is off shows, and changes neither the fit nor another point.
  const LinkModel model = check.model;
  check.points[3].real_seconds = {check.points[3].simulated_seconds / 1.25};
  ASSERT_OK(Predict(options, &check));
  EXPECT_EQ(check.model.hop_bytes, model.hop_bytes);
  EXPECT_NEAR(check.Within(), 0.25, 1e-9);
  EXPECT_LT(check.WithinFitted(), 0.03);
}

TEST(ModelCheckTest, ReportsRealAndSimulatedOfEachPoint) {
  ModelCheck check{.rate = 31'250'000, .bytes = 1 << 20, .rounds = 3, .flow_seconds = 2};
  check.points = {{.name = "1 reader", .fitted = true, .real_seconds = {2}, .simulated_seconds = 2},
                  {.name = "8 readers", .real_seconds = {4, 2, 8}, .simulated_seconds = 3}};
  const nlohmann::json report = ToJson(check);
  EXPECT_EQ(report["points"][1]["kind"], "predicted");
  EXPECT_EQ(report["points"][1]["real_seconds"], 4);
  EXPECT_EQ(report["points"][1]["difference"], -0.25);
  EXPECT_EQ(report["within"], 0.25);
  EXPECT_EQ(report["within_fitted"], 0);
  EXPECT_THAT(TextOf(check), HasSubstr("-25.0 %"));
}

}  // namespace
}  // namespace th
