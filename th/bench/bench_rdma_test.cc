// `th bench transfer --transport rdma` where there are RDMA devices, as in the Soft-RoCE machine.
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

ProgramRun RunBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      Th(),        "bench", "transfer", "--json", "--transport",     "rdma",  "--bytes", "8MiB",
      "--tensors", "500",   "--rounds", "1",      "--server-binary", Server()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunProgram(arguments);
}

TEST(RdmaBenchTest, TheYardstickIsPerftest) {
  const ProgramRun run = RunBench({});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["transport"], "ibverbs");
  EXPECT_EQ(report["verified"], true);
  ASSERT_FALSE(report.contains("baseline_missing")) << report["baseline_missing"];
  for (const char* key : {"gbytes_per_s", "baseline", "ratio", "last_reader_seconds"}) {
    EXPECT_GT(report[key], 0) << key;
  }
  EXPECT_THAT(report["baseline_seconds_of_rounds"], SizeIs(1));
  EXPECT_GE(report["holder_copies_sent"], 1.0);
  EXPECT_GE(report["rss_growth_mib"], 0);
  EXPECT_EQ(report["iperf3_missing"], "nothing crosses TCP");
}

TEST(RdmaBenchTest, WithoutPerftestTheTransferIsMeasuredAllTheSame) {
  setenv("PATH", "/nowhere", /*replace=*/1);
  const ProgramRun run = RunBench({"--checksum", "off"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["verified"], true);
  EXPECT_GT(report["gbytes_per_s"], 0);
  EXPECT_TRUE(report["baseline"].is_null());
  EXPECT_TRUE(report["ratio"].is_null());
  EXPECT_THAT(report["baseline_missing"].get<std::string>(),
              HasSubstr("ib_read_bw is not installed (Debian: perftest)"));
}

}  // namespace
}  // namespace th
