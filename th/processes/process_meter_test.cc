#include "th/processes/process_meter.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using testing::StatusIs;

constexpr uint64_t kBlockBytes = uint64_t{64} << 20;

void TouchAndFree() {
  const std::unique_ptr<char[]> block(new char[kBlockBytes]);
  std::memset(block.get(), 1, kBlockBytes);
  ASSERT_EQ(block[kBlockBytes - 1], 1);
}

TEST(ResidentPeakTest, IsWhatTheKernelSays) {
  ASSERT_OK_AND_ASSIGN(const ResidentPeak peak,
                       ResidentPeakOfStatus("Name:\tth\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\n"));
  EXPECT_EQ(peak.now_bytes, 200u << 10);
  EXPECT_EQ(peak.peak_bytes, 300u << 10);
}

TEST(ResidentPeakTest, RefusesATextWithoutTheLines) {
  EXPECT_THAT(ResidentPeakOfStatus("Name:\tth\nVmRSS:\t 200 kB\n"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ResidentPeakOfStatus("VmHWM: many kB\nVmRSS: 1 kB\n"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ProcessMeterTest, SeesMemoryThatWasFreedMeanwhile) {
  ASSERT_OK_AND_ASSIGN(const ProcessMeter meter, ProcessMeter::Start());
  TouchAndFree();
  ASSERT_OK_AND_ASSIGN(const ProcessCost cost, meter.Read());
  EXPECT_GE(cost.growth_bytes, kBlockBytes / 2);
  EXPECT_LE(cost.growth_bytes, kBlockBytes * 2);
}

TEST(ProcessMeterTest, SharedMemoryOfOthersIsNotItsOwn) {
  const int fd = memfd_create("other", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, kBlockBytes), 0);
  ASSERT_OK_AND_ASSIGN(const ProcessMeter meter, ProcessMeter::Start());
  void* const mapped = mmap(nullptr, kBlockBytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_OK_AND_ASSIGN(const ProcessCost cost, meter.Read());
  EXPECT_LE(cost.growth_bytes, kBlockBytes / 4);
  munmap(mapped, kBlockBytes);
  close(fd);
}

TEST(ProcessMeterTest, ForgetsWhatWasBefore) {
  TouchAndFree();
  ASSERT_OK_AND_ASSIGN(const ProcessMeter meter, ProcessMeter::Start());
  ASSERT_OK_AND_ASSIGN(const ProcessCost cost, meter.Read());
  EXPECT_LE(cost.growth_bytes, kBlockBytes / 4);
}

TEST(ProcessMeterTest, CountsProcessorTimeSinceTheStart) {
  ASSERT_OK_AND_ASSIGN(const ProcessMeter meter, ProcessMeter::Start());
  absl::Duration processor;
  while (processor < absl::Milliseconds(20)) {
    ASSERT_OK_AND_ASSIGN(const ProcessCost cost, meter.Read());
    ASSERT_GE(cost.processor, processor);
    processor = cost.processor;
  }
}

}  // namespace
}  // namespace th
