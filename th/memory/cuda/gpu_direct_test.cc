// GPU memory for adapters. On the fake only, whose DMA-BUF is a file.
#include "th/memory/cuda/gpu_direct.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"

namespace th {
namespace {

using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::StatusIs;

class GpuDirectTest : public CudaTest {
 protected:
  void TearDown() override {
    fake_.OrderWrites(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
    fake_.Fail("cuDeviceGetAttribute", CUDA_SUCCESS, 0, 0);
  }
  const FakeCuda fake_;
};

TEST_F(GpuDirectTest, ADmaBufHasTheBytesOfTheAllocation) {
  const DeviceBuffer before = Filled(PatternBytes(700, 1));  // the next one begins within a page
  const std::vector<std::byte> bytes = PatternBytes(10'000, 2);
  const DeviceBuffer buffer = Filled(bytes);
  ASSERT_OK_AND_ASSIGN(const DmaBuf exported,
                       DmaBuf::Export(*device_, buffer.address(), bytes.size()));
  EXPECT_EQ(exported.offset(), buffer.address() % 4096);
  std::vector<std::byte> found(bytes.size());
  const off_t begin = lseek(exported.file_descriptor(), 0, SEEK_CUR);
  ASSERT_EQ(pread(exported.file_descriptor(), found.data(), found.size(),
                  begin + static_cast<off_t>(exported.offset())),
            static_cast<ssize_t>(found.size()));
  EXPECT_EQ(found, bytes);
}

TEST_F(GpuDirectTest, TheDescriptorIsClosed) {
  const DeviceBuffer buffer = Filled(PatternBytes(4096, 1));
  int descriptor = -1;
  {
    ASSERT_OK_AND_ASSIGN(const DmaBuf exported, DmaBuf::Export(*device_, buffer.address(), 4096));
    descriptor = exported.file_descriptor();
    struct stat seen;
    EXPECT_EQ(fstat(descriptor, &seen), 0);
  }
  struct stat seen;
  EXPECT_NE(fstat(descriptor, &seen), 0);
}

TEST_F(GpuDirectTest, ADriverOrDeviceWithoutDmaBufSaysSo) {
  const DeviceBuffer buffer = Filled(PatternBytes(4096, 1));
  CudaDriver older = *driver_;
  older.MemGetHandleForAddressRange = nullptr;
  ASSERT_OK_AND_ASSIGN(const auto devices, CudaDevices::Open(&older));
  EXPECT_THAT(DmaBuf::Export(*devices->all()[0], buffer.address(), 4096),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("older than 515")));
  fake_.Fail("cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(DmaBuf::Export(*device_, buffer.address(), 4096),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("kernel modules")));
  fake_.Fail("cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THAT(DmaBuf::Export(*device_, buffer.address(), 4096),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cannot export")));
}

TEST_F(GpuDirectTest, WritesAreFlushedUnlessAllDevicesSeeThemInOrder) {
  EXPECT_OK(CanFlushRemoteWrites(*device_));
  const uint64_t before = fake_.flushes();
  EXPECT_OK(FlushRemoteWrites(*device_));
  EXPECT_EQ(fake_.flushes(), before + 1);
  fake_.OrderWrites(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  EXPECT_OK(FlushRemoteWrites(*device_));
  EXPECT_EQ(fake_.flushes(), before + 2) << "another GPU of the host may copy the weights";
  fake_.OrderWrites(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES);
  EXPECT_OK(FlushRemoteWrites(*device_));
  EXPECT_EQ(fake_.flushes(), before + 2);
}

TEST_F(GpuDirectTest, ADeviceThatNeitherOrdersNorFlushesSaysSo) {
  fake_.Fail("cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE, 0, 2);
  EXPECT_THAT(CanFlushRemoteWrites(*device_),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(device_->pci_address())));
  fake_.Fail("cuFlushGPUDirectRDMAWrites", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THAT(FlushRemoteWrites(*device_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("flush")));
}

}  // namespace
}  // namespace th
