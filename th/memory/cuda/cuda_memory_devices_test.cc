#include "th/memory/cuda/cuda_memory_devices.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kBytes = 100'000;

class CudaMemoryDevicesTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_OK_AND_ASSIGN(memory_devices_, CudaMemoryDevices::Open(driver_));
  }
  MemoryRegion RegionOf(void* pointer, uint64_t bytes) const {
    return {pointer, bytes, MemoryKind::kDevice, device_->pci_address()};
  }
  MemoryRegion RegionOf(const DeviceBuffer& buffer) const {
    return RegionOf(buffer.pointer(), buffer.bytes());
  }

  std::shared_ptr<CudaMemoryDevices> memory_devices_;
};

TEST_F(CudaMemoryDevicesTest, MemoryIsClassified) {
  const DeviceBuffer buffer = Filled(PatternBytes(kBytes, 1));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region,
                       memory_devices_->Classify(buffer.pointer(), kBytes));
  EXPECT_EQ(region, RegionOf(buffer));
  std::vector<char> host(10);
  ASSERT_OK_AND_ASSIGN(const MemoryRegion of_host, memory_devices_->Classify(host.data(), 10));
  EXPECT_EQ(of_host.kind, MemoryKind::kHost);
}

TEST_F(CudaMemoryDevicesTest, BytesGoBothWaysAndAreSummedWhereTheyLie) {
  const std::vector<std::byte> first = PatternBytes(kBytes, 1), second = PatternBytes(777, 2);
  const DeviceBuffer a = Filled(first), b = Filled(second);
  // A region of the host between them keeps its place in the list.
  ASSERT_OK_AND_ASSIGN(const auto side,
                       memory_devices_->Register({{RegionOf(a), MemoryRegion(), RegionOf(b)}}));
  ASSERT_OK_AND_ASSIGN(const auto pinned, memory_devices_->AllocatePinned(2 * kBytes));
  std::byte* const host = pinned->bytes().data();
  ASSERT_OK(side->CopyToHost({{{0, 10, 500, host}, {2, 0, 777, host + 500}}}));
  EXPECT_TRUE(std::equal(host, host + 500, first.begin() + 10));
  EXPECT_TRUE(std::equal(host + 500, host + 1277, second.begin()));
  ASSERT_OK(side->CopyToDevice({{{0, 0, 777, host + 500}}}));
  EXPECT_EQ(ReadDevice(a.address(), 777), second);
  ASSERT_OK_AND_ASSIGN(const auto checksums, side->Checksum({{{2, 0, 777}}, {{2, 7, 70}}}));
  EXPECT_THAT(checksums,
              ElementsAre(ChecksumBytes(second.data(), 777), ChecksumBytes(second.data() + 7, 70)));
}

TEST_F(CudaMemoryDevicesTest, ThousandsOfPiecesAreGatheredAndScattered) {
  const std::vector<std::byte> bytes = PatternBytes(kBytes, 3);
  const DeviceBuffer from = Filled(bytes), into = Filled(std::vector<std::byte>(kBytes));
  ASSERT_OK_AND_ASSIGN(const auto side,
                       memory_devices_->Register({{RegionOf(from), RegionOf(into)}}));
  ASSERT_OK_AND_ASSIGN(const auto pinned, memory_devices_->AllocatePinned(kBytes));
  std::vector<DeviceCopy> out, in;
  uint64_t packed = 0;
  for (uint64_t at = 0; at + 13 < kBytes; at += 20) {
    out.push_back({0, at, 13, pinned->bytes().data() + packed});
    in.push_back({1, at, 13, pinned->bytes().data() + packed});
    packed += 13;
  }
  ASSERT_OK(side->CopyToHost(out));
  ASSERT_OK(side->CopyToDevice(in));
  const std::vector<std::byte> landed = ReadDevice(into.address(), kBytes);
  for (uint64_t at = 0; at + 13 < kBytes; ++at) {
    const std::byte expected = at % 20 < 13 ? bytes[at] : std::byte{0};
    ASSERT_EQ(landed[at], expected) << at;
  }
}

TEST_F(CudaMemoryDevicesTest, TensorsOfOneArenaAreOneRegistration) {
  const DeviceBuffer arena = Filled(PatternBytes(kBytes, 1));
  std::vector<MemoryRegion> tensors;
  for (uint64_t i = 0; i < 100; ++i) {
    tensors.push_back(RegionOf(static_cast<char*>(arena.pointer()) + i * 1000, 900));
  }
  ASSERT_OK_AND_ASSIGN(auto side, memory_devices_->Register(tensors));
  EXPECT_EQ(memory_devices_->registrations().size(), 1);
  side.reset();
  EXPECT_EQ(memory_devices_->registrations().size(), 0);
}

TEST_F(CudaMemoryDevicesTest, DeviceThatIsNotThereIsRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(kBytes, 1));
  MemoryRegion region = RegionOf(buffer);
  region.device = "00ff:00:00.0";
  EXPECT_THAT(memory_devices_->Register({{region}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(device_->pci_address())));
}

TEST_F(CudaMemoryDevicesTest, PointerThatIsNoDeviceMemoryIsRefused) {
  std::vector<char> host(kBytes);
  EXPECT_THAT(memory_devices_->Register({{RegionOf(host.data(), kBytes)}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are no device memory")));
}

TEST_F(CudaMemoryDevicesTest, RunBeyondItsRegionIsRefusedThoughItsAllocationGoesOn) {
  const DeviceBuffer arena = Filled(PatternBytes(kBytes, 1));
  ASSERT_OK_AND_ASSIGN(const auto side,
                       memory_devices_->Register({{RegionOf(arena.pointer(), 1000)}}));
  std::vector<std::byte> host(2000);
  EXPECT_THAT(side->CopyToHost({{{0, 500, 501, host.data()}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device memory of 1000")));
  EXPECT_THAT(side->CopyToHost({{{1, 0, 1, host.data()}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("region 1")));
}

TEST_F(CudaMemoryDevicesTest, MappedAnewAtTheSameAddressIsRefused) {
  MappedMemory engine(device_, 3);
  ASSERT_OK_AND_ASSIGN(const auto side,
                       memory_devices_->Register({{RegionOf(engine.pointer(), engine.bytes())}}));
  std::vector<std::byte> host(engine.bytes());
  ASSERT_OK(side->CopyToHost({{{0, 0, engine.bytes(), host.data()}}}));
  engine.Unmap();
  engine.Map();
  EXPECT_THAT(side->CopyToHost({{{0, 0, engine.bytes(), host.data()}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
  EXPECT_THAT(side->Checksum({{{0, 0, 100}}}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
}

TEST_F(CudaMemoryDevicesTest, RevokeWaitsForWhatATransportHasAGpuDoWithTheMemory) {
  const DeviceBuffer buffer = Filled(PatternBytes(kBytes, 1));
  ASSERT_OK_AND_ASSIGN(const auto side, memory_devices_->Register({{RegionOf(buffer)}}));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<DeviceMemory> of_transport,
                       memory_devices_->registrations().RegisterApart(buffer.pointer(), kBytes));
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use landing, of_transport->BeginUse(10, 20));
    EXPECT_THAT(side->Revoke(absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(device_->pci_address())));
  }
  EXPECT_OK(side->Revoke(absl::ZeroDuration()));
}

TEST_F(CudaMemoryDevicesTest, RevokeLeavesAloneWhatLiesBesideInTheSameAllocation) {
  const DeviceBuffer arena = Filled(PatternBytes(kBytes, 1));
  ASSERT_OK_AND_ASSIGN(const auto side,
                       memory_devices_->Register({{RegionOf(arena.pointer(), 1000)}}));
  const MemoryRegion beside = RegionOf(static_cast<char*>(arena.pointer()) + 1000, 1000);
  ASSERT_OK_AND_ASSIGN(const auto other, memory_devices_->Register({{beside}}));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<DeviceMemory> of_transport,
                       memory_devices_->registrations().RegisterApart(arena.pointer(), kBytes));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use landing, of_transport->BeginUse(1000, 1000));
  EXPECT_OK(side->Revoke(absl::ZeroDuration()));
  EXPECT_OK(of_transport->BeginUse(1000, 1000));
  std::vector<std::byte> host(1000);
  EXPECT_OK(other->CopyToHost({{{0, 0, 1000, host.data()}}}));
}

TEST_F(CudaMemoryDevicesTest, MemoryThatItsOwnerKeepsIsCopiedAgain) {
  const DeviceBuffer buffer = Filled(PatternBytes(kBytes, 1));
  ASSERT_OK_AND_ASSIGN(const auto side, memory_devices_->Register({{RegionOf(buffer)}}));
  std::vector<std::byte> host(kBytes);
  ASSERT_OK(side->Revoke(absl::ZeroDuration()));
  EXPECT_THAT(side->CopyToHost({{{0, 0, kBytes, host.data()}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("revoked")));
  side->Restore();
  EXPECT_OK(side->CopyToHost({{{0, 0, kBytes, host.data()}}}));
}

}  // namespace
}  // namespace th
