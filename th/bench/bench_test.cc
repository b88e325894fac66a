// `th bench transfer` as it is run, small: every key, and the bounds that hold at any size.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/program_run/program_run.h"
#include "testing/under_sanitizer.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> SmallBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {Th(),    "bench",    "transfer", "--json",    "--bytes",
                                        "16MiB", "--rounds", "2",        "--readers", "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// An update may keep this much resident beyond the weights themselves, however many there are.
constexpr double kMaxGrowthMebibytes = 32;

class BenchTest : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(BenchTest, MeasuresVerifiesAndKeepsItsBounds) {
  const ProgramRun run = RunProgram(SmallBench(GetParam()));
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  ASSERT_TRUE(report.is_object()) << run.output();
  for (const char* key :
       {"gbytes_per_s", "baseline", "ratio", "last_reader_seconds", "publish_seconds"}) {
    ASSERT_TRUE(report.contains(key)) << key;
    EXPECT_GT(report[key], 0) << key;
  }
  EXPECT_EQ(report["verified"], true);
  EXPECT_NEAR(report["bytes"].get<double>(), 16 << 20, 4096);  // of so many whole tensors
  EXPECT_EQ(report["transport"], "tcp");
  EXPECT_EQ(report["readers"], 4);
  EXPECT_GE(report["holder_copies_sent"], 1.0);
  EXPECT_LE(report["holder_copies_sent"], 1.5);
  EXPECT_GT(report["control_bytes"], 0);
  EXPECT_LE(report["control_bytes"], 65536);
  EXPECT_TRUE(report["peak_extra_bytes"].is_number_unsigned());
  EXPECT_EQ(report["packing_overhead_bytes"], 0)
      << "over a socket nothing comes beside the segments";
  EXPECT_GT(report["holder_cpu_seconds_per_gb"], 0);
  EXPECT_GT(report["readers_cpu_seconds_per_gb"], 0);
  EXPECT_GE(report["rss_growth_mib"], 0);
  EXPECT_LE(report["rss_growth_mib"], kMaxGrowthMebibytes);
  EXPECT_THAT(report["last_reader_seconds_of_rounds"], SizeIs(2));
  EXPECT_THAT(report["baseline_seconds_of_rounds"], SizeIs(2));
  EXPECT_TRUE(report["baseline_congestion_control"].is_string());
  // A line a round on stderr, and none of them in what a program reads.
  EXPECT_THAT(run.errors, AllOf(HasSubstr("4 reader(s)"), HasSubstr("warm-up: update "),
                                HasSubstr("round 2 of 2: update ")));
  EXPECT_THAT(run.lines, SizeIs(1));
  // The peer beside it, or why there is none.
  EXPECT_NE(report["iperf3"].is_number(), report.contains("iperf3_missing")) << report.dump();
}

class SameHostBenchTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Spellings, SameHostBenchTest, ::testing::Values("same_host", "same-host"));

TEST_P(SameHostBenchTest, TheYardstickIsMemory) {
  const ProgramRun run = RunProgram(SmallBench({"--transport", GetParam(), "--checksum", "off"}));
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["transport"], "same_host");
  EXPECT_EQ(report["checksum"], "off");
  EXPECT_EQ(report["verified"], true);
  EXPECT_EQ(report["packing_overhead_bytes"], 0);
  EXPECT_GT(report["baseline"], 0);
  EXPECT_GT(report["ratio"], 0);
  EXPECT_EQ(report["baseline_congestion_control"], "");
  EXPECT_EQ(report["iperf3_missing"], "nothing crosses TCP");
}

class LargeBenchTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, LargeBenchTest, ::testing::Values("tcp", "same-host"));

// A copy of the version, or of an eighth of it, would show.
TEST_P(LargeBenchTest, MemoryDoesNotGrowWithTheVersion) {
  if (testing::UnderSanitizer()) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  const ProgramRun run = RunProgram({Th(), "bench", "transfer", "--json", "--transport", GetParam(),
                                     "--bytes", "256MiB", "--rounds", "1", "--readers", "1"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_NEAR(report["bytes"].get<double>(), 256 << 20, 1 << 20);  // of so many whole tensors
  EXPECT_EQ(report["verified"], true);
  EXPECT_LE(report["rss_growth_mib"], kMaxGrowthMebibytes);
}

// The processes of a benchmark find `library` as the CUDA driver.
void UseAsCudaDriver(const std::string& library) {
  const std::string folder = FreshFolder("driver");
  std::filesystem::create_symlink(std::filesystem::canonical(library), folder + "/libcuda.so.1");
  setenv("LD_LIBRARY_PATH", folder.c_str(), /*replace=*/1);
}

class CudaBenchTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~CudaBenchTest() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("TH_FAKE_CUDA_DEVICES");
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, CudaBenchTest, ::testing::Values("1", "3"));

TEST_P(CudaBenchTest, TheYardstickIsTheDriversCopy) {
  UseAsCudaDriver(testing::FakeCuda::Path());
  setenv("TH_FAKE_CUDA_DEVICES", GetParam().c_str(), /*replace=*/1);
  // The fake takes a second to sum as many MiB as the other benchmarks move.
  const ProgramRun run = RunProgram({Th(), "bench", "transfer", "--json", "--transport", "cuda",
                                     "--bytes", "2MiB", "--tensors", "50", "--rounds", "2"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  EXPECT_EQ(report["transport"], "cuda_ipc");
  EXPECT_EQ(report["verified"], true);
  EXPECT_EQ(report["tensors"], 50);
  for (const char* key : {"gbytes_per_s", "baseline", "ratio", "last_reader_seconds"}) {
    EXPECT_GT(report[key], 0) << key;
  }
  EXPECT_FALSE(report.contains("baseline_missing"));
  EXPECT_THAT(report["baseline_seconds_of_rounds"], SizeIs(2));
  EXPECT_EQ(report["holder_copies_sent"], 1.0);
  EXPECT_GE(report["rss_growth_mib"], 0);
  EXPECT_EQ(report["iperf3_missing"], "nothing crosses TCP");
}

TEST_F(CudaBenchTest, ADriverWithoutAGpuIsNamed) {
  UseAsCudaDriver(testing::FakeCuda::Path());
  setenv("TH_FAKE_CUDA_DEVICES", "0", /*replace=*/1);
  const ProgramRun run = RunProgram(SmallBench({"--transport", "cuda_ipc"}));
  EXPECT_EQ(run.status, 1) << run.output();
  const std::string message = run.json()["error"]["message"];
  EXPECT_EQ(run.json()["error"]["code"], "FAILED_PRECONDITION");
  EXPECT_THAT(message, HasSubstr("--transport cuda: "));
  EXPECT_THAT(message, HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(message, HasSubstr("th doctor says of gpus: CUDA's driver library shows no GPU"));
}

TEST_F(CudaBenchTest, AMachineWithoutADriverIsToldSo) {
  // Whatever the machine has: this library is no driver.
  const std::string library = ::testing::TempDir() + "/no_driver.so";
  std::ofstream(library) << "nothing";
  UseAsCudaDriver(library);
  const ProgramRun run = RunProgram(SmallBench({"--transport", "cuda"}));
  EXPECT_EQ(run.status, 1) << run.output();
  const std::string message = run.json()["error"]["message"];
  EXPECT_THAT(message, HasSubstr("--transport cuda: there is no CUDA driver"));
  EXPECT_THAT(message, HasSubstr("th doctor says of gpus: "));
}

// bench_rdma_test measures where there are devices.
TEST(RdmaBenchTest, AMachineWithoutADeviceIsToldSo) {
  std::error_code none;
  if (std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
      std::filesystem::directory_iterator()) {
    GTEST_SKIP() << "this machine has an RDMA device";
  }
  for (const char* name : {"rdma", "ibverbs"}) {
    const ProgramRun run = RunProgram(SmallBench({"--transport", name}));
    EXPECT_EQ(run.status, 1) << run.output();
    const std::string message = run.json()["error"]["message"];
    EXPECT_EQ(run.json()["error"]["code"], "FAILED_PRECONDITION");
    EXPECT_THAT(message, HasSubstr("--transport rdma: the kernel has no RDMA device"));
    EXPECT_THAT(message, HasSubstr("th doctor says of rdma-devices: none"));
    EXPECT_THAT(message, HasSubstr("to do: "));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BenchTest,
                         ::testing::Values(std::vector<std::string>{},
                                           std::vector<std::string>{"--tensors", "2000"}));

// A signal ends it, and nothing of it stays.
class InterruptedBenchTest : public ::testing::TestWithParam<int> {};

TEST_P(InterruptedBenchTest, LeavesNoFolderBehind) {
  const std::string scratch = FreshFolder("scratch");
  RunningProgram bench({"/usr/bin/env", "TMPDIR=" + scratch, Th(), "bench", "transfer", "--bytes",
                        "16MiB", "--rounds", "1000"});
  while (std::filesystem::is_empty(scratch) && !bench.process().HasEnded()) {
  }
  bench.process().Signal(GetParam());
  const ProgramRun run = bench.Finish();
  EXPECT_EQ(run.status, 130) << run.errors;
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedBenchTest, ::testing::Values(SIGINT, SIGTERM));

}  // namespace
}  // namespace th
