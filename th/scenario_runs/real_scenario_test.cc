#include "th/scenario_runs/real_scenario.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr char kFleet[] = R"(
site a
site b
link a b rate=10MB/s latency=15ms
hosts t site=b up=100MB/s down=100MB/s inside=1GB/s
hosts n site=b up=50MB/s down=50MB/s inside=1GB/s
hosts f site=a up=20MB/s down=20MB/s inside=1GB/s
weights rank_bytes=16MiB segment=256KiB
group trainer role=trainer ranks=1 on=t
group near role=rollout ranks=1 on=n
group far role=rollout ranks=1 on=f
train trainer first=1s
update near after=publish
)";

absl::StatusOr<RealPlan> PlanOf(const std::string& more) {
  const auto scenario = ParseScenario("fleet", absl::StrCat(kFleet, more), {});
  if (!scenario.ok()) return scenario.status();
  return PlanRealScenario(*scenario);
}

TEST(RealScenarioTest, PutsTheServersSiteFirstAndTheOtherBehindTheLink) {
  ASSERT_OK_AND_ASSIGN(const RealPlan plan, PlanOf("end 5s\n"));
  EXPECT_THAT(plan.rates, ElementsAre(kFastestLink, 50'000'000, 100'000'000, 20'000'000));
  EXPECT_EQ(plan.host_of.at("n"), 1u);
  EXPECT_EQ(plan.host_of.at("f"), 3u);
  ASSERT_TRUE(plan.second_site.has_value());
  EXPECT_EQ(plan.second_site->first_host, 3u);
  EXPECT_EQ(plan.second_site->rate, 10'000'000u);
  EXPECT_EQ(plan.second_site->latency, absl::Milliseconds(15));
}

TEST(RealScenarioTest, RefusesWhatOnlyTheSimulatorHasAndNamesIt) {
  const struct {
    const char* more;
    const char* says;
  } kCases[] = {
      {"end 5s\nrack_uplinks rate=1GB/s\n", "rack_uplinks"},
      {"end 5s\nscheduler max_chain=3\n", "scheduler"},
      {"end 5s\nat 2s crash near\n", "crash"},
      {"end 5s\nat 2s preempt near notice=1s\n", "preempt"},
      {"end 5s\nat 2s slow n to=50% side=up\n", "one side"},
      {"end 1h\n", "1h"},
      {"end 5s\nhosts x site=a up=1MB/s down=2MB/s inside=1GB/s\ngroup y role=spot ranks=1 on=x\n",
       "as fast as"},
      {"end 5s\nhosts x site=a nics=2 up=1MB/s down=1MB/s inside=1GB/s\n"
       "group y role=spot ranks=1 on=x\n",
       "adapters"},
      {"end 5s\nhosts x site=a up=9GB/s down=9GB/s inside=1GB/s\ngroup y role=spot ranks=1 on=x\n",
       "10Gbps"},
      {"end 5s\nhosts x site=a count=70 up=1MB/s down=1MB/s inside=1GB/s\n"
       "group y role=spot ranks=1 count=70 on=x\n",
       "73 ranks"},
      {"end 5s\nsite c\nlink a c rate=1GB/s latency=1ms\nlink b c rate=1GB/s latency=1ms\n"
       "hosts x site=c up=1MB/s down=1MB/s inside=1GB/s\ngroup y role=spot ranks=1 on=x\n",
       "3 sites"}};
  for (const auto& c : kCases) {
    EXPECT_THAT(PlanOf(c.more), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.says)))
        << c.more;
  }
}

}  // namespace
}  // namespace th
