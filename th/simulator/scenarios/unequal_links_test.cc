// Fleets whose hosts have links of unequal rates: what a class of readers takes beside one flow
// over a link of that class.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/scenario_run.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::th::testing::IsOk;

// Readers whose links have the same rate, each way, and that ask together.
struct Class {
  std::string name;
  int readers = 0;
  double megabytes_a_second = 0;
  std::string asks = "";  // after the publication, as `delay=1s`
};

struct Links {
  std::vector<Class> classes;  // in the order in which they join and ask
  double publisher = 1000;     // MB/s
  int megabytes = 2000;
  int segments = 256;
  int versions = 5;
  std::string events = "";
};

std::string ScenarioOf(const Links& links, int seed) {
  std::string text =
      absl::StrCat("seed ", seed, "\nsite here\nlatency same_site=100us jitter=200us\n",
                   "hosts t site=here up=", links.publisher, "MB/s down=", links.publisher,
                   "MB/s inside=10GB/s\n");
  for (const Class& one : links.classes) {
    absl::StrAppend(&text, "hosts ", one.name, "h count=", one.readers + 1,
                    " site=here up=", one.megabytes_a_second, "MB/s down=", one.megabytes_a_second,
                    "MB/s inside=10GB/s\n");
  }
  absl::StrAppend(&text, "weights rank_bytes=", links.megabytes,
                  "MB segment=", links.megabytes * 1000 / links.segments,
                  "KB\ngroup trainer role=trainer ranks=1 on=t\n");
  for (const Class& one : links.classes) {
    absl::StrAppend(&text, "group ", one.name, " role=rollout ranks=1 count=", one.readers,
                    " on=", one.name, "h\n");
  }
  absl::StrAppend(&text, "train trainer first=1s step=200s write=1s steps=", links.versions, "\n");
  for (const Class& one : links.classes) {
    absl::StrAppend(&text, "update ", one.name, " after=publish ", one.asks, "\n");
  }
  return absl::StrCat(text, links.events, "\nend ", 200 * (links.versions + 1), "s\n");
}

// The class of the host whose link changes: only the others are held to a bound.
constexpr char kChanging[] = "changing";

// By class, and then by version: the slowest read, over one flow to that class.
using Ratios = std::map<std::string, std::vector<double>>;

// Readers that ask at once come to the server in an order that the seed decides, and so does how
// much is learned by each fill. `ratios` are raised to those of this seed.
void RaiseTo(const Links& links, int seed, Ratios& ratios) {
  const auto scenario = ParseScenario("links.scenario", ScenarioOf(links, seed), {});
  EXPECT_THAT(scenario, IsOk());
  auto result = RunScenario(*scenario, ScenarioPolicy::kNearest, {});
  EXPECT_THAT(result, IsOk());
  EXPECT_THAT(result->violations, IsEmpty());
  EXPECT_EQ(result->updates_failed, 0u);
  for (const Class& one : links.classes) {
    const double rate = std::min(one.megabytes_a_second, links.publisher);
    std::vector<double>& slowest = ratios[one.name];
    slowest.resize(links.versions);
    for (const ReadResult& read : result->reads) {
      if (read.group != one.name && !read.group.starts_with(absl::StrCat(one.name, "-"))) continue;
      const int version = std::stoi(read.label.substr(read.label.rfind('-') + 1)) - 1;
      const double seconds = absl::ToDoubleSeconds(read.ended - read.began);
      slowest[version] = std::max(slowest[version], seconds * rate / links.megabytes);
    }
  }
}

struct Case {
  std::string name;
  Links links;
  int learned_by = 3;     // the version from which on every class is within `allowed` of one flow
  double allowed = 1.10;  // a chain's hops, and a move or two
  double first = 5;       // of the first version, whose fill pays for what is learned
};

std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class UnequalLinksTest : public ::testing::TestWithParam<Case> {};

TEST_P(UnequalLinksTest, EveryClassTakesWhatOneFlowOverItsLinkDoes) {
  constexpr int kSeeds = 6;
  Ratios worst;
  for (int seed = 1; seed <= kSeeds; ++seed) RaiseTo(GetParam().links, seed, worst);
  for (const auto& [name, ratios] : worst) {
    std::string row = absl::StrFormat("%-24s %-6s", GetParam().name, name);
    for (double ratio : ratios) absl::StrAppendFormat(&row, " %6.3f", ratio);
    std::cout << row << "\n";
    if (name == kChanging) continue;
    EXPECT_LE(ratios[0], GetParam().first) << row;
    for (int version = GetParam().learned_by; version <= GetParam().links.versions; ++version) {
      EXPECT_LE(ratios[version - 1], GetParam().allowed) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fleets, UnequalLinksTest,
    ::testing::Values(
        Case{"TwoOfEightSlow", {.classes = {{"slow", 2, 250}, {"fast", 6, 1000}}}, 4},
        Case{"AFirstFillLearnsByItsMiddle",
             {.classes = {{"slow", 2, 31.25}, {"fast", 6, 125}},
              .publisher = 125,
              .megabytes = 134,
              .segments = 512},
             3,
             1.10,
             3},
        Case{"OneSlowAmongTwelve",
             {.classes = {{"a", 5, 1000}, {"slow", 1, 100}, {"b", 6, 1000}}},
             3,
             1.10,
             11},
        Case{"HalfOfThemSlow",
             {.classes = {{"a", 2, 1000}, {"slow", 6, 250}, {"b", 4, 1000}}, .versions = 7},
             5},
        Case{"ThreeRates",
             {.classes = {{"slow", 2, 200}, {"fast", 3, 1000}, {"mid", 3, 500}, {"more", 2, 1000}},
              .versions = 10},
             5},
        Case{"ASlowOneJoinsBefore",
             {.classes = {{"slow", 1, 250}, {"fast", 5, 1000, "delay=300ms"}}}},
        Case{"AllSlowOnesJoinBefore",
             {.classes = {{"slow", 3, 250}, {"fast", 5, 1000, "delay=500ms"}}, .versions = 5},
             5},
        Case{"SlowOnesJoinLater",
             {.classes = {{"fast", 5, 1000}, {"slow", 3, 250, "delay=500ms"}}},
             1},
        Case{"TheOnlySlowOneIsThePublisher",
             {.classes = {{"a", 4, 1000}, {"b", 4, 1000}}, .publisher = 250},
             1},
        Case{"ASlowPublisherAndSlowerReaders",
             {.classes = {{"a", 3, 1000}, {"slow", 2, 100}, {"b", 3, 1000}}, .publisher = 250},
             3},
        Case{"AFastPublisher",
             {.classes = {{"slow", 2, 250}, {"fast", 6, 1000}}, .publisher = 4000}},
        Case{
            "ALongFillLearnsAtOnce",
            {.classes = {{"slow", 2, 250}, {"fast", 6, 1000}}, .megabytes = 8000, .segments = 1024},
            1,
            1.15},
        Case{"AShortFill",
             {.classes = {{"a", 3, 1000}, {"slow", 2, 250}, {"b", 3, 1000}},
              .megabytes = 500,
              .segments = 128}},
        Case{"EqualLinks", {.classes = {{"all", 8, 1000}}, .versions = 5}, 1, 1.06},
        Case{"EqualLinksOnceKnown", {.classes = {{"all", 8, 1000}}, .versions = 5}, 5, 1.035},
        Case{"ManyEqualLinks", {.classes = {{"all", 32, 1000}}, .segments = 1024}, 1, 1.09},
        Case{"ALinkSlowsDown",
             {.classes = {{"a", 3, 1000}, {kChanging, 1, 1000}, {"b", 5, 1000}},
              .versions = 4,
              .events = "at 200s slow changingh-1 to=25%"}},
        Case{"ALinkHeals",
             {.classes = {{"a", 3, 1000}, {kChanging, 1, 1000}, {"b", 5, 1000}},
              .versions = 5,
              .events = "at 0s slow changingh-1 to=25% for=500s"}}),
    NameOfCase);

}  // namespace
}  // namespace th
