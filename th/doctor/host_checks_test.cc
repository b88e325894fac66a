#include "th/doctor/host_checks.h"

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void ExpectOk(const Finding& finding) {
  EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.found;
  EXPECT_THAT(finding.advice, IsEmpty()) << finding.check;
  EXPECT_THAT(finding.found, Not(IsEmpty())) << finding.check;
  EXPECT_THAT(finding.means, Not(IsEmpty())) << finding.check;
}

void ExpectAdvice(const Finding& finding, Verdict verdict, const std::string& found,
                  const std::string& advice) {
  EXPECT_EQ(finding.verdict, verdict) << finding.found;
  EXPECT_THAT(finding.found, HasSubstr(found));
  EXPECT_THAT(finding.advice, HasSubstr(advice));
  EXPECT_THAT(finding.means, Not(IsEmpty())) << finding.check;
}

// ---- GPUs --------------------------------------------------------------------------------------

GpuFacts GoodGpus() {
  return {.device_files = 2,
          .kernel_driver = "580.65.06",
          .library = {.opened = true},
          .driver_version = 13000,
          .gpus = {{.name = "NVIDIA H100"}, {.name = "NVIDIA H100"}}};
}

TEST(GpusTest, GpusAreCountedByName) {
  ExpectOk(CheckGpus(GoodGpus()));
  EXPECT_EQ(CheckGpus(GoodGpus()).found, "2 x NVIDIA H100; the driver has CUDA 13.0");
}

TEST(GpusTest, AHostWithoutGpusIsNoFault) { ExpectOk(CheckGpus({.library = {.error = "none"}})); }

TEST(GpusTest, GpusWithoutLibraryAreAProblem) {
  ExpectAdvice(CheckGpus({.device_files = 8, .library = {.error = "libcuda.so.1: cannot open"}}),
               Verdict::kProblem, "8 GPUs, but libcuda.so.1: cannot open",
               "NVIDIA_DRIVER_CAPABILITIES");
}

TEST(GpusTest, ADriverWhoseGpusAreHiddenIsANote) {
  ExpectAdvice(CheckGpus({.kernel_driver = "580.65.06"}), Verdict::kNote, "580.65.06", "--gpus");
}

TEST(GpusTest, ErrorsOfCudaHaveTheirOwnAdvice) {
  GpuFacts gpu = GoodGpus();
  gpu.init_error = 100;
  ExpectAdvice(CheckGpus(gpu), Verdict::kNote, "shows no GPU", "CUDA_VISIBLE_DEVICES");
  gpu.init_error = 802;
  ExpectAdvice(CheckGpus(gpu), Verdict::kProblem, "error 802", "fabric manager");
  gpu.init_error = 803;
  ExpectAdvice(CheckGpus(gpu), Verdict::kProblem, "error 803", "different versions");
  gpu.init_error = 999;
  ExpectAdvice(CheckGpus(gpu), Verdict::kProblem, "error 999", "nvidia-smi");
}

TEST(GpusTest, AnOldDriverIsAProblem) {
  GpuFacts gpu = GoodGpus();
  gpu.driver_version = 12040;
  ExpectAdvice(CheckGpus(gpu), Verdict::kProblem, "CUDA 12.4", "580");
}

// ---- memory of other processes -----------------------------------------------------------------

TEST(MemoryOfOthersTest, WithoutYamaEverythingMayBeRead) {
  ExpectOk(CheckMemoryOfOthers({}));
  ExpectOk(CheckMemoryOfOthers({.yama_scope = 0}));
}

TEST(MemoryOfOthersTest, YamaIsANoteUnlessACapabilityHelps) {
  for (const int scope : {1, 2}) {
    ExpectAdvice(CheckMemoryOfOthers({.yama_scope = scope}), Verdict::kNote, "ptrace_scope is",
                 "sysctl kernel.yama.ptrace_scope=0");
    ExpectOk(CheckMemoryOfOthers({.may_trace_others = true, .yama_scope = scope}));
  }
  ExpectAdvice(CheckMemoryOfOthers({.may_trace_others = true, .yama_scope = 3}), Verdict::kNote,
               "nobody may", "reboot");
}

TEST(MemoryOfOthersTest, ARefusedSystemCallIsANote) {
  ExpectAdvice(CheckMemoryOfOthers({.read_memory_error = EPERM}), Verdict::kNote,
               "Operation not permitted", "seccomp");
}

// ---- sizes and limits --------------------------------------------------------------------------

TEST(SharedMemoryTest, ItMustBeThereAndHaveRoom) {
  constexpr uint64_t kGiB = 1 << 30;
  ExpectOk(CheckSharedMemory(
      {.shared_memory = FileSystemSize{.total_bytes = 8 * kGiB, .free_bytes = 8 * kGiB}}));
  ExpectAdvice(CheckSharedMemory({}), Verdict::kNote, "there is no /dev/shm", "--shm-size");
  ExpectAdvice(CheckSharedMemory({.shared_memory = FileSystemSize{.total_bytes = 64 << 20,
                                                                  .free_bytes = 64 << 20}}),
               Verdict::kNote, "67.1 MB", "--shm-size");
  ExpectAdvice(CheckSharedMemory({.shared_memory = FileSystemSize{.total_bytes = 8 * kGiB,
                                                                  .free_bytes = 1 << 20}}),
               Verdict::kNote, "1.05 MB free", "remove");
}

TEST(HugePagesTest, BothKindsOfMemoryShouldHaveThem) {
  ExpectOk(CheckHugePages({.transparent_huge_pages = "always", .shared_huge_pages = "always"}));
  ExpectOk(CheckHugePages({.transparent_huge_pages = "madvise", .shared_huge_pages = "advise"}));
  const Finding never =
      CheckHugePages({.transparent_huge_pages = "never", .shared_huge_pages = "never"});
  ExpectAdvice(never, Verdict::kNote, "never", "hugepage/enabled");
  ExpectAdvice(never, Verdict::kNote, "never", "hugepage/shmem_enabled");
  for (const char* shared : {"never", "deny", ""}) {
    const Finding finding =
        CheckHugePages({.transparent_huge_pages = "madvise", .shared_huge_pages = shared});
    ExpectAdvice(finding, Verdict::kNote, "madvise", "hugepage/shmem_enabled");
    EXPECT_THAT(finding.advice, Not(HasSubstr("hugepage/enabled")));
    EXPECT_THAT(finding.means, HasSubstr("arenas"));
  }
  ExpectAdvice(CheckHugePages({}), Verdict::kNote, "has no", "nothing");
}

TEST(OpenFilesTest, TheSoftLimitCountsForWorkersAndTheHardOneForServers) {
  ExpectOk(CheckOpenFiles({.open_files = Limit{.soft = kUnlimited, .hard = kUnlimited}}));
  ExpectOk(CheckOpenFiles({.open_files = Limit{.soft = 65536, .hard = 65536}}));
  ExpectOk(CheckOpenFiles({.open_files = Limit{.soft = 1024, .hard = 65536}}));
  ExpectAdvice(CheckOpenFiles({.open_files = Limit{.soft = 1024, .hard = 4096}}), Verdict::kNote,
               "1024", "ulimit -n");
  ExpectAdvice(CheckOpenFiles({.open_files = Limit{.soft = 256, .hard = 65536}}), Verdict::kProblem,
               "256", "ulimit -n");
  ExpectAdvice(CheckOpenFiles({}), Verdict::kNote, "cannot be read", "ulimit -n");
}

// ---- time --------------------------------------------------------------------------------------

TEST(ClockTest, SlowSourcesAreANote) {
  ExpectOk(CheckClockSource({.source = "tsc"}));
  ExpectOk(CheckClockSource({.source = "kvm-clock"}));
  ExpectOk(CheckClockSource({}));
  ExpectAdvice(CheckClockSource({.source = "hpet"}), Verdict::kNote, "hpet", "tsc");
}

TEST(ClockTest, AClockThatNobodySynchronisesIsANote) {
  ExpectOk(CheckClockSynchronisation({.synchronised = true, .max_error_us = 2'500}));
  EXPECT_THAT(CheckClockSynchronisation({.synchronised = true, .max_error_us = 2'500}).found,
              HasSubstr("within 2 ms"));
  ExpectAdvice(CheckClockSynchronisation({.synchronised = false}), Verdict::kNote,
               "not synchronised", "chrony");
  ExpectAdvice(CheckClockSynchronisation({}), Verdict::kNote, "does not say", "chrony");
}

}  // namespace
}  // namespace th::doctor
