// A machine may have no driver, or one that does not work. On the fake only.
#include "th/memory/cuda/driver.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/device.h"

namespace th {
namespace {

using ::testing::AllOf;
using testing::FakeCuda;
using ::testing::HasSubstr;
using testing::StatusIs;

TEST(CudaDriverTest, WithoutALibraryItIsUnavailableAndSaysWhatToDo) {
  EXPECT_THAT(
      CudaDriver::Load("/nowhere/libcuda.so.1"),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("there is no CUDA driver"), HasSubstr("/nowhere/libcuda.so.1"),
                     HasSubstr("nvidia-container-toolkit"))));
}

TEST(CudaDriverTest, ALibraryWithoutAFunctionIsTooOld) {
  EXPECT_THAT(
      CudaDriver::Load("libm.so.6"),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("cuInit"), HasSubstr("too old"))));
}

TEST(CudaDriverTest, ADriverThatDoesNotStartIsUnavailableWithItsCode) {
  const FakeCuda fake;
  fake.Fail("cuInit", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  EXPECT_THAT(CudaDriver::Load(FakeCuda::Path()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("does not start"), HasSubstr("(803)"),
                             HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"))));
  fake.Fail("cuInit", CUDA_ERROR_NO_DEVICE);
  EXPECT_THAT(CudaDriver::Load(FakeCuda::Path()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("(100)")));
  // It is tried again each time, and one that has started is kept.
  ASSERT_OK_AND_ASSIGN(const CudaDriver* const driver, CudaDriver::Load(FakeCuda::Path()));
  fake.Fail("cuInit", CUDA_ERROR_NO_DEVICE);
  ASSERT_OK_AND_ASSIGN(const CudaDriver* const again, CudaDriver::Load(FakeCuda::Path()));
  EXPECT_EQ(again, driver);
}

TEST(CudaDriverTest, AFailureOfADeviceNamesTheDeviceAndTheCode) {
  const FakeCuda fake;
  fake.Fail("cuInit", CUDA_SUCCESS, 0, 0);
  ASSERT_OK_AND_ASSIGN(const CudaDriver* const driver, CudaDriver::Load(FakeCuda::Path()));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
  ASSERT_OK_AND_ASSIGN(CudaDevice* const device, devices->ByIndex(1));
  fake.Fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_THAT(device->Enter(),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(device->pci_address()),
                                                             HasSubstr("GPU 1"), HasSubstr("46"))));
  EXPECT_OK(device->Enter());
  fake.Fail("cuDeviceGetUuid", CUDA_ERROR_UNKNOWN, 1);
  EXPECT_THAT(CudaDevices::Open(driver),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("read its UUID")));
}

TEST(CudaDriverTest, ContextsAreGivenBack) {
  const FakeCuda fake;
  ASSERT_OK_AND_ASSIGN(const CudaDriver* const driver, CudaDriver::Load(FakeCuda::Path()));
  const uint64_t before = fake.live();
  {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
    for (const auto& device : devices->all()) {
      EXPECT_OK(device->Enter());
      EXPECT_OK(device->Enter());
    }
    EXPECT_EQ(fake.live(), before + 2);
  }
  EXPECT_EQ(fake.live(), before);
}

}  // namespace
}  // namespace th
