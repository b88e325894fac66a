#include "th/transfer/cuda_ipc/exported_memory.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"

namespace th::cuda_ipc {
namespace {

using ::testing::HasSubstr;
using testing::OpenDescriptors;
using testing::StatusIs;

class ExportedMemoryTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    Create({});
  }
  void Create(ExportedMemory::Options options) {
    auto exported = ExportedMemory::Create(
        std::shared_ptr<const CudaDevices>(devices_.get(), [](auto*) {}), options);
    ASSERT_OK(exported.status());
    exported_ = *std::move(exported);
    ASSERT_OK_AND_ASSIGN(peer_, PeerTable::Open(getpid(), exported_->table().offered(), 0));
  }
  std::unique_ptr<AttachedMemory> Attach(const std::vector<MemoryRegion>& regions) {
    auto attached = exported_->Attach(regions, ExportedMemory::OnDetach::kAwaitReaders);
    EXPECT_OK(attached.status());
    return *std::move(attached);
  }
  MemoryRegion Region(uint64_t address, uint64_t bytes) const {
    return {reinterpret_cast<void*>(address), bytes, MemoryKind::kDevice, device_->pci_address()};
  }
  absl::StatusOr<uint32_t> SlotOf(uint64_t address, uint64_t bytes) {
    const auto span = exported_->SpanOf(address, bytes);
    return span.ok() ? absl::StatusOr<uint32_t>(span->slot) : span.status();
  }
  SharedAllocation Shared(uint64_t address, uint64_t bytes) {
    const auto slot = SlotOf(address, bytes);
    EXPECT_OK(slot.status());
    const auto shared = peer_->Read(*slot);
    EXPECT_OK(shared.status());
    return *shared;
  }

  std::shared_ptr<ExportedMemory> exported_;
  std::shared_ptr<PeerTable> peer_;
};

TEST_F(ExportedMemoryTest, ThousandsOfTensorsInOneAllocationAreSharedOnce) {
  const DeviceBuffer arena = Filled(PatternBytes(1 << 20, 1));
  std::vector<MemoryRegion> tensors;
  for (uint64_t at = 0; at + 50 <= arena.bytes(); at += 57) {
    tensors.push_back(Region(arena.address() + at, 50));
  }
  const auto attached = Attach(tensors);
  EXPECT_EQ(exported_->table().shared(), 0) << "nobody has asked yet";
  ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(arena.address(), 50));
  for (const MemoryRegion& tensor : tensors) {
    EXPECT_THAT(SlotOf(reinterpret_cast<uint64_t>(tensor.address), tensor.bytes),
                testing::IsOkAndHolds(slot));
  }
  EXPECT_EQ(exported_->table().shared(), 1);
  const SharedAllocation shared = Shared(arena.address(), 50);
  EXPECT_EQ(shared.address, arena.address());
  EXPECT_EQ(shared.exported.bytes, arena.bytes());
  EXPECT_EQ(shared.exported.device_uuid, device_->uuid());
}

TEST_F(ExportedMemoryTest, ATensorOverSeveralMappingsHasALinkedSlotForEach) {
  const MappedMemory arena(device_, 3, /*exportable=*/true);
  const auto attached = Attach({Region(arena.address(), arena.bytes())});
  const uint64_t begin = arena.address() + 100;
  SharedAllocation shared = Shared(begin, arena.bytes() - 100);
  for (uint64_t mapping = 0;; ++mapping) {
    EXPECT_EQ(shared.address, arena.address() + mapping * arena.mapping_bytes());
    EXPECT_EQ(shared.exported.bytes, arena.mapping_bytes());
    if (mapping == 2) break;
    ASSERT_NE(shared.next, 0);
    ASSERT_OK_AND_ASSIGN(shared, peer_->Read(shared.next - 1));
  }
}

TEST_F(ExportedMemoryTest, OnlyWhatIsAttachedIsShared) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  EXPECT_THAT(SlotOf(buffer.address(), 10), StatusIs(absl::StatusCode::kNotFound));
  const auto attached = Attach({Region(buffer.address(), 1000)});
  EXPECT_OK(SlotOf(buffer.address(), 1000).status());
  EXPECT_THAT(SlotOf(buffer.address() + buffer.bytes(), 10), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ExportedMemoryTest, WhatIsDetachedIsRetired) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  auto attached = Attach({Region(buffer.address(), 1000)});
  auto also = Attach({Region(buffer.address(), 10)});
  ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(buffer.address(), 10));
  const uint64_t id = Shared(buffer.address(), 10).id;
  attached.reset();
  EXPECT_TRUE(peer_->StillShared(slot, id)) << "another buffer lies in it too";
  also.reset();
  EXPECT_FALSE(peer_->StillShared(slot, id));
  EXPECT_EQ(exported_->table().shared(), 0);
}

TEST_F(ExportedMemoryTest, AThousandAttachmentsLeaveNothingBehind) {
  const testing::FakeCuda fake;
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  const MappedMemory arena(device_, 2, /*exportable=*/true);
  const auto share_once = [&] {
    const auto attached =
        Attach({Region(buffer.address(), 1000), Region(arena.address(), arena.bytes())});
    ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(buffer.address(), 1000));
    EXPECT_OK(SlotOf(arena.address(), arena.bytes()).status());
    EXPECT_EQ(exported_->table().shared(), 3);
    EXPECT_LT(slot, 10) << "slots that were given back are not taken again";
  };
  share_once();
  const uint64_t live = fake.live();
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) share_once();
  EXPECT_EQ(exported_->table().shared(), 0);
  EXPECT_EQ(fake.live(), live);
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST_F(ExportedMemoryTest, ADetachWaitsForReadersButNotForEver) {
  Create({.release_timeout = absl::Milliseconds(1)});
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  auto attached = Attach({Region(buffer.address(), 1000)});
  ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(buffer.address(), 10));
  ASSERT_OK(exported_->table().ReaderOf(getpid()).status());
  ASSERT_TRUE(peer_->Enter(slot, Shared(buffer.address(), 10).id));
  attached.reset();  // one that never leaves
  EXPECT_FALSE(exported_->table().AwaitReleased({slot}, absl::ZeroDuration()));
  peer_->Leave(slot);
}

TEST_F(ExportedMemoryTest, MemoryThatWasFreedIsNotSharedAnyMore) {
  auto buffer = std::make_unique<DeviceBuffer>(Filled(PatternBytes(1000, 1)));
  const uint64_t address = buffer->address();
  const auto attached = Attach({Region(address, 1000)});
  ASSERT_OK(SlotOf(address, 10).status());
  buffer.reset();
  // Looked at again after a millisecond.
  while (SlotOf(address, 10).ok()) continue;
  EXPECT_THAT(SlotOf(address, 10), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ExportedMemoryTest, WhatIsMappedAnewHasAnotherId) {
  MappedMemory engine(device_, 1, /*exportable=*/true);
  const auto before = Attach({Region(engine.address(), 1000)});
  ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(engine.address(), 10));
  const uint64_t id = Shared(engine.address(), 10).id;
  engine.Unmap();
  engine.Map();
  const auto after = Attach({Region(engine.address(), 1000)});
  EXPECT_FALSE(peer_->StillShared(slot, id));
  EXPECT_NE(Shared(engine.address(), 10).id, id);
}

TEST_F(ExportedMemoryTest, DescriptorsOfMappingsAreBounded) {
  Create({.max_descriptors = 2, .fetch_time = absl::ZeroDuration()});
  const MappedMemory arena(device_, 6, /*exportable=*/true);
  auto attached = Attach({Region(arena.address(), arena.bytes())});
  const size_t before = OpenDescriptors();
  const auto at = [&](uint64_t mapping) {
    return arena.address() + mapping * arena.mapping_bytes();
  };
  const SharedAllocation first = Shared(at(0), 1);
  for (uint64_t mapping = 1; mapping < 6; ++mapping) Shared(at(mapping), 1);
  EXPECT_EQ(OpenDescriptors(), before + 2);
  // One whose descriptor was closed is exported anew, as the same memory.
  ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(at(0), 1));
  EXPECT_TRUE(peer_->StillShared(slot, first.id));
  const SharedAllocation again = Shared(at(0), 1);
  EXPECT_OK(FetchDescriptor(getpid(), again.exported.file_descriptor).status());
  attached.reset();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(ExportedMemoryTest, DescriptorThatAReaderMayBeAboutToFetchStaysOpen) {
  Create(
      {.max_descriptors = 2, .fetch_time = absl::InfiniteDuration(), .max_recent_descriptors = 4});
  const MappedMemory arena(device_, 6, /*exportable=*/true);
  const auto attached = Attach({Region(arena.address(), arena.bytes())});
  const size_t before = OpenDescriptors();
  const auto at = [&](uint64_t mapping) {
    return arena.address() + mapping * arena.mapping_bytes();
  };
  std::vector<uint32_t> slots;
  for (uint64_t mapping = 0; mapping < 4; ++mapping) {
    ASSERT_OK_AND_ASSIGN(const uint32_t slot, SlotOf(at(mapping), 1));
    slots.push_back(slot);
  }
  for (const uint32_t slot : slots) {
    ASSERT_OK_AND_ASSIGN(const SharedAllocation shared, peer_->Read(slot));
    EXPECT_OK(FetchDescriptor(getpid(), shared.exported.file_descriptor).status());
  }
  // Not without end.
  for (uint64_t mapping = 4; mapping < 6; ++mapping) Shared(at(mapping), 1);
  EXPECT_EQ(OpenDescriptors(), before + 4);
}

TEST_F(ExportedMemoryTest, MemoryWithoutAHandleSaysWhatToDo) {
  const MappedMemory mapped(device_, 1);
  const auto attached = Attach({Region(mapped.address(), 1000)});
  const auto says =
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("expandable_segments:False"));
  EXPECT_THAT(exported_->CheckExportable(mapped.address(), 1000), says);
  EXPECT_THAT(SlotOf(mapped.address(), 10), says);
  EXPECT_EQ(exported_->table().shared(), 0);
}

TEST_F(ExportedMemoryTest, WhatIsNoDeviceMemoryIsRefused) {
  std::vector<std::byte> host(100);
  EXPECT_THAT(exported_->Attach({{Region(reinterpret_cast<uint64_t>(host.data()), 100)}},
                                ExportedMemory::OnDetach::kGoOn),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device memory")));
}

}  // namespace
}  // namespace th::cuda_ipc
