// Failures of the driver under copies, sums and fences, and streams that are held up. On the fake
// only.
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device_checksums.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/piece_copier.h"
#include "th/memory/cuda/shared_allocation.h"
#include "th/memory/cuda/stream.h"

namespace th {
namespace {

using ::testing::AllOf;
using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::StatusIs;

class FailingDriverTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_OK(device_->Enter());
    live_before_ = fake_.live();
  }
  // Whatever failed, nothing of the driver's is left behind.
  void TearDown() override { EXPECT_EQ(fake_.live(), live_before_); }

  MemoryRegion RegionOf(const DeviceBuffer& buffer) const {
    return {buffer.pointer(), buffer.bytes(), MemoryKind::kDevice, device_->pci_address()};
  }

  const FakeCuda fake_;
  uint64_t live_before_ = 0;
};

TEST_F(FailingDriverTest, EverythingIsGivenBack) {
  const DeviceBuffer buffer = Filled(PatternBytes(100'000, 1));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  const MappedMemory mapped(device_, 3);
  ASSERT_OK_AND_ASSIGN(const auto pinned, PinnedBuffer::Allocate(device_, 4096));
  ASSERT_OK_AND_ASSIGN(const auto checksums, DeviceChecksums::Create(device_, {}));
  ASSERT_OK_AND_ASSIGN(const auto copier, PieceCopier::Create(device_, {}));
  ASSERT_OK(checksums->Checksum({{{memory.get(), 0, 100'000}}}));
  EXPECT_GT(fake_.live(), live_before_ + 10);
}

TEST_F(FailingDriverTest, SumsThatFitTheListsAreWaitedForOnce) {
  const DeviceBuffer buffer = Filled(PatternBytes(3 * kLeafBytes, 1));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  ASSERT_OK_AND_ASSIGN(const auto checksums, DeviceChecksums::Create(device_, {}));
  const uint64_t before = fake_.synchronizations();
  ASSERT_OK(checksums->Checksum({{{memory.get(), 0, 3 * kLeafBytes}}}));
  EXPECT_EQ(fake_.synchronizations(), before + 1);
}

TEST_F(FailingDriverTest, ADeviceOrHostWithoutRoomIsResourceExhausted) {
  for (const char* function : {"cuMemAlloc", "cuMemHostAlloc"}) {
    for (int skipped = 0; skipped < 3; ++skipped) {
      fake_.Fail(function, CUDA_ERROR_OUT_OF_MEMORY, skipped);
      EXPECT_THAT(DeviceChecksums::Create(device_, {}),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           AllOf(HasSubstr("allocate"), HasSubstr(device_->pci_address()))));
    }
  }
  fake_.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(PinnedBuffer::Allocate(device_, 4096),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("pinned host memory")));
  EXPECT_THAT(DeviceBuffer::Allocate(device_, uint64_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(FailingDriverTest, ADeviceWithoutCodeForItIsNamed) {
  fake_.Fail("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_THAT(DeviceChecksums::Create(device_, {}),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("load TensorHub's kernels"), HasSubstr("209"))));
  for (int skipped = 0; skipped < 3; ++skipped) {
    fake_.Fail("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, skipped);
    EXPECT_THAT(PieceCopier::Create(device_, {}),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("kernel th_")));
  }
}

// The tensors lie apart in host memory, so that each is a copy of its own, in one call.
TEST_F(FailingDriverTest, AFailureInTheMiddleEndsACallAndNotTheDevice) {
  constexpr uint64_t kTensors = 10, kTensor = 4096;
  const std::vector<std::byte> pattern = PatternBytes(kTensors * kTensor, 2);
  const DeviceBuffer buffer = Filled(pattern);
  ASSERT_OK_AND_ASSIGN(const auto devices, CudaMemoryDevices::Open(driver_));
  ASSERT_OK_AND_ASSIGN(const auto side, devices->Register({{RegionOf(buffer)}}));
  ASSERT_OK_AND_ASSIGN(const auto pinned, devices->AllocatePinned(2 * pattern.size()));
  std::vector<DeviceCopy> copies;
  for (uint64_t i = 0; i < kTensors; ++i) {
    copies.push_back({0, i * kTensor, kTensor, pinned->bytes().data() + 2 * i * kTensor});
  }
  for (const char* function : {"cuMemcpyDtoHAsync", "cuStreamSynchronize"}) {
    for (const int skipped : {0, 1, 5, 9}) {
      const bool waits = absl::string_view(function) == "cuStreamSynchronize";
      if (waits && skipped > 0) continue;  // once a call
      fake_.Fail(function, CUDA_ERROR_UNKNOWN, skipped);
      EXPECT_THAT(side->CopyToHost(copies), StatusIs(absl::StatusCode::kInternal))
          << function << " after " << skipped;
      ASSERT_OK(side->CopyToHost(copies));
      for (const DeviceCopy& copy : copies) {
        EXPECT_EQ(std::memcmp(copy.host, &pattern[copy.offset], copy.bytes), 0) << copy.offset;
      }
    }
  }
  fake_.Fail("cuMemcpyHtoDAsync", CUDA_ERROR_UNKNOWN, 3);
  EXPECT_THAT(side->CopyToDevice(copies), StatusIs(absl::StatusCode::kInternal));
  EXPECT_OK(side->CopyToDevice(copies));
  EXPECT_OK(side->Revoke(absl::ZeroDuration())) << "a failed copy still uses the memory";
}

TEST_F(FailingDriverTest, AFailedLaunchFailsTheSums) {
  const DeviceBuffer buffer = Filled(PatternBytes(100'000, 3));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  ASSERT_OK_AND_ASSIGN(const auto checksums, DeviceChecksums::Create(device_, {}));
  fake_.Fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_THAT(checksums->Checksum({{{memory.get(), 0, 100'000}}}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("701")));
  EXPECT_OK(checksums->Checksum({{{memory.get(), 0, 100'000}}}));
  EXPECT_OK(memory->Revoke(absl::ZeroDuration())) << "a failed sum still uses the memory";
}

// The copies that come after are refused by the driver; the reason is the memory.
TEST_F(FailingDriverTest, MemoryThatIsFreedUnderACopyIsCaught) {
  std::optional<DeviceBuffer> buffer;
  buffer.emplace(Filled(PatternBytes(4096, 4)));
  ASSERT_OK_AND_ASSIGN(const auto devices, CudaMemoryDevices::Open(driver_));
  ASSERT_OK_AND_ASSIGN(const auto side, devices->Register({{RegionOf(*buffer)}}));
  ASSERT_OK_AND_ASSIGN(const auto pinned, devices->AllocatePinned(4096));
  fake_.HoldStreams(true);
  absl::Status copied;
  std::thread copier([&] { copied = side->CopyToHost({{{0, 0, 4096, pinned->bytes().data()}}}); });
  fake_.AwaitHeld();
  buffer.reset();
  fake_.HoldStreams(false);
  copier.join();
  EXPECT_THAT(copied,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lies none any more")));
}

TEST_F(FailingDriverTest, AFenceIsDoneOnceWhatCameBeforeIsDone) {
  const std::vector<std::byte> pattern = PatternBytes(1000, 5);
  const DeviceBuffer buffer = Filled(std::vector<std::byte>(1000));
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(device_));
  ASSERT_OK_AND_ASSIGN(const CudaEvent event, CudaEvent::Create(device_));
  fake_.HoldStreams(true);
  ASSERT_OK(stream.CopyToDevice(buffer.address(), pattern.data(), pattern.size()));
  ASSERT_OK(stream.Record(event));
  {
    ASSERT_OK_AND_ASSIGN(
        const DeviceFence after_event,
        DeviceFence::AfterEvent(device_, reinterpret_cast<uintptr_t>(event.handle())));
    ASSERT_OK_AND_ASSIGN(
        const DeviceFence after_stream,
        DeviceFence::AfterStream(device_, reinterpret_cast<uintptr_t>(stream.handle())));
    EXPECT_FALSE(after_event.IsDone());
    EXPECT_THAT(after_stream.Wait(absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(device_->pci_address())));
    fake_.HoldStreams(false);
    EXPECT_OK(after_event.Wait(absl::Seconds(30)));
    EXPECT_OK(after_stream.Wait(absl::Seconds(30)));
    EXPECT_TRUE(after_event.IsDone());
    // The event has happened, so what came before it is there, without waiting for the stream.
    EXPECT_EQ(ReadDevice(buffer.address(), 1000), pattern);
  }
}

TEST_F(FailingDriverTest, AFenceMayEndBeforeItIsDone) {
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(device_));
  fake_.HoldStreams(true);
  {
    ASSERT_OK_AND_ASSIGN(
        const DeviceFence fence,
        DeviceFence::AfterStream(device_, reinterpret_cast<uintptr_t>(stream.handle())));
  }
  fake_.HoldStreams(false);
  EXPECT_OK(stream.Synchronize());
}

TEST_F(FailingDriverTest, AFenceOnWhatIsNoEventIsRefused) {
  EXPECT_THAT(DeviceFence::AfterEvent(device_, 0x123456),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("400")));
  EXPECT_THAT(DeviceFence::AfterStream(device_, 0x123456),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("400")));
}

}  // namespace
}  // namespace th
