// SegmentStore over device memory. With the fake driver a dereferenced device pointer crashes the
// test.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

using Place = SegmentStore::Place;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr BufferGeneration kFirst(1);

// Stands still before it copies to the host.
class GatedSide : public DeviceSide {
 public:
  explicit GatedSide(std::shared_ptr<DeviceSide> side) : side_(std::move(side)) {}
  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) override {
    return side_->Checksum(segments);
  }
  absl::Status CopyToHost(absl::Span<const DeviceCopy> copies) override {
    entered.Notify();
    go_on.WaitForNotification();
    return side_->CopyToHost(copies);
  }
  absl::Status CopyToDevice(absl::Span<const DeviceCopy> copies) override {
    return side_->CopyToDevice(copies);
  }
  absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) override {
    return side_->AllocatePinned(bytes);
  }
  absl::Status Revoke(absl::Duration timeout) override { return side_->Revoke(timeout); }
  void Restore() override { side_->Restore(); }

  absl::Notification entered, go_on;

 private:
  const std::shared_ptr<DeviceSide> side_;
};

class DeviceStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<TestShard> Shard(bool every_other_on_host = false) {
    auto shard = std::make_unique<TestShard>(
        TestShard::Spec{.device = &device_, .every_other_on_host = every_other_on_host});
    shard->FillWith(3);
    return shard;
  }
  static std::string CopyOut(TestShard& shard, SegmentIndex segment) {
    std::string bytes(shard.layout().SegmentLength(segment), 0);
    const auto copied = shard.store()->CopyOut(
        segment, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
    EXPECT_OK(copied.status());
    return bytes;
  }
  // The memory of another store, for one of the same layout.
  static StorageMemory MemoryOf(const TestShard& shard, std::shared_ptr<DeviceSide> device) {
    StorageMemory memory{.regions = {}, .device = std::move(device)};
    const std::vector<MemoryRegion> regions = shard.store()->regions();
    size_t next = 0;
    for (const ShardLayout::Storage& storage : shard.layout().storages()) {
      memory.regions.push_back(storage.bytes > 0 ? regions[next++] : MemoryRegion());
    }
    return memory;
  }
  static absl::Status TryCopyOut(TestShard& shard, SegmentIndex segment) {
    std::vector<std::byte> bytes(shard.layout().SegmentLength(segment));
    return shard.store()->CopyOut(segment, absl::MakeSpan(bytes)).status();
  }
  static absl::Status CopyIn(TestShard& shard, SegmentIndex segment, const std::string& bytes) {
    return shard.store()->CopyIn(
        segment,
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  }

  CudaTestDevice device_;
  std::atomic<bool> never_{false};
};

TEST_F(DeviceStoreTest, RegionsHaveTheirKindAndDevice) {
  const auto shard = Shard();
  std::vector<MemoryRegion> regions = shard->store()->regions();
  ASSERT_EQ(regions.back().kind, MemoryKind::kHost);  // the control block
  regions.pop_back();
  ASSERT_THAT(regions, Not(IsEmpty()));
  for (const MemoryRegion& region : regions) {
    EXPECT_EQ(region.kind, MemoryKind::kDevice);
    EXPECT_EQ(region.device, device_.pci_address());
  }
}

TEST_F(DeviceStoreTest, SegmentsOfSeveralKindsOfMemoryAreKnownAsSuch) {
  const auto shard = Shard(/*every_other_on_host=*/true);
  std::vector<Place> places;
  for (uint64_t i = 0; i < shard->segment_count(); ++i) {
    places.push_back(shard->store()->PlaceOf(SegmentIndex(i)));
  }
  EXPECT_THAT(places, Contains(Place::kHost));
  EXPECT_THAT(places, Contains(Place::kMixed));
  EXPECT_EQ(Shard()->store()->PlaceOf(SegmentIndex(0)), Place::kDevice);
}

TEST_F(DeviceStoreTest, PiecesOfTwoDevicesAreAMixture) {
  CudaTestDevice second(1);
  TestShard::Spec spec{.tensor_bytes = {1000, 1000}};
  const TestShard host(spec);
  StorageMemory memory;
  memory.regions = {{device_.Allocate(1000), 1000, MemoryKind::kDevice, device_.pci_address()},
                    {second.Allocate(1000), 1000, MemoryKind::kDevice, second.pci_address()}};
  ASSERT_OK_AND_ASSIGN(memory.device, device_.devices()->Register(memory.regions));
  device_.Write(memory.regions[0].address, std::string(1000, 'a'));
  second.Write(memory.regions[1].address, std::string(1000, 'b'));
  SegmentStore store(host.store()->shared_layout(), memory);
  EXPECT_EQ(store.PlaceOf(SegmentIndex(0)), Place::kMixed);
  store.Publish(kFirst);
  ASSERT_OK(store.Seal(never_).status());
  const std::string bytes = std::string(1000, 'a') + std::string(1000, 'b');
  EXPECT_THAT(store.checksums(), ElementsAre(ChecksumBytes(bytes.data(), bytes.size())));
}

TEST_F(DeviceStoreTest, SealTakesTheSumsThatTheHostWould) {
  const auto shard = Shard();
  shard->store()->Publish(kFirst);
  EXPECT_THAT(shard->store()->Seal(never_), IsOkAndHolds(shard->Root()));
  EXPECT_EQ(shard->store()->ChecksumOf(SegmentIndex(2)), shard->ChecksumOf(SegmentIndex(2)));
}

// A model goes to the host to be sent. To be summed it stays where it is: sums alone come back.
TEST_F(DeviceStoreTest, SealCopiesNoWeightsToTheHost) {
  const FakeCuda fake;
  const auto shard = Shard();
  uint64_t bytes_of_checksums = 0;
  for (uint64_t i = 0; i < shard->segment_count(); ++i) {
    const uint64_t bytes = shard->layout().SegmentLength(SegmentIndex(i));
    bytes_of_checksums += (bytes + kLeafBytes - 1) / kLeafBytes * sizeof(SegmentChecksum);
  }
  shard->store()->Publish(kFirst);
  const uint64_t before = fake.bytes_to_host();
  ASSERT_OK(shard->store()->Seal(never_).status());
  EXPECT_EQ(fake.bytes_to_host() - before, bytes_of_checksums);
  EXPECT_LT(bytes_of_checksums, shard->layout().bytes() / 100);
  // Copies to the host are counted, or the figure above would show nothing.
  CopyOut(*shard, SegmentIndex(0));
  EXPECT_EQ(fake.bytes_to_host() - before,
            bytes_of_checksums + shard->layout().SegmentLength(SegmentIndex(0)));
}

TEST_F(DeviceStoreTest, SealSumsAMixtureOfMemory) {
  const auto shard = Shard(/*every_other_on_host=*/true);
  shard->store()->Publish(kFirst);
  EXPECT_THAT(shard->store()->Seal(never_), IsOkAndHolds(shard->Root()));
}

TEST_F(DeviceStoreTest, SumsAreNeverTakenOnTheServingThread) {
  const auto shard = Shard();
  shard->store()->Publish(kFirst);
  EXPECT_FALSE(shard->store()->IsChecksummed(SegmentIndex(0)));
  EXPECT_THAT(shard->store()->ChecksumsOf(shard->all(), 100, /*compute=*/true), IsEmpty());
  EXPECT_EQ(shard->store()->ChecksumOf(SegmentIndex(0)), SegmentChecksum(0));
  ASSERT_OK(shard->store()->Seal(never_).status());
  EXPECT_EQ(shard->store()->ChecksumsOf(shard->all(), 100, /*compute=*/true).size(),
            shard->segment_count());
}

TEST_F(DeviceStoreTest, WhoWaitsForASumIsToldWhenTheDeviceHasTakenIt) {
  const auto shard = Shard();
  shard->store()->Publish(kFirst);
  absl::Notification reported;
  ASSERT_NE(shard->store()->NotifyWhenReady(
                RequestQueue(), [&] { reported.Notify(); }, SegmentIndex(0)),
            0);
  EXPECT_FALSE(reported.HasBeenNotified());
  ASSERT_OK(shard->store()->Seal(never_).status());
  EXPECT_TRUE(reported.HasBeenNotified());
}

TEST_F(DeviceStoreTest, SegmentsAreCopiedOutWithTheirSum) {
  for (const bool mixed : {false, true}) {
    const auto shard = Shard(mixed);
    shard->store()->Publish(kFirst);
    for (uint64_t i = 0; i < shard->segment_count(); ++i) {
      const SegmentIndex segment(i);
      EXPECT_EQ(CopyOut(*shard, segment), shard->BytesOf(segment));
      EXPECT_TRUE(shard->store()->IsChecksummed(segment));
      EXPECT_EQ(shard->store()->ChecksumOf(segment), shard->ChecksumOf(segment));
    }
  }
}

TEST_F(DeviceStoreTest, SegmentsAreCopiedIn) {
  for (const bool mixed : {false, true}) {
    const auto from = Shard();
    const auto into = Shard(mixed);
    into->FillWith(9);
    for (uint64_t i = 0; i < from->segment_count(); ++i) {
      ASSERT_OK(CopyIn(*into, SegmentIndex(i), from->BytesOf(SegmentIndex(i))));
    }
    EXPECT_TRUE(into->Equals(*from));
  }
}

TEST_F(DeviceStoreTest, TinyTensorsArePackedOnTheDevice) {
  TestShard::Spec spec{.tensor_bytes = {}, .segment_bytes = 4096, .device = &device_};
  for (uint64_t i = 0; i < 900; ++i) spec.tensor_bytes.push_back(1 + i % 37);
  TestShard from(spec), into(spec);
  from.FillWith(5);
  from.store()->Publish(kFirst);
  for (uint64_t i = 0; i < from.segment_count(); ++i) {
    ASSERT_OK(CopyIn(into, SegmentIndex(i), CopyOut(from, SegmentIndex(i))));
  }
  EXPECT_TRUE(into.Equals(from));
}

TEST_F(DeviceStoreTest, MemoryThatWasFreedIsRefusedAndNotRead) {
  const auto shard = Shard();
  shard->store()->Publish(kFirst);
  shard->FreeMemory();
  EXPECT_THAT(TryCopyOut(*shard, SegmentIndex(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
  EXPECT_THAT(shard->store()->Seal(never_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
  EXPECT_FALSE(shard->store()->IsChecksummed(SegmentIndex(0)));
  EXPECT_THAT(CopyIn(*shard, SegmentIndex(0), std::string(65'536, 'x')),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
}

TEST_F(DeviceStoreTest, RevokedMemoryIsRefused) {
  const auto shard = Shard();
  shard->store()->Publish(kFirst);
  ASSERT_OK(shard->device_side()->Revoke(absl::ZeroDuration()));
  EXPECT_THAT(TryCopyOut(*shard, SegmentIndex(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("revoked")));
}

TEST_F(DeviceStoreTest, SegmentThatIsNotHeldIsNotCopied) {
  const auto shard = Shard();
  EXPECT_THAT(TryCopyOut(*shard, SegmentIndex(0)), StatusIs(absl::StatusCode::kCancelled));
  shard->store()->BeginFill(kFirst, {});
  EXPECT_THAT(TryCopyOut(*shard, SegmentIndex(0)),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("not held")));
}

TEST_F(DeviceStoreTest, CloseIsFollowedByAWaitForTheCopyUnderWay) {
  const auto shard = Shard();
  const auto gated = std::make_shared<GatedSide>(shard->device_side());
  SegmentStore store(shard->store()->shared_layout(), MemoryOf(*shard, gated));
  store.Publish(kFirst);
  std::vector<std::byte> bytes(shard->layout().SegmentLength(SegmentIndex(0)));
  absl::Status copied;
  std::thread copying(
      [&] { copied = store.CopyOut(SegmentIndex(0), absl::MakeSpan(bytes)).status(); });
  gated->entered.WaitForNotification();
  EXPECT_OK(store.AwaitDevices(absl::ZeroDuration())) << "what is read is published";
  store.Close(BufferGeneration(2));
  const auto lingers =
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(device_.pci_address()));
  EXPECT_THAT(store.AwaitDevices(absl::Milliseconds(1)), lingers);
  EXPECT_THAT(store.Rebind(MemoryOf(*shard, gated)), lingers);
  // Another publication does not wait, nor is its own reading waited for.
  store.Publish(BufferGeneration(3));
  EXPECT_THAT(store.AwaitDevices(absl::ZeroDuration()), lingers);
  gated->go_on.Notify();
  EXPECT_OK(store.AwaitDevices(kPatience));
  copying.join();
  EXPECT_THAT(copied, StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(DeviceStoreTest, WhatADeviceWritesIsAwaitedWhoeverHasGivenItUp) {
  const auto in_use =
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("GPU 0000:07:00.0 has not ended"));
  const auto shard = Shard();
  SegmentStore& store = *shard->store();
  store.BeginFill(kFirst, {});
  auto write = SegmentStore::BeginDeviceWrite(shard->store(), "0000:07:00.0");
  auto same = SegmentStore::BeginDeviceWrite(shard->store(), "0000:07:00.0");
  EXPECT_THAT(store.AwaitDevices(absl::ZeroDuration()), in_use);
  write = nullptr;
  store.Close(BufferGeneration(2));
  EXPECT_THAT(store.AwaitDevices(absl::ZeroDuration()), in_use);
  EXPECT_THAT(store.Rebind(std::vector<void*>(store.layout().storages().size())), in_use);
  same = nullptr;
  EXPECT_OK(store.AwaitDevices(absl::ZeroDuration()));
}

TEST_F(DeviceStoreTest, RebindGoesFromTheHostToADeviceAndBack) {
  TestShard host(TestShard::Spec{});
  const auto shard = Shard();
  host.FillWith(1);
  SegmentStore store(host.store()->shared_layout(),
                     std::vector<void*>(host.layout().storages().size()));
  ASSERT_OK(store.Rebind(MemoryOf(*shard, shard->device_side())));
  EXPECT_EQ(store.PlaceOf(SegmentIndex(0)), Place::kDevice);
  store.Publish(kFirst);
  EXPECT_THAT(store.Seal(never_), IsOkAndHolds(shard->Root()));
  store.Close(BufferGeneration(2));
  ASSERT_OK(store.Rebind(std::vector<void*>(host.layout().storages().size())));
  EXPECT_EQ(store.PlaceOf(SegmentIndex(0)), Place::kHost);
}

TEST_F(DeviceStoreTest, NothingIsLeftBehind) {
  const FakeCuda fake;
  const uint64_t before = fake.live();
  for (int i = 0; i < 3; ++i) {
    CudaTestDevice device;
    TestShard shard({.device = &device});
    shard.FillWith(1);
    shard.store()->Publish(kFirst);
    ASSERT_OK(shard.store()->Seal(never_).status());
    CopyOut(shard, SegmentIndex(0));
  }
  EXPECT_EQ(fake.live(), before);
}

}  // namespace
}  // namespace th::testing
