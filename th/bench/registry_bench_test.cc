#include "th/bench/registry_bench.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;

std::map<std::string, OperationCost> ByName(const RegistryMeasurement& measured) {
  std::map<std::string, OperationCost> costs;
  for (const OperationCost& cost : measured.operations) costs[cost.operation] = cost;
  return costs;
}

TEST(RegistryBenchTest, EveryOperationIsMeasuredAndAnswersWhoeverItConcerns) {
  ASSERT_OK_AND_ASSIGN(const RegistryMeasurement measured,
                       MeasureRegistry({.workers = 40, .ranks = 4, .samples = 200}));
  EXPECT_EQ(measured.workers, 40u);
  EXPECT_EQ(measured.groups, 10u);
  EXPECT_GT(measured.seconds, 0);
  std::map<std::string, OperationCost> costs = ByName(measured);
  EXPECT_EQ(costs.size(), 21u);
  for (const auto& [name, cost] : costs) {
    EXPECT_GE(cost.latency.samples, 50u) << name;
    EXPECT_GT(cost.latency.median, absl::ZeroDuration()) << name;
    EXPECT_LE(cost.latency.median, cost.latency.p99) << name;
    EXPECT_LE(cost.latency.p99, cost.latency.p999) << name;
    EXPECT_LE(cost.latency.p999, cost.latency.max) << name;
  }
  EXPECT_DOUBLE_EQ(costs["join"].messages, 1);
  EXPECT_DOUBLE_EQ(costs["publish_last"].messages, 4);  // the result, to every rank
  EXPECT_DOUBLE_EQ(costs["done_last"].messages, 4);
  EXPECT_LT(costs["done"].messages, 1);  // a source for a reader that waits for one, now and then
  EXPECT_DOUBLE_EQ(costs["update"].messages, 1);
  EXPECT_GE(costs["ready"].messages, 1);          // its source
  EXPECT_GE(costs["source_failed"].messages, 1);  // another one
  EXPECT_DOUBLE_EQ(costs["join_again"].messages, 4);
  EXPECT_DOUBLE_EQ(costs["heartbeat"].messages, 0);
}

// The oldest versions make room for new ones: a model has a thousand at most.
TEST(RegistryBenchTest, MoreVersionsThanAModelKeepsArePublished) {
  ASSERT_OK_AND_ASSIGN(const RegistryMeasurement measured,
                       MeasureRegistry({.workers = 4, .ranks = 2, .samples = 2'200}));
  EXPECT_GE(ByName(measured)["publish_last"].latency.samples, 1'100u);
}

TEST(RegistryBenchTest, WhoInterruptsItHearsSo) {
  EXPECT_EQ(MeasureRegistry({.workers = 8, .cancelled = [] { return true; }}).status().code(),
            absl::StatusCode::kCancelled);
}

RegistryMeasurement Measured() {
  return {.workers = 16,
          .groups = 2,
          .ranks = 8,
          .operations = {{.operation = "join",
                          .about = "a new worker joins",
                          .latency = {.samples = 3,
                                      .median = absl::Nanoseconds(1500),
                                      .p99 = absl::Microseconds(2),
                                      .p999 = absl::Microseconds(3),
                                      .max = absl::Microseconds(4)},
                          .messages = 1}},
          .seconds = 0.5};
}

TEST(RegistryBenchReportTest, SaysTheSameInJsonAndInText) {
  const nlohmann::json json = ToJson(Measured());
  EXPECT_EQ(json["workers"], 16);
  EXPECT_EQ(json["groups"], 2);
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["seconds"], 0.5);
  const nlohmann::json join = {{"samples", 3},   {"median_us", 1.5}, {"p99_us", 2.0},
                               {"p999_us", 3.0}, {"max_us", 4.0},    {"messages", 1.0}};
  EXPECT_EQ(json["operations"]["join"], join);
  EXPECT_THAT(TextOf(Measured()), HasSubstr("16 workers in 2 groups of 8"));
  EXPECT_THAT(TextOf(Measured()), HasSubstr("a new worker joins"));
}

}  // namespace
}  // namespace th
