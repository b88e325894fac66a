// One registration for all that lies in an allocation. Runs on the fake driver and on GPUs.
#include "th/memory/cuda/registration_cache.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/stream.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kTensors = 18'000;

class RegistrationCacheTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    cache_.emplace(*devices_, RegistrationCache::Options{.max_registrations = 4});
  }
  static const void* At(uint64_t address) { return reinterpret_cast<const void*>(address); }

  std::optional<RegistrationCache> cache_;
};

TEST_F(RegistrationCacheTest, ThousandsOfTensorsInOneArenaAreOneRegistration) {
  // 64 GiB in the fake, of which nothing is touched.
  const uint64_t bytes = IsFakeDriver() ? uint64_t{64} << 30 : uint64_t{1} << 30;
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer arena, DeviceBuffer::Allocate(device_, bytes));
  const uint64_t tensor_bytes = bytes / kTensors;
  const DeviceMemory* first = nullptr;
  for (uint64_t i = 0; i < kTensors; ++i) {
    ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found found,
                         cache_->Find(At(arena.address() + i * tensor_bytes), tensor_bytes));
    if (first == nullptr) first = found.memory.get();
    ASSERT_EQ(found.memory.get(), first);
    ASSERT_EQ(found.memory->address() + found.offset, arena.address() + i * tensor_bytes);
  }
  EXPECT_EQ(cache_->size(), 1);
  EXPECT_GE(first->bytes(), bytes) << "the whole allocation";
}

TEST_F(RegistrationCacheTest, MemoryThatIsMappedAnewIsAnotherRegistration) {
  MappedMemory mapped(device_, 2);
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found before, cache_->Find(mapped.pointer(), 1000));
  mapped.Unmap();
  EXPECT_THAT(cache_->Find(mapped.pointer(), 1000),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device memory")));
  mapped.Map();
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found after, cache_->Find(mapped.pointer(), 1000));
  EXPECT_NE(after.memory, before.memory);
  EXPECT_THAT(before.memory->BeginUse(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(after.memory->BeginUse());
  EXPECT_EQ(cache_->size(), 1);
}

TEST_F(RegistrationCacheTest, ARangeOverMoreMappingsReplacesThatOfFewerWhoseUsesAreWaitedFor) {
  const MappedMemory mapped(device_, 3);
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found one, cache_->Find(mapped.pointer(), 1000));
  EXPECT_EQ(one.memory->bytes(), mapped.mapping_bytes());
  const uint64_t across = mapped.address() + mapped.mapping_bytes() - 10;
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found two, cache_->Find(At(across), 20));
  EXPECT_THAT(two.memory->allocations(), SizeIs(2));
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found again, cache_->Find(mapped.pointer(), 1000));
  EXPECT_EQ(again.memory, two.memory);
  EXPECT_EQ(cache_->size(), 1);
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use use, one.memory->BeginUse());
    EXPECT_THAT(cache_->Revoke(mapped.pointer(), mapped.bytes(), absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_OK(cache_->Revoke(mapped.pointer(), mapped.bytes(), absl::Seconds(10)));
}

TEST_F(RegistrationCacheTest, WhatIsRegisteredApartIsOfItsOwnMappingsAndItsUsesAreWaitedFor) {
  const MappedMemory mapped(device_, 2);
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found both,
                       cache_->Find(mapped.pointer(), mapped.bytes()));
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<DeviceMemory> one,
                       cache_->RegisterApart(mapped.pointer(), 1000));
  EXPECT_EQ(one->bytes(), mapped.mapping_bytes());
  EXPECT_THAT(one->allocations(), SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found again, cache_->Find(mapped.pointer(), 1000));
  EXPECT_EQ(again.memory, both.memory) << "the cache goes on with what it has";
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use use, one->BeginUse());
    EXPECT_THAT(cache_->Revoke(mapped.pointer(), mapped.bytes(), absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_OK(cache_->Revoke(mapped.pointer(), mapped.bytes(), absl::Seconds(10)));
  EXPECT_FALSE(one->BeginUse().ok());
}

TEST_F(RegistrationCacheTest, RevokedMemoryIsForgottenOnceNobodyUsesIt) {
  const DeviceBuffer buffer = Filled(PatternBytes(1 << 20, 1));
  const DeviceBuffer other = Filled(PatternBytes(1 << 20, 2));
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found found, cache_->Find(buffer.pointer(), 100));
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found untouched,
                       cache_->Find(other.pointer(), 100));
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory::Use use, found.memory->BeginUse());
    EXPECT_THAT(cache_->Revoke(At(buffer.address() + 50), 1, absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("must not be freed yet")));
    EXPECT_EQ(cache_->size(), 2);
  }
  ASSERT_OK(cache_->Revoke(At(buffer.address() + 50), 1, absl::Seconds(10)));
  EXPECT_EQ(cache_->size(), 1);
  EXPECT_THAT(found.memory->BeginUse(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(untouched.memory->BeginUse());
  // It is still there, so it may be registered anew.
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found anew, cache_->Find(buffer.pointer(), 100));
  EXPECT_OK(anew.memory->BeginUse());
}

TEST_F(RegistrationCacheTest, UsesOfARegionAreWaitedForAndThoseBesideItAreNot) {
  const DeviceBuffer buffer = Filled(PatternBytes(1 << 20, 1));
  ASSERT_OK_AND_ASSIGN(const RegistrationCache::Found found, cache_->Find(buffer.pointer(), 100));
  const MemoryRegion region = {buffer.pointer(), 100, MemoryKind::kDevice, device_->pci_address()};
  std::optional<DeviceMemory::Use> within, beside;
  within.emplace(*found.memory->BeginUse(50, 100));
  EXPECT_THAT(cache_->AwaitUses({{region}}, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(device_->pci_address())));
  std::thread waiting([&] { EXPECT_OK(cache_->AwaitUses({{region}}, absl::InfiniteDuration())); });
  within.reset();
  waiting.join();
  beside.emplace(*found.memory->BeginUse(100, 100));
  EXPECT_OK(cache_->AwaitUses({{region}}, absl::ZeroDuration())) << "beside the region";
}

TEST_F(RegistrationCacheTest, RegistrationsHaveALimit) {
  std::vector<DeviceBuffer> buffers;
  for (uint64_t i = 0; i < 5; ++i) buffers.push_back(Filled(PatternBytes(4 << 20, i)));
  for (int i = 0; i < 4; ++i) ASSERT_OK(cache_->Find(buffers[i].pointer(), 10));
  EXPECT_THAT(cache_->Find(buffers[4].pointer(), 10),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("4 registrations")));
  ASSERT_OK(cache_->Revoke(buffers[0].pointer(), 10, absl::Seconds(10)));
  EXPECT_OK(cache_->Find(buffers[4].pointer(), 10));
}

TEST_F(RegistrationCacheTest, WhatIsNoDeviceMemoryIsRefused) {
  std::byte host{};
  EXPECT_THAT(cache_->Find(&host, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(cache_->size(), 0);
  EXPECT_OK(cache_->Revoke(&host, 1, absl::ZeroDuration()));
}

}  // namespace
}  // namespace th
