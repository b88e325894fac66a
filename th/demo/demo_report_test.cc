#include "th/demo/demo_report.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

DemoReport GoodReport() {
  DemoReport report;
  report.deliveries = {
      {.version = "1 (#1.1)", .shard_bytes = 100, .trainer_bytes_sent = 120},
      {.version = "2 (#1.2)", .shard_bytes = 100, .trainer_bytes_sent = 200, .with_kill = true}};
  report.transfers = {{.version = "1 (#1.1)",
                       .reader = "rollout-1/0",
                       .source = "trainer/0",
                       .transport = "tcp",
                       .bytes = 50'000'000,
                       .active = absl::Milliseconds(500)},
                      {.version = "1 (#1.1)",
                       .reader = "rollout-2/0",
                       .source = "rollout-1/0",
                       .transport = "tcp",
                       .bytes = 150'000'000,
                       .active = absl::Seconds(1),
                       .reroutes = 2}};
  report.readers = {"rollout-1/0", "rollout-2/0"};
  report.shards_compared = 4;
  report.tensors_compared = 40;
  report.killed_at_fraction = 0.4;
  report.killed_group = "rollout-1";
  report.survivors_complete = true;
  report.rejoined = true;
  report.rerouted_bytes = 30'000'000;
  report.late_joiner_sources = {"rollout-1/0"};
  report.stall = absl::Milliseconds(2500);
  return report;
}

TEST(DemoReportTest, CountsCopiesPerDelivery) {
  EXPECT_DOUBLE_EQ(TrainerCopies(GoodReport().deliveries[0]), 1.2);
  EXPECT_DOUBLE_EQ(TrainerCopies({.version = "empty"}), 0);
}

TEST(DemoReportTest, CountsAsRelayedWhatDidNotComeFromTheTrainer) {
  EXPECT_DOUBLE_EQ(RelayedFraction(GoodReport()), 0.75);
  EXPECT_DOUBLE_EQ(RelayedFraction({}), 0);
  DemoReport alike = GoodReport();  // a rollout group whose name begins like the trainer's
  alike.transfers[0].source = "trainer-2/0";
  EXPECT_DOUBLE_EQ(RelayedFraction(alike), 1);
}

TEST(DemoReportTest, AGoodRunHasNoFaultAndSaysSo) {
  EXPECT_THAT(Faults(GoodReport()), IsEmpty());
  EXPECT_TRUE(Verified(GoodReport()));
  EXPECT_TRUE(RecoveredFromKill(GoodReport()));
  EXPECT_THAT(Verdict(GoodReport()),
              StartsWith("GOOD: 2 deliveries to 2 readers; 40 tensors in 4 shards"));
}

TEST(DemoReportTest, EveryFaultIsInTheVerdict) {
  const std::vector<std::pair<std::function<void(DemoReport&)>, std::string>> cases = {
      {[](DemoReport& r) { r.error = "the server is gone"; }, "the server is gone"},
      {[](DemoReport& r) { r.differences = {"rollout-1/0: tensor w differs"}; },
       "tensor w differs"},
      {[](DemoReport& r) { r.shards_compared = 0; }, "nothing was compared"},
      {[](DemoReport& r) { r.rejoined = false; }, "not recovered"},
      {[](DemoReport& r) { r.survivors_complete = false; }, "not recovered"},
      {[](DemoReport& r) { r.late_joiner_sources.push_back("trainer/1"); }, "late joiner read"},
      {[](DemoReport& r) { r.late_joiner_sources.clear(); }, "no late joiner was filled"},
      {[](DemoReport& r) { r.bytes_held_beyond_live = 5'000'000; }, "5.00 MB of weights"},
  };
  for (const auto& [spoil, expected] : cases) {
    DemoReport report = GoodReport();
    spoil(report);
    EXPECT_THAT(Verdict(report), StartsWith("FAILED: "));
    EXPECT_THAT(Verdict(report), HasSubstr(expected));
  }
}

TEST(DemoReportTest, OnlyContentAndTheEndOfTheSceneDecideWhetherItIsVerified) {
  DemoReport report = GoodReport();
  report.rejoined = false;
  EXPECT_TRUE(Verified(report));
  report.differences = {"x"};
  EXPECT_FALSE(Verified(report));
  report = GoodReport();
  report.error = "x";
  EXPECT_FALSE(Verified(report));
}

TEST(DemoReportTest, AKillThatCouldNotBeSeenIsNoFaultButIsSaid) {
  DemoReport report = GoodReport();
  report.killed_at_fraction.reset();
  report.survivors_complete = report.rejoined = false;
  EXPECT_THAT(Faults(report), IsEmpty());
  EXPECT_FALSE(RecoveredFromKill(report));
  EXPECT_THAT(Summary(report), HasSubstr("nobody was killed"));
}

TEST(DemoReportTest, TheTableHasARowATransfer) {
  EXPECT_EQ(TransferTable(GoodReport()),
            "VERSION   READER       SOURCE       BY     BYTES  SECONDS   GB/S  RE-ROUTES\n"
            "1 (#1.1)  rollout-1/0  trainer/0    tcp  50.0 MB     0.50  0.100          0\n"
            "1 (#1.1)  rollout-2/0  rollout-1/0  tcp   150 MB     1.00  0.150          2\n");
}

TEST(DemoReportTest, TheSummaryTellsCopiesRelaysKillAndStall) {
  const std::string summary = Summary(GoodReport());
  EXPECT_THAT(summary, HasSubstr("1.20 for 1 (#1.1), 2.00 for 2 (#1.2) with the kill"));
  EXPECT_THAT(summary, HasSubstr("75 % of all bytes"));
  EXPECT_THAT(summary,
              HasSubstr("rollout-1 was killed at 40 %; survivors complete, the group rejoined"));
  EXPECT_THAT(summary, HasSubstr("30.0 MB fetched elsewhere"));
  EXPECT_THAT(summary, HasSubstr("2.5 s, summed"));
}

TEST(DemoReportTest, TheJsonHasEveryDocumentedKey) {
  const nlohmann::json json = ToJson(GoodReport());
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(
      keys, UnorderedElementsAre("verified", "versions", "readers", "trainer_copies_sent",
                                 "relayed_fraction", "recovered_from_kill", "killed_at_fraction",
                                 "rerouted_bytes", "late_joiner_sources", "bytes_held_beyond_live",
                                 "stall_seconds", "transfers"));
  EXPECT_EQ(json["versions"].size(), json["trainer_copies_sent"].size());
  EXPECT_EQ(json["trainer_copies_sent"][1], 2.0);
  EXPECT_EQ(json["killed_at_fraction"], 0.4);
  EXPECT_EQ(json["transfers"][1]["source"], "rollout-1/0");
  EXPECT_EQ(json["transfers"][1]["reroutes"], 2);
  EXPECT_EQ(json["transfers"][0]["seconds"], 0.5);
}

TEST(DemoReportTest, TheJsonNamesFaultsOnlyWhereThereAreSome) {
  EXPECT_FALSE(ToJson(GoodReport()).contains("faults"));
  DemoReport report = GoodReport();
  report.killed_at_fraction.reset();
  report.error = "cut short";
  const nlohmann::json json = ToJson(report);
  EXPECT_THAT(json["faults"], ElementsAre("cut short"));
  EXPECT_TRUE(json["killed_at_fraction"].is_null());
  EXPECT_EQ(json["verified"], false);
}

}  // namespace
}  // namespace th
