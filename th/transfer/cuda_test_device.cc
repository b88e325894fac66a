#include "th/transfer/cuda_test_device.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "th/memory/cuda/driver.h"

namespace th::testing {

std::string CudaTestDevice::DriverPath() {
  const char* path = std::getenv("TH_TEST_CUDA_DRIVER");
  return path == nullptr ? FakeCuda::Path() : path;
}

CudaTestDevice::CudaTestDevice(int index) {
  const auto driver = CudaDriver::Load(DriverPath());
  EXPECT_TRUE(driver.ok()) << driver.status();
  auto devices = CudaMemoryDevices::Open(*driver);
  EXPECT_TRUE(devices.ok()) << devices.status();
  devices_ = *std::move(devices);
  const auto device = devices_->devices().ByIndex(index);
  EXPECT_TRUE(device.ok()) << device.status();
  device_ = *device;
  auto stream = CudaStream::Create(device_);
  EXPECT_TRUE(stream.ok()) << stream.status();
  absl::MutexLock lock(&mu_);
  stream_.emplace(*std::move(stream));
}

void* CudaTestDevice::Allocate(size_t bytes) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Allocate(device_, bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  void* const pointer = buffer->pointer();
  {
    absl::MutexLock lock(&mu_);
    buffers_.emplace(pointer, *std::move(buffer));
  }
  const std::string zeros(bytes, 0);
  Write(pointer, zeros);
  return pointer;
}

void CudaTestDevice::Free(void* memory) {
  absl::MutexLock lock(&mu_);
  buffers_.erase(memory);
}

void CudaTestDevice::Write(void* to, absl::Span<const char> from) {
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(
      stream_->CopyToDevice(reinterpret_cast<uintptr_t>(to), from.data(), from.size()).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
}

void CudaTestDevice::Read(const void* from, absl::Span<char> to) {
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(stream_->CopyToHost(to.data(), reinterpret_cast<uintptr_t>(from), to.size()).ok());
  EXPECT_TRUE(stream_->Synchronize().ok());
}

}  // namespace th::testing
