// `th bench fanout` as it is run, small: every key, and the bounds that hold on any machine.
// Skipped where there are no virtual hosts.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "th/processes/virtual_hosts.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Why this machine has no virtual hosts, as the command says; empty when it did not say so.
std::string Missing(const ProgramRun& run) {
  const nlohmann::json report = run.json();
  if (!report.is_object() || !report.contains("error")) return "";
  const std::string message = report["error"].value("message", "");
  return absl::StartsWith(message, kNoVirtualHosts) ? message : "";
}

ProgramRun RunFanout(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {Th(), "bench", "fanout", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunProgram(arguments);
}

TEST(FanoutTest, MeasuresBothPoliciesBesideOneFlowAndNeverBeatsTheLinks) {
  const ProgramRun run =
      RunFanout({"--hosts", "2", "--rate", "400mbit", "--bytes", "16MiB", "--rounds", "2"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["hosts"], 2);
  EXPECT_EQ(report["rate"], "400mbit");
  EXPECT_EQ(report["verified"], true);
  EXPECT_EQ(report["rounds"], 2);
  EXPECT_THAT(run.errors, HasSubstr("direct, round 2 of 2: the last reader after "));
  EXPECT_THAT(run.lines, SizeIs(1)) << "progress is on stderr";
  const double bytes = report["bytes"];
  EXPECT_NEAR(bytes, 16 << 20, 4096);  // of so many whole tensors
  // No link lets more pass than its rate, but for a first burst.
  const double fastest = 0.9 * bytes / 50e6;
  EXPECT_GE(report["ideal_seconds"], fastest);
  EXPECT_GE(report["ours_seconds"], fastest);
  EXPECT_GE(report["direct_seconds"], 2 * fastest) << "both over one uplink";
  EXPECT_GT(report["ours_ratio"], 0.9);
  EXPECT_GT(report["direct_over_ours"], 0);
  EXPECT_GE(report["ours_copies_sent"], 1.0);
  EXPECT_LE(report["ours_copies_sent"], 1.5);
  EXPECT_GE(report["direct_copies_sent"], 2.0);
  for (const char* arm : {"ours", "direct"}) {
    EXPECT_THAT(report[absl::StrCat(arm, "_seconds_of_rounds")], SizeIs(2));
    EXPECT_THAT(report[absl::StrCat(arm, "_per_reader_seconds")], SizeIs(2));
    EXPECT_THAT(report[absl::StrCat(arm, "_sources")], SizeIs(2));
  }
  EXPECT_EQ(report["direct_sources"]["reader-2/0"].size(), 1u);
  EXPECT_TRUE(report["direct_sources"]["reader-2/0"].contains("trainer-1/0")) << report.dump();
}

TEST(FanoutTest, TwoHoldersAreMeasuredBesideOne) {
  const ProgramRun run =
      RunFanout({"--hosts", "1", "--rate", "400mbit", "--holders", "2", "--holder-rate", "200mbit",
                 "--bytes", "16MiB", "--rounds", "1", "--policies", "ours"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["holders"], 2);
  EXPECT_EQ(report["holder_rate"], "200mbit");
  EXPECT_GE(report["one_holder_seconds"], 0.9 * report["bytes"].get<double>() / 25e6);
  EXPECT_GT(report["one_holder_over_ours"], 0);
  EXPECT_FALSE(report.contains("direct_seconds"));
}

TEST(FanoutTest, UnequalLinksAreMeasuredEachBesideItsOwnFlow) {
  const ProgramRun run = RunFanout({"--rates", "400mbit*1,100mbit*2", "--bytes", "16MiB",
                                    "--rounds", "1", "--policies", "ours"});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["hosts"], 3);
  EXPECT_EQ(report["holder_rate"], "400mbit") << "the fastest of them";
  EXPECT_EQ(report["verified"], true);
  const double bytes = report["bytes"];
  // The slow links let no more pass than their rate, and the fast ones are not held to it.
  const double fastest_over_slow = 0.9 * bytes / 12.5e6;
  const nlohmann::json &fast = report["classes"][0], &slow = report["classes"][1];
  EXPECT_EQ(fast["rate"], "400mbit");
  EXPECT_LT(fast["flow_seconds"], fastest_over_slow);
  EXPECT_EQ(slow["hosts"], 2);
  EXPECT_GE(slow["flow_seconds"], fastest_over_slow);
  EXPECT_EQ(report["ideal_seconds"], slow["flow_seconds"]);
  EXPECT_GE(report["ours_classes"][1]["slowest_reader_seconds"], fastest_over_slow);
  EXPECT_GT(report["ours_classes"][0]["ratio"], 0.9);
  // A fast reader may be the last one: it may read from a slow one.
  EXPECT_EQ(std::max(report["ours_classes"][0]["slowest_reader_seconds"].get<double>(),
                     report["ours_classes"][1]["slowest_reader_seconds"].get<double>()),
            report["ours_seconds"]);
}

class DisturbedFanoutTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DisturbedFanoutTest, TheOthersAreReRoutedAndHaveTheRightBytes) {
  const ProgramRun run =
      RunFanout({"--hosts", "3", "--rate", "100mbit", "--bytes", "16MiB", "--rounds", "1",
                 "--policies", "ours", "--disturb", GetParam()});
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["disturb"], GetParam());
  EXPECT_EQ(report["verified"], true);
  EXPECT_GT(report["noticed_seconds"], 0);
  EXPECT_LT(report["noticed_seconds"], 2.0);  // 0.5 on a machine that is not busy
  EXPECT_GE(report["delay_seconds"], 0);
  EXPECT_LT(report["delay_seconds"], 4.0);
  EXPECT_TRUE(report["reread_bytes"].is_number_unsigned());
  EXPECT_GE(report["disturbed_dependents"][0], 1);
  EXPECT_GE(report["disturbed_at_fraction"][0], 0.4);
}

INSTANTIATE_TEST_SUITE_P(Disturbances, DisturbedFanoutTest,
                         ::testing::Values("stop", "cut", "leave"));

// A signal ends it, and nothing of it stays.
class InterruptedFanoutTest : public ::testing::TestWithParam<int> {};

TEST_P(InterruptedFanoutTest, LeavesNoFolderBehind) {
  const std::string scratch = FreshFolder("scratch");
  RunningProgram bench({"/usr/bin/env", "TMPDIR=" + scratch, Th(), "bench", "fanout", "--json",
                        "--bytes", "16MiB", "--hosts", "2", "--rounds", "1000"});
  while (std::filesystem::is_empty(scratch) && !bench.process().HasEnded()) {
  }
  bench.process().Signal(GetParam());
  const ProgramRun run = bench.Finish();
  if (const std::string missing = Missing(run); !missing.empty()) GTEST_SKIP() << missing;
  EXPECT_EQ(run.status, 130) << run.errors;
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedFanoutTest, ::testing::Values(SIGINT, SIGTERM));

}  // namespace
}  // namespace th
