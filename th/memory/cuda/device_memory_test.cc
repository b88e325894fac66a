// Memory that the driver knows, and memory that changes under us. Runs on the fake driver and on
// GPUs.
#include "th/memory/cuda/device_memory.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/stream.h"
#include "th/memory/memory_region.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kFarTooMany = uint64_t{1} << 45;

using DeviceMemoryTest = CudaTest;

TEST_F(DeviceMemoryTest, DevicesAreFoundByWhatAllProcessesCallThem) {
  ASSERT_OK_AND_ASSIGN(CudaDevice* const by_uuid, devices_->ByUuid(device_->uuid()));
  ASSERT_OK_AND_ASSIGN(CudaDevice* const by_address,
                       devices_->ByPciAddress(device_->pci_address()));
  EXPECT_EQ(by_uuid, device_);
  EXPECT_EQ(by_address, device_);
  EXPECT_THAT(device_->uuid(), AllOf(SizeIs(40), ::testing::StartsWith("GPU-")));
}

TEST_F(DeviceMemoryTest, ADeviceThatIsNotThereIsNamedBesideThoseThatAre) {
  const auto names_all = AllOf(HasSubstr(device_->uuid()), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(devices_->ByIndex(1000),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("1000"), names_all)));
  EXPECT_THAT(devices_->ByIndex(-1), StatusIs(absl::StatusCode::kNotFound, names_all));
  EXPECT_THAT(devices_->ByUuid("GPU-0"), StatusIs(absl::StatusCode::kNotFound, names_all));
  EXPECT_THAT(devices_->ByPciAddress("ffff:00:00.0"),
              StatusIs(absl::StatusCode::kNotFound, names_all));
}

TEST_F(DeviceMemoryTest, HostMemoryIsOfTheHostPinnedOrNot) {
  std::vector<std::byte> plain(100);
  ASSERT_OK_AND_ASSIGN(const PinnedBuffer pinned, PinnedBuffer::Allocate(device_, 4096));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion of_plain,
                       ClassifyRegion(*devices_, plain.data(), plain.size()));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion of_pinned,
                       ClassifyRegion(*devices_, pinned.data(), 4096));
  EXPECT_EQ(of_plain, (MemoryRegion{plain.data(), 100, MemoryKind::kHost, ""}));
  EXPECT_EQ(of_pinned, (MemoryRegion{pinned.data(), 4096, MemoryKind::kHost, ""}));
}

TEST_F(DeviceMemoryTest, DeviceMemoryIsOfItsDevice) {
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer, DeviceBuffer::Allocate(device_, 1 << 20));
  auto* const inside = static_cast<std::byte*>(buffer.pointer()) + 100;
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region, ClassifyRegion(*devices_, inside, 1000));
  EXPECT_EQ(region, (MemoryRegion{inside, 1000, MemoryKind::kDevice, device_->pci_address()}));
  EXPECT_EQ(Register(inside, 1000)->region(), region);
}

TEST_F(DeviceMemoryTest, ARangeThatLeavesDeviceMemoryIsRefused) {
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer, DeviceBuffer::Allocate(device_, 4096));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device memory"));
  EXPECT_THAT(ClassifyRegion(*devices_, buffer.pointer(), kFarTooMany), refused);
  EXPECT_THAT(DeviceMemory::Register(*devices_, buffer.pointer(), kFarTooMany), refused);
  EXPECT_THAT(ClassifyRegion(*devices_, buffer.pointer(), UINT64_MAX),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("there can be no memory")));
}

TEST_F(DeviceMemoryTest, APointerThatIsNoDeviceMemoryIsNotRegistered) {
  std::vector<std::byte> host(100);
  ASSERT_OK_AND_ASSIGN(const PinnedBuffer pinned, PinnedBuffer::Allocate(device_, 4096));
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are no device memory"));
  EXPECT_THAT(DeviceMemory::Register(*devices_, host.data(), host.size()), refused);
  EXPECT_THAT(DeviceMemory::Register(*devices_, pinned.data(), 4096), refused);
  EXPECT_THAT(DeviceMemory::Register(*devices_, nullptr, 10),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DeviceMemory::Register(*devices_, host.data(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(DeviceMemoryTest, OneRegistrationHoldsForManyUses) {
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer, DeviceBuffer::Allocate(device_, 4096));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  EXPECT_THAT(memory->allocations(), SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use one, memory->BeginUse());
  ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use other, memory->BeginUse());
  EXPECT_OK(memory->Verify());
}

TEST_F(DeviceMemoryTest, MemoryThatWasFreedWhileRegisteredIsNotUsed) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Allocate(device_, 1 << 20);
  ASSERT_OK(buffer);
  const std::unique_ptr<DeviceMemory> memory = Register(*buffer);
  buffer = absl::CancelledError("freed");
  EXPECT_THAT(memory->BeginUse(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lies none any more")));
  EXPECT_THAT(memory->Verify(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(DeviceMemoryTest, AnotherAllocationAtTheSameAddressIsNotTheRegisteredOne) {
  std::optional<DeviceBuffer> buffer;
  buffer.emplace(Filled(PatternBytes(4 << 20, 1)));
  const std::unique_ptr<DeviceMemory> memory = Register(*buffer);
  const uint64_t address = buffer->address();
  buffer.reset();
  buffer.emplace(Filled(PatternBytes(4 << 20, 2)));
  ASSERT_EQ(buffer->address(), address)
      << "the driver does not give the address again: the test proves nothing";
  EXPECT_THAT(memory->BeginUse(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another allocation")));
}

TEST_F(DeviceMemoryTest, ARangeOverManyMappingsIsOneRegistration) {
  const MappedMemory mapped(device_, 3);
  const uint64_t begin = mapped.address() + 1000;
  const uint64_t bytes = mapped.bytes() - 2000;
  const std::unique_ptr<DeviceMemory> memory = Register(reinterpret_cast<void*>(begin), bytes);
  ASSERT_THAT(memory->allocations(), SizeIs(3));
  EXPECT_EQ(memory->allocations()[0].address, mapped.address());
  EXPECT_EQ(memory->allocations()[1].address, mapped.address() + mapped.mapping_bytes());
  EXPECT_NE(memory->allocations()[0].buffer_id, memory->allocations()[1].buffer_id);
  const std::vector<std::byte> pattern = PatternBytes(bytes, 5);
  WriteDevice(begin, pattern);
  EXPECT_EQ(ReadDevice(begin, bytes), pattern);
}

TEST_F(DeviceMemoryTest, MemoryOfAnEngineThatSleepsAndWakesIsRefusedThroughout) {
  MappedMemory mapped(device_, 2);
  const std::unique_ptr<DeviceMemory> memory = Register(mapped.pointer(), mapped.bytes());
  EXPECT_OK(memory->BeginUse());
  mapped.Unmap();
  EXPECT_THAT(memory->BeginUse(), StatusIs(absl::StatusCode::kFailedPrecondition));
  mapped.Map();
  EXPECT_THAT(memory->BeginUse(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another allocation")));
  EXPECT_OK(Register(mapped.pointer(), mapped.bytes())->BeginUse());
}

TEST_F(DeviceMemoryTest, RevokingWaitsForUsesAndRefusesNewOnes) {
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer, DeviceBuffer::Allocate(device_, 4096));
  const std::unique_ptr<DeviceMemory> memory = Register(buffer);
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use use, memory->BeginUse());
    EXPECT_THAT(memory->Revoke(absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("must not be freed yet")));
    EXPECT_THAT(memory->BeginUse(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("revoked")));
  }
  EXPECT_OK(memory->Revoke(absl::Seconds(10)));
}

}  // namespace
}  // namespace th
