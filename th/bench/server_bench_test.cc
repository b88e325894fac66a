// `th bench server` as it is run, small; and how its figures are told.
#include "th/bench/server_bench.h"

#include <csignal>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

ServerMeasurement Measured() {
  return {.workers = 24,
          .groups = 3,
          .ranks = 8,
          .join = absl::Seconds(2),
          .storms = {{.published = absl::Milliseconds(1),
                      .last_assignment = absl::Milliseconds(30),
                      .last_moved = absl::Milliseconds(50)},
                     {.published = absl::Milliseconds(2),
                      .last_assignment = absl::Milliseconds(20),
                      .last_moved = absl::Milliseconds(60)}},
          .rate = 500,
          .rate_reached = 499.5,
          .update = {.samples = 5000,
                     .median = absl::Milliseconds(3),
                     .p99 = absl::Milliseconds(9),
                     .p999 = absl::Milliseconds(10),
                     .max = absl::Milliseconds(11)},
          .updates_moved = 5016,
          .control_bytes_join = 400,
          .control_bytes_update = 300,
          .server_bytes_joined = 1 << 20,
          .server_bytes_end = 3 << 20,
          .server_cpu_join = absl::Milliseconds(500),
          .server_cpu_update = absl::Microseconds(100),
          .server_cpu = absl::Seconds(3)};
}

TEST(ServerBenchReportTest, TakesTheSlowerOfTheStorms) {
  const nlohmann::json json = ToJson(Measured());
  EXPECT_EQ(json["publish_to_last_assignment_seconds"], 0.03);
  EXPECT_EQ(json["publish_to_last_moved_seconds"], 0.06);
  EXPECT_EQ(json["storms"][1]["published_seconds"], 0.002);
  EXPECT_EQ(json["update_p99_ms"], 9.0);
  EXPECT_EQ(json["server_cpu_ms_per_update"], 0.1);
}

TEST(ServerBenchReportTest, TextHasWhatMatters) {
  const std::string text = TextOf(Measured());
  EXPECT_THAT(text, HasSubstr("24 workers in 3 groups of 8; 5016 updates, every one moved"));
  EXPECT_THAT(text, HasSubstr("2.000 s"));
  EXPECT_THAT(text, HasSubstr("9.00 ms"));
  EXPECT_THAT(text, HasSubstr("3.0 MiB"));
}

TEST(ServerBenchTest, AllWorkersJoinAndEveryUpdateMoves) {
  const ProgramRun run = RunProgram({Th(), "bench", "server", "--workers", "38", "--ranks", "4",
                                     "--rate", "200", "--seconds", "1", "--json"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  ASSERT_TRUE(report.is_object()) << run.output();
  EXPECT_EQ(report["workers"], 40);  // whole groups
  EXPECT_EQ(report["groups"], 10);
  EXPECT_EQ(report["ranks"], 4);
  EXPECT_EQ(report["rate"], 200);
  EXPECT_EQ(report["updates"], 200);
  // Two storms of the eight groups that read, and those at the rate.
  EXPECT_EQ(report["updates_moved"], 2 * 32 + 200);
  ASSERT_THAT(report["storms"], SizeIs(2));
  for (const nlohmann::json& storm : report["storms"]) {
    EXPECT_GT(storm["published_seconds"], 0.0);
    EXPECT_GT(storm["last_assignment_seconds"], storm["published_seconds"]);
    EXPECT_GE(storm["last_moved_seconds"], storm["last_assignment_seconds"]);
  }
  for (const char* key : {"join_seconds", "publish_to_last_assignment_seconds",
                          "publish_to_last_moved_seconds", "rate_reached", "update_p50_ms",
                          "server_bytes_after_join", "server_bytes_at_end", "server_cpu_seconds"}) {
    ASSERT_TRUE(report[key].is_number()) << key;
    EXPECT_GT(report[key], 0.0) << key;
  }
  EXPECT_LE(report["update_p50_ms"], report["update_p99_ms"]);
  EXPECT_LE(report["update_p99_ms"], report["update_max_ms"]);
  EXPECT_LE(report["rate_reached"], 250.0);
  // A name, a layout's digest and a key at least; some hundred bytes an update.
  EXPECT_GT(report["control_bytes_per_join"], 200.0);
  EXPECT_GT(report["control_bytes_per_update"], 100.0);
  EXPECT_LT(report["control_bytes_per_update"], 4096.0);
}

TEST(ServerBenchTest, StreamingReadersReceiveWhatTheyLookedUp) {
  const ProgramRun run = RunProgram({Th(), "bench", "server", "--workers", "12", "--ranks", "3",
                                     "--rate", "50", "--seconds", "1", "--receives", "--json"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["receives"], 2 * 3);  // of the groups that read
  EXPECT_GT(report["receives_seconds"], 0.0);
}

// A signal ends it, and nothing of it stays.
TEST(ServerBenchTest, ASignalEndsItAndLeavesNoFolderBehind) {
  const std::string scratch = FreshFolder("scratch");
  RunningProgram bench({"/usr/bin/env", "TMPDIR=" + scratch, Th(), "bench", "server", "--workers",
                        "40", "--seconds", "3600"});
  while (std::filesystem::is_empty(scratch) && !bench.process().HasEnded()) {
  }
  bench.process().Signal(SIGTERM);
  const ProgramRun run = bench.Finish();
  EXPECT_EQ(run.status, 130) << run.errors;
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

}  // namespace
}  // namespace th
