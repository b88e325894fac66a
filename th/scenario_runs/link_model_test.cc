#include "th/scenario_runs/link_model.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {
namespace {

constexpr uint64_t kSegment = 256 << 10;
constexpr double kRate = 31.25e6;

Scenario FanoutScenario(uint32_t readers) {
  const std::string text = absl::StrCat(
      "site a\nsite b\nlink a b rate=10MB/s latency=5ms\n",
      "hosts t site=a up=31.25MB/s down=31.25MB/s inside=1GB/s\n", "hosts r site=a count=", readers,
      " up=31.25MB/s down=31.25MB/s inside=1GB/s\n", "weights rank_bytes=32MiB segment=256KiB\n",
      "group trainer role=trainer ranks=1 on=t\ngroup reader role=rollout ranks=1 count=", readers,
      " on=r\ntrain trainer first=1s\nupdate reader after=publish\nend 60s\n");
  auto scenario = ParseScenario("fanout", text, {});
  EXPECT_OK(scenario);
  return *std::move(scenario);
}

double SecondsOf(uint32_t readers, const LinkModel& model) {
  const auto result =
      RunScenario(OnRealLinks(FanoutScenario(readers), model), ScenarioPolicy::kNearest, {});
  EXPECT_OK(result);
  return LastReaderSeconds(*result, {});
}

TEST(LinkModelTest, FindsTheFiguresThatMadeTheTimesAndPredictsWhatItDidNotSee) {
  const LinkModel truth{.goodput = 0.93, .message = absl::Milliseconds(3), .hop_bytes = 400 << 10};
  FanoutTimes measured{.rate = kRate, .bytes = 32 << 20};
  measured.flow_seconds = measured.bytes / (kRate * truth.goodput);
  for (uint32_t readers : {1, 2, 4}) measured.seconds[readers] = SecondsOf(readers, truth);
  const LinkModel model = FitLinkModel(measured, kSegment, SecondsOf);
  EXPECT_NEAR(model.goodput, 0.93, 1e-6);
  EXPECT_NEAR(SecondsOf(1, model), measured.seconds[1], 0.01 * measured.seconds[1]);
  EXPECT_NEAR(SecondsOf(16, model), SecondsOf(16, truth), 0.02 * SecondsOf(16, truth));
  EXPECT_GT(model.hop_bytes, kSegment);
}

TEST(LinkModelTest, NoiseThatWouldNeedTimeTravelGivesTheLeastFigures) {
  FanoutTimes measured{.rate = kRate, .bytes = 32 << 20, .flow_seconds = 0.5};  // beyond the rate
  measured.seconds = {{1, 0.9}, {4, 0.8}};
  const LinkModel model = FitLinkModel(measured, kSegment, SecondsOf);
  EXPECT_EQ(model.goodput, 1.0);
  EXPECT_EQ(model.message, absl::Microseconds(10));
  EXPECT_EQ(model.hop_bytes, uint64_t{64} << 10);
}

TEST(LinkModelTest, AppliesToEveryLinkAndKeepsTheBytes) {
  const LinkModel model{.goodput = 0.5, .message = absl::Milliseconds(2), .hop_bytes = 1 << 20};
  const Scenario real = OnRealLinks(FanoutScenario(2), model);
  EXPECT_EQ(real.fabric.hosts.at("t").up, kRate / 2);
  EXPECT_EQ(real.fabric.site_links.at({"a", "b"}).rate, 5e6);
  EXPECT_EQ(real.fabric.site_links.at({"a", "b"}).latency, absl::Milliseconds(7));
  EXPECT_EQ(real.segments, 32u);
  EXPECT_EQ(real.shard_bytes, uint64_t{32} << 20);
}

TEST(LastReaderSecondsTest, IsTheMedianOfTheVersionsAfterTheFirstWithoutThoseLeftOut) {
  ScenarioResult result;
  const auto add = [&](const char* group, const char* label, double began, double ended) {
    result.reads.push_back({group, label, absl::Seconds(began), absl::Seconds(ended)});
  };
  EXPECT_EQ(LastReaderSeconds(result, {}), 0);
  result.versions = {{.label = "1"}, {.label = "2"}, {.label = "3"}};
  add("a", "1", 0, 9);
  add("a", "2", 10, 11);
  add("b", "2", 10.5, 12);
  add("a", "3", 20, 24);
  add("b", "3", 20, 29);
  EXPECT_EQ(LastReaderSeconds(result, {"b"}), 2.5);
  EXPECT_EQ(LastReaderSeconds(result, {}), 5.5);
  result.versions.resize(1);
  EXPECT_EQ(LastReaderSeconds(result, {}), 9);
}

}  // namespace
}  // namespace th
