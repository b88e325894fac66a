#include "th/simulator/scenarios/scenario.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

// Seven lines that are good; more may follow.
constexpr char kStart[] = R"(site east
site west
rack r1 site=east
hosts t site=east nics=2 up=2GB/s down=1GB/s inside=10GB/s
hosts h rack=r1 count=3 up=1GB/s down=1GB/s inside=10GB/s
weights rank_bytes=1GB shards=2 segment=100MB
group trainer role=trainer ranks=2 on=t per_host=2
)";
constexpr char kReaders[] = "group reader role=rollout ranks=2 count=3 on=h per_host=2\n";
constexpr char kTrain[] = "train trainer first=1s step=10s write=1s steps=3 drain=2s\n";
constexpr char kUpdate[] = "update reader after=publish\n";
constexpr char kEnd[] = "end 60s\n";

absl::StatusOr<Scenario> Parse(const std::string& text, const ScenarioOverrides& overrides = {}) {
  return ParseScenario("f.scenario", text, overrides);
}

TEST(ScenarioTest, ReadsWhichFamiliesStage) {
  const std::string fleet = absl::StrCat(kStart, kReaders, kTrain, kEnd);
  const auto stages = [&](const std::string& update) {
    const auto scenario = Parse(absl::StrCat(fleet, update));
    EXPECT_THAT(scenario, IsOk());
    return scenario.ok() && scenario->families[1].stages;
  };
  EXPECT_TRUE(stages("update reader after=publish stage=yes\n"));
  EXPECT_TRUE(stages("update reader every=1s stage=yes when_seeding=skip\n"));
  EXPECT_FALSE(stages("update reader after=publish stage=no\n"));
  EXPECT_FALSE(stages(kUpdate));
}

TEST(ScenarioTest, ACopyWhileSeedingIsRefusedBesideStaging) {
  const auto scenario = Parse(
      absl::StrCat(kStart, "group reader role=rollout ranks=2 count=3 on=h per_host=2 copies=1\n",
                   kTrain, "update reader after=publish when_seeding=copy stage=yes\n", kEnd));
  EXPECT_THAT(scenario, StatusIs(StatusCode::kInvalidArgument, HasSubstr("take skip")));
}

TEST(ScenarioTest, ReadsAFleetAndItsCourse) {
  const auto scenario = Parse(absl::StrCat("let slow=10% n=7\nseed $n\n", kStart, kReaders, kTrain,
                                           "update reader after=publish delay=50ms\n"
                                           "every 5s slow h-2 side=up to=$slow for=1s from=20s\n"
                                           "at 30s kill reader-2/1\n",
                                           kEnd));
  ASSERT_THAT(scenario, IsOk());
  EXPECT_EQ(scenario->seed, 7u);
  EXPECT_EQ(scenario->segments, 10u);
  EXPECT_EQ(scenario->segment_bytes, 100'000'000u);
  EXPECT_DOUBLE_EQ(scenario->fabric.hosts.at("t").up, 2e9);
  EXPECT_DOUBLE_EQ(scenario->fabric.hosts.at("h-3").down, 1e9);
  EXPECT_EQ(scenario->server_site, "east");
  ASSERT_EQ(scenario->families.size(), 2u);
  const ScenarioFamily& trainer = scenario->families[0];
  EXPECT_THAT(trainer.places[0][1].nics, ElementsAre("nic1"));
  const ScenarioFamily& readers = scenario->families[1];
  EXPECT_THAT(readers.groups, ElementsAre("reader-1", "reader-2", "reader-3"));
  EXPECT_EQ(readers.places[1][1].host, "h-2");
  EXPECT_EQ(readers.places[1][1].rack, "r1");
  EXPECT_EQ(scenario->training.steps, 3u);
  ASSERT_EQ(scenario->events.size(), 2u);
  EXPECT_EQ(scenario->events[0].at, absl::Seconds(20));
  EXPECT_EQ(scenario->events[0].every, absl::Seconds(5));
  EXPECT_EQ(scenario->events[0].side, LinkSide::kUp);
  EXPECT_DOUBLE_EQ(scenario->events[0].factor, 0.1);
  EXPECT_EQ(scenario->events[1].rank, 1u);
}

TEST(ScenarioTest, AnOverrideTakesThePlaceOfWhatIsLet) {
  const std::string text =
      absl::StrCat("let n=7\nseed $n\n", kStart, kReaders, kTrain, kUpdate, kEnd);
  const auto scenario = Parse(text, {{"n", "9"}});
  ASSERT_THAT(scenario, IsOk());
  EXPECT_EQ(scenario->seed, 9u);
  EXPECT_EQ(scenario->variables.at("n"), "9");
  EXPECT_THAT(std::string(Parse(text, {{"m", "9"}}).status().message()),
              HasSubstr("nothing is let be 'm' that could be set; known: n"));
}

// A line that cannot follow kStart: the error names the file and the line.
TEST(ScenarioTest, RefusesALineWithItsNumberAndReason) {
  const struct {
    std::string line, says;
  } cases[] = {
      {"frobnicate", "the statement 'frobnicate' is unknown; known: at, end, every, group"},
      {"seed 1\nseed 2", "'seed' is given twice"},
      {"end 0s", "the end must lie within 24h"},
      {"end 25h", "the end must lie within 24h"},
      {"end 5", "the end '5' needs a unit"},
      {"let", "let what?"},
      {"let a=1\nlet a=2", "'a' is let twice"},
      {"site east", "the site 'east' is given twice"},
      {"rack r1 site=east", "the rack 'r1' is given twice"},
      {"rack r2 site=moon", "there is no site 'moon' above"},
      {"rack_uplinks", "the key 'rate' is missing"},
      {"rack_uplinks rate=1GB/s\nrack_uplinks rate=1GB/s", "'rack_uplinks' is given twice"},
      {"link east moon rate=1GB/s latency=1ms", "there is no site 'moon'"},
      {"link east east rate=1GB/s latency=1ms", "a link joins two sites"},
      {"link east west rate=1GB/s", "the key 'latency' is missing"},
      {"link east west rate=1GB/s latency=1ms\nlink west east rate=1GB/s latency=1ms",
       "the link of 'west' and 'east' is given twice"},
      {"latency same_host=5", "needs a unit"},
      {"hosts t site=east up=1GB/s down=1GB/s inside=1GB/s", "the hosts 't' are given twice"},
      {"hosts h-1 site=east up=1GB/s down=1GB/s inside=1GB/s", "the host 'h-1' is given twice"},
      {"hosts x site=moon up=1GB/s down=1GB/s inside=1GB/s", "there is no site 'moon'"},
      {"hosts x rack=r9 up=1GB/s down=1GB/s inside=1GB/s", "there is no rack 'r9'"},
      {"hosts x site=east up=1GB/s down=1GB/s", "the key 'inside' is missing"},
      {"hosts x site=east up=1 down=1GB/s inside=1GB/s", "up '1' needs a unit"},
      {"hosts x site=east up=1GB/s down=1GB/s inside=1GB/s color=red",
       "the key 'color' is unknown; known: count, rack, site, nics, up, down, inside"},
      {"hosts x site=east count=19999 up=1GB/s down=1GB/s inside=1GB/s", "more than 20000 hosts"},
      {"weights rank_bytes=1GB segment=1MB", "'weights' is given twice"},
      {"scheduler max_chain=0", "not a whole number from 1"},
      {"server site=moon", "there is no site 'moon'"},
      {"group trainer role=rollout ranks=2 on=h", "the group 'trainer' is given twice"},
      {"group g role=boss ranks=2 on=h", "role 'boss' is unknown; known: trainer, rollout, spot"},
      {"group g role=rollout ranks=3 on=h", "3 ranks are no whole number of replicas of 2 shards"},
      {"group g role=rollout ranks=2 on=mars", "there are no hosts 'mars' above"},
      {"group g role=rollout ranks=4 on=h", "4 ranks do not fit on 3 hosts with 1 each"},
      {"group g role=rollout ranks=20000 on=h", "more than 20000 ranks"},
      {"group g role=rollout on=h", "the key 'ranks' is missing"},
      {"train reader first=1s", "there is no group 'reader' above"},
      {"train trainer", "the key 'first' is missing"},
      {"train trainer first=1s step=1s write=2s", "'write' is longer than 'step'"},
      {"train trainer first=1s step=0s write=0s steps=2", "'step' is nothing"},
      {"train trainer first=1s steps=2", "'steps' needs 'step'"},
      {"group g role=rollout ranks=2 on=h\ntrain g first=1s", "not one group with role=trainer"},
      {"update trainer after=publish", "a trainer publishes, it does not update"},
      {"update nobody after=publish", "there is no group 'nobody'"},
  };
  for (const auto& c : cases) {
    const auto lines = static_cast<int>(std::count(c.line.begin(), c.line.end(), '\n'));
    const absl::Status status = Parse(absl::StrCat(kStart, c.line, "\n")).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument)) << c.line;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(absl::StrCat("f.scenario:", 8 + lines, ": ")))
        << c.line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << c.line;
  }
}

TEST(ScenarioTest, RefusesAnEventOrUpdateThatCannotBe) {
  const struct {
    std::string line, says;
  } cases[] = {
      {"update reader", "the key 'after' is missing"},
      {"update reader after=lunch", "after 'lunch' is unknown; known: publish"},
      {"update reader every=0s", "'every' is less than 1ms"},
      {"update reader after=publish when_seeding=never",
       "when_seeding 'never' is unknown; known: wait, skip, copy"},
      {"update reader after=publish when_seeding=skip retry=0s", "'retry' is less than 1ms"},
      {"update reader every=1s when_seeding=skip retry=1s", "the key 'retry' is unknown"},
      {"update reader after=publish when_seeding=copy", "'reader' has no memory for copies"},
      {"update reader after=publish stage=perhaps", "stage 'perhaps' is unknown; known: no, yes"},
      {"group g role=rollout ranks=2 on=h copies=65", "not a whole number from 1 to 64"},
      {"update reader every=1s\nupdate reader every=1s", "the group's updates are given twice"},
      {"at noon kill reader", "the time 'noon' is not a number with a unit"},
      {"at 5s", "the event is missing"},
      {"at 5s explode reader", "the event 'explode' is unknown; known: join, update, leave"},
      {"at 5s kill", "whom is missing"},
      {"at 5s kill nobody", "there is no group 'nobody' above"},
      {"at 5s kill reader-4", "there is no group 'reader-4'"},
      {"at 5s kill reader-1/2", "'reader-1' has no rank '2'"},
      {"at 5s kill reader/0", "'reader' has no rank '0'"},
      {"at 5s update trainer", "groups of readers update"},
      {"at 5s update reader-1/0", "groups of readers update, whole ones"},
      {"at 5s stop reader-1", "the key 'for' is missing"},
      {"at 5s kill reader-1 for=1s", "the key 'for' is unknown"},
      {"at 5s cut mars for=1s", "there is no host 'mars' above"},
      {"at 5s cut h-1", "the key 'for' is missing"},
      {"at 5s slow h-1 to=2GB/s", "unknown unit"},
      {"at 5s slow h-1 to=10% side=left", "side 'left' is unknown; known: both, up, down"},
      {"at 5s slow_link east west to=10%", "the two sites have no link above"},
      {"at 5s replace trainer", "a trainer is not replaced"},
      {"at 5s replace nobody", "there is no group 'nobody'"},
      {"at 5s join reader 4", "'reader' has only 3 groups"},
      {"at 5s join reader", "the number of groups is missing"},
      {"at 5s join trainer 1", "the trainer is there from the start"},
      {"every 5s join reader 1 until=20s", "'join' happens 'at' a time"},
      {"every 0s kill reader until=20s", "'every' less than 1ms"},
      {"every 5s kill reader from=30s until=20s", "'from' is later than 'until'"},
      {"every 1ms kill reader", "more than 100000 events"},
      {"at 5s kill reader from=2s", "the key 'from' is unknown"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Parse(absl::StrCat(kStart, kReaders, c.line, "\n")).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument)) << c.line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << c.line;
  }
}

TEST(ScenarioTest, RefusesAFileThatMissesSomething) {
  const std::string far =
      "hosts w site=west up=1GB/s down=1GB/s inside=1GB/s\n"
      "group far role=spot ranks=2 on=w per_host=2\n";
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "f.scenario: no 'train': nobody publishes"},
      {absl::StrCat(kStart, kTrain, kEnd), "nobody reads"},
      {absl::StrCat(kStart, kReaders, kEnd), "nobody publishes"},
      {absl::StrCat(kStart, kReaders, kTrain), "no 'end'"},
      {absl::StrCat(kStart, kReaders, "group other role=trainer ranks=2 on=t per_host=2\n", kTrain,
                    kEnd),
       "the trainer 'other' does not train"},
      {absl::StrCat(kStart, far, kTrain, kEnd), "no 'link east west', and both have groups"},
      {absl::StrCat(kStart, kReaders, kTrain, "at 5s kill reader-1\n", kEnd),
       "no 'update' and no event that makes somebody update"},
      {absl::StrCat(kStart, kReaders, kTrain, kUpdate, "at 70s kill reader-1\n", kEnd),
       "f.scenario:11: the event at 1m10s would come after the end at 1m"},
      {absl::StrCat(kStart, kReaders, kTrain, kUpdate, "end 500ms\n"),
       "the first publish, at 1s, comes no sooner than the end at 500ms"},
      {"site s\nhosts a site=s up=1GB/s down=1GB/s inside=1GB/s\ngroup g role=spot ranks=1 on=a",
       "f.scenario:3: 'weights' must stand above"},
      {"weights rank_bytes=100GB segment=1MB", "a shard has 100000 segments, more than 16384"},
      {std::string(kMaxScenarioBytes + 1, '#'), "longer than 1048576 bytes"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Parse(c.text).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
  std::string sites;
  for (size_t i = 0; i <= kMaxScenarioSites; ++i) absl::StrAppend(&sites, "site s", i, "\n");
  EXPECT_THAT(std::string(Parse(sites).status().message()), HasSubstr("more than 64 sites"));
}

TEST(ScenarioTest, ARepeatedEventMayBeTurnedOffByATimeAfterTheEnd) {
  EXPECT_THAT(Parse(absl::StrCat(kStart, kReaders, kTrain, kUpdate,
                                 "every 10h replace reader until=20h\n", kEnd)),
              IsOk());
}

TEST(ScenarioTest, PoliciesHaveTheirNames) {
  for (ScenarioPolicy policy : kAllScenarioPolicies) {
    const auto parsed = ParseScenarioPolicy(ScenarioPolicyName(policy));
    ASSERT_THAT(parsed, IsOk());
    EXPECT_EQ(*parsed, policy);
  }
  EXPECT_THAT(std::string(ParseScenarioPolicy("luck").status().message()),
              HasSubstr("no policy 'luck'; known: nearest, direct"));
}

}  // namespace
}  // namespace th
