// GPU memory registered with adapters: which way, for how long, and why not. On the fake driver and
// a fake libibverbs.
#include "th/transfer/ibverbs/gpu_registrations.h"

#include <arpa/inet.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/stream.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/ibverbs/fake_verbs.h"

namespace th::ibverbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::CudaTestDevice;
using ::th::testing::FakeCuda;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

constexpr uint64_t kBudget = uint64_t{1} << 40;

class GpuRegistrationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GidEntry gid;
    gid.gid[10] = gid.gid[11] = 0xff;
    gid.gid[12] = 10;
    gid.gid[15] = 1;
    gid.type = GidType::kRoceV2;
    verbs_.devices = {{.name = "fake0", .gids = {gid}}, {.name = "fake1", .gids = {gid}}};
    ASSERT_OK_AND_ASSIGN(const RdmaDevices opened, OpenRdmaDevices(verbs_.library(), {}));
    adapters_ = opened.usable;
    ASSERT_THAT(adapters_, SizeIs(2));
    Make(kBudget);
  }
  void TearDown() override {
    fake_.Fail("cuMemGetHandleForAddressRange", CUDA_SUCCESS, 0, 0);
    fake_.Fail("cuDeviceGetAttribute", CUDA_SUCCESS, 0, 0);
  }
  void Make(uint64_t budget) {
    budget_ = std::make_shared<RegistrationBudget>(budget);
    gpus_.emplace(
        adapters_, [cuda = device_.cuda()] { return cuda; }, budget_);
  }
  MemoryRegion RegionOf(void* address, uint64_t bytes) {
    return {.address = address,
            .bytes = bytes,
            .kind = MemoryKind::kDevice,
            .device = device_.pci_address()};
  }
  CudaDevice* cuda_device() { return device_.cuda()->devices().all()[0].get(); }

  const FakeCuda fake_;
  FakeVerbs verbs_;
  CudaTestDevice device_;
  std::vector<std::shared_ptr<const RdmaDevice>> adapters_;
  std::shared_ptr<RegistrationBudget> budget_;
  std::optional<GpuRegistrations> gpus_;
};

TEST_F(GpuRegistrationsTest, AWholeAllocationIsRegisteredByDmaBufWithEveryAdapter) {
  auto* const memory = static_cast<char*>(device_.Allocate(1 << 20));
  ASSERT_OK_AND_ASSIGN(const auto attached, gpus_->Attach({RegionOf(memory + 1000, 5000)}));
  EXPECT_EQ(attached.how, "memory of GPU 0000:01:00.0 registered by DMA-BUF with fake0, fake1");
  EXPECT_EQ(verbs_.dma_buf_registrations, 2);
  const MemoryRange whole{reinterpret_cast<uintptr_t>(memory), 1 << 20};
  EXPECT_THAT(verbs_.registered, ::testing::ElementsAre(whole, whole));
  EXPECT_EQ(budget_->used(), 1 << 20);
  const auto found = gpus_->Find(memory + 70'000, 300, 1);
  ASSERT_TRUE(found.has_value()) << "any piece of it";
  EXPECT_EQ(found->offset, 70'000);
  EXPECT_NE(found->local_key, gpus_->Find(memory + 70'000, 300, 0)->local_key);
  EXPECT_FALSE(gpus_->Find(memory + (1 << 20) - 10, 20, 0).has_value()) << "beyond its end";
  gpus_->Detach(attached.number);
  EXPECT_THAT(verbs_.registered, IsEmpty()) << "before the memory goes";
  EXPECT_FALSE(gpus_->Find(memory, 1, 0).has_value());
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_EQ(gpus_->count(), 0);
  device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, ThousandsOfTensorsOfAnArenaAreOneRegistration) {
  const uint64_t bytes = uint64_t{64} << 30;  // in the fake, of which nothing is touched
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer arena, DeviceBuffer::Allocate(cuda_device(), bytes));
  std::vector<MemoryRegion> tensors;
  for (uint64_t i = 0; i < 18'000; ++i) {
    tensors.push_back(
        RegionOf(reinterpret_cast<void*>(arena.address() + i * (bytes / 18'000)), bytes / 18'000));
  }
  ASSERT_OK_AND_ASSIGN(const auto attached, gpus_->Attach(tensors));
  EXPECT_EQ(verbs_.registrations, 2) << "one with each adapter";
  gpus_->Detach(attached.number);
}

TEST_F(GpuRegistrationsTest, PeermemIsNextAndSaidSo) {
  void* const memory = device_.Allocate(4096);
  verbs_.dma_buf_registration_error = EOPNOTSUPP;
  ASSERT_OK_AND_ASSIGN(const auto attached, gpus_->Attach({RegionOf(memory, 4096)}));
  EXPECT_EQ(attached.how, "memory of GPU 0000:01:00.0 registered by peermem with fake0, fake1");
  gpus_->Detach(attached.number);
  // Each of the reasons against DMA-BUF leads there.
  verbs_.dma_buf_registration_error = 0;
  fake_.Fail("cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_OK_AND_ASSIGN(const auto mixed, gpus_->Attach({RegionOf(memory, 4096)}));
  EXPECT_EQ(mixed.how,
            "memory of GPU 0000:01:00.0 registered by DMA-BUF with fake1, by peermem with fake0");
  gpus_->Detach(mixed.number);
  verbs_.LeaveOutDmaBuf();
  ASSERT_OK_AND_ASSIGN(const auto old, gpus_->Attach({RegionOf(memory, 4096)}));
  EXPECT_THAT(old.how, HasSubstr("by peermem with fake0, fake1"));
  gpus_->Detach(old.number);
  device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, WithoutEitherItSaysWhyNot) {
  void* const memory = device_.Allocate(4096);
  verbs_.dma_buf_registration_error = EOPNOTSUPP;
  verbs_.registration_error = EFAULT;
  EXPECT_THAT(gpus_->Attach({RegionOf(memory, 4096)}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("memory of GPU 0000:01:00.0 is staged: fake0 by DMA-BUF: "
                                 "Operation not supported (95); by peermem: Bad address (14)")));
  verbs_.LeaveOutDmaBuf();
  EXPECT_THAT(gpus_->Attach({RegionOf(memory, 4096)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("older than 34")));
  EXPECT_EQ(budget_->used(), 0);
  device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, WhatWasRefusedIsKnownUntilItIsNot) {
  auto* const memory = static_cast<char*>(device_.Allocate(4096));
  const MemoryRegion region = RegionOf(memory, 4096);
  EXPECT_OK(gpus_->WhyStaged(region)) << "nobody has tried";
  verbs_.registration_error = EFAULT;
  EXPECT_FALSE(gpus_->Attach({region}).ok());
  EXPECT_THAT(gpus_->WhyStaged(region),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("by peermem")));
  verbs_.registration_error = 0;
  ASSERT_OK_AND_ASSIGN(const auto attached, gpus_->Attach({region}));
  EXPECT_OK(gpus_->WhyStaged(region));
  // Another buffer of this GPU is refused.
  void* const other = device_.Allocate(4096);
  verbs_.registration_error = EFAULT;
  EXPECT_FALSE(gpus_->Attach({RegionOf(other, 4096)}).ok());
  EXPECT_OK(gpus_->WhyStaged(region));
  EXPECT_FALSE(gpus_->WhyStaged(RegionOf(other, 4096)).ok());
  gpus_->Detach(attached.number);
  device_.Free(memory);
  device_.Free(other);
}

TEST_F(GpuRegistrationsTest, WhyMemoryIsStagedIsSaidOfThatMemoryAlone) {
  void* const refused = device_.Allocate(4096);
  void* const untried = device_.Allocate(4096);
  verbs_.registration_error = EFAULT;
  EXPECT_FALSE(gpus_->Attach({RegionOf(refused, 4096)}).ok());
  EXPECT_OK(gpus_->WhyStaged(RegionOf(untried, 4096))) << "nobody has tried with it";
  // The reverse: what another comes to says nothing of it.
  verbs_.registration_error = 0;
  ASSERT_OK_AND_ASSIGN(const auto attached, gpus_->Attach({RegionOf(untried, 4096)}));
  EXPECT_THAT(gpus_->WhyStaged(RegionOf(refused, 4096)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("by peermem")));
  gpus_->Detach(attached.number);
  EXPECT_OK(gpus_->WhyStaged(RegionOf(untried, 4096))) << "it could be registered";
  device_.Free(refused);
  EXPECT_OK(gpus_->WhyStaged(RegionOf(refused, 4096))) << "that memory is gone";
  device_.Free(untried);
}

// A buffer that spans two mappings, and others that lie in one of them.
TEST_F(GpuRegistrationsTest, ARefusalIsKnownWhateverPartsOfTheMemoryComeTo) {
  MappedMemory mapped(cuda_device(), 2);
  const MemoryRegion both = RegionOf(mapped.pointer(), mapped.bytes());
  const MemoryRegion in_one = RegionOf(mapped.pointer(), 100);
  verbs_.registration_error = EFAULT;
  EXPECT_FALSE(gpus_->Attach({both}).ok());
  EXPECT_FALSE(gpus_->Attach({in_one}).ok());
  EXPECT_FALSE(gpus_->WhyStaged(both).ok()) << "another refusal beside its own";
  verbs_.registration_error = 0;
  ASSERT_OK_AND_ASSIGN(const auto one, gpus_->Attach({in_one}));
  EXPECT_OK(gpus_->WhyStaged(in_one));
  EXPECT_THAT(gpus_->WhyStaged(both),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("by peermem")));
  ASSERT_OK_AND_ASSIGN(const auto whole, gpus_->Attach({both}));
  gpus_->Detach(whole.number);
  EXPECT_OK(gpus_->WhyStaged(both)) << "it could be registered";
  gpus_->Detach(one.number);
}

TEST_F(GpuRegistrationsTest, RefusalsThatAreRememberedAreBounded) {
  verbs_.registration_error = EFAULT;
  std::vector<void*> refused;
  for (size_t i = 0; i <= GpuRegistrations::kMaxRefusals; ++i) {
    refused.push_back(device_.Allocate(16));
    EXPECT_FALSE(gpus_->Attach({RegionOf(refused.back(), 16)}).ok());
  }
  EXPECT_OK(gpus_->WhyStaged(RegionOf(refused.front(), 16))) << "the oldest is forgotten";
  EXPECT_FALSE(gpus_->WhyStaged(RegionOf(refused[1], 16)).ok());
  EXPECT_FALSE(gpus_->WhyStaged(RegionOf(refused.back(), 16)).ok());
  for (void* const memory : refused) device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, OneAdapterThatCannotLeavesNothingRegistered) {
  void* const memory = device_.Allocate(4096);
  verbs_.registration_error = EFAULT;
  verbs_.registrations_before_error = 1;
  EXPECT_THAT(gpus_->Attach({RegionOf(memory, 4096)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("fake1 by DMA-BUF")));
  EXPECT_THAT(verbs_.registered, IsEmpty());
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_FALSE(gpus_->Find(memory, 1, 0).has_value());
  device_.Free(memory);
}

// Kernels would read what was there before.
TEST_F(GpuRegistrationsTest, AGpuThatCannotShowWritesIsStaged) {
  void* const memory = device_.Allocate(4096);
  fake_.Fail("cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE, 0, 2);
  EXPECT_THAT(gpus_->Attach({RegionOf(memory, 4096)}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("staged"), HasSubstr("neither orders"))));
  device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, WithoutGpusItSaysSo) {
  GpuRegistrations none(
      adapters_, [] { return nullptr; }, budget_);
  char host = 0;
  EXPECT_THAT(none.Attach({RegionOf(&host, 1)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no CUDA driver")));
  EXPECT_THAT(none.Attach({{.address = &host, .bytes = 1}}), IsOk()) << "nothing of a GPU";
  EXPECT_THAT(gpus_->Attach({RegionOf(&host, 1)}), StatusIs(absl::StatusCode::kInvalidArgument));
}

// An engine that slept: its owner has forgotten to detach.
TEST_F(GpuRegistrationsTest, MemoryMappedAnewAtTheSameAddressNeverHasTheOldKey) {
  MappedMemory mapped(cuda_device(), 1);
  ASSERT_OK_AND_ASSIGN(const auto old, gpus_->Attach({RegionOf(mapped.pointer(), mapped.bytes())}));
  const uint32_t old_key = gpus_->Find(mapped.pointer(), 8, 0)->remote_key;
  mapped.Unmap();
  mapped.Map();
  // The answer of a moment ago stands for a millisecond.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (gpus_->Find(mapped.pointer(), 8, 0).has_value() && absl::Now() < end) continue;
  EXPECT_FALSE(gpus_->Find(mapped.pointer(), 8, 0).has_value());
  ASSERT_OK_AND_ASSIGN(const auto anew,
                       gpus_->Attach({RegionOf(mapped.pointer(), mapped.bytes())}));
  EXPECT_EQ(verbs_.registrations, 4) << "the old one is not shared";
  ASSERT_TRUE(gpus_->Find(mapped.pointer(), 8, 0).has_value());
  EXPECT_NE(gpus_->Find(mapped.pointer(), 8, 0)->remote_key, old_key);
  gpus_->Detach(old.number);
  EXPECT_TRUE(gpus_->Find(mapped.pointer(), 8, 0).has_value());
  gpus_->Detach(anew.number);
  EXPECT_THAT(verbs_.registered, IsEmpty());
}

// Torch's expandable segments.
TEST_F(GpuRegistrationsTest, MappingsThatATensorSpansAreOneRegistration) {
  MappedMemory mapped(cuda_device(), 3);
  const auto at = [&](uint64_t offset) {
    return reinterpret_cast<void*>(mapped.address() + offset);
  };
  const uint64_t mapping = mapped.mapping_bytes();
  ASSERT_OK_AND_ASSIGN(const auto attached,
                       gpus_->Attach({RegionOf(at(10), 100), RegionOf(at(mapping - 100), 200),
                                      RegionOf(at(2 * mapping), 100)}));
  EXPECT_THAT(verbs_.registered, SizeIs(4)) << "the first two mappings, and the third by itself";
  EXPECT_TRUE(gpus_->Find(at(mapping - 100), 200, 0).has_value());
  EXPECT_FALSE(gpus_->Find(at(2 * mapping - 100), 200, 0).has_value()) << "no tensor spans those";
  gpus_->Detach(attached.number);
}

TEST_F(GpuRegistrationsTest, AnOwnersKeyOutlivesTheOverlappingRegistrationOfAnother) {
  constexpr MemoryOwner kBoth(1), kOne(2);
  MappedMemory mapped(cuda_device(), 2);
  const auto at = [&](uint64_t offset) {
    return reinterpret_cast<void*>(mapped.address() + offset);
  };
  ASSERT_OK_AND_ASSIGN(const auto both,
                       gpus_->Attach({RegionOf(mapped.pointer(), mapped.bytes())}, kBoth));
  // The second mapping alone: closer to what lies there.
  void* const piece = at(mapped.mapping_bytes() + 100);
  ASSERT_OK_AND_ASSIGN(const auto one, gpus_->Attach({RegionOf(piece, 100)}, kOne));
  const uint32_t key = gpus_->Find(piece, 8, 0, kBoth)->remote_key;
  EXPECT_NE(gpus_->Find(piece, 8, 0, kOne)->remote_key, key);
  EXPECT_FALSE(gpus_->Find(mapped.pointer(), 8, 0, kOne).has_value());
  gpus_->Detach(one.number);
  ASSERT_TRUE(gpus_->Find(piece, 8, 0, kBoth).has_value());
  EXPECT_EQ(gpus_->Find(piece, 8, 0, kBoth)->remote_key, key);
  gpus_->Detach(both.number);
}

// B's owner frees it while A's registration goes on: the device must be able to take B back.
TEST_F(GpuRegistrationsTest, ATensorInOneMappingDoesNotShareTheRegistrationOfTwo) {
  MappedMemory mapped(cuda_device(), 2);
  const MemoryRegion in_a = RegionOf(mapped.pointer(), 100);
  ASSERT_OK_AND_ASSIGN(const auto both,
                       gpus_->Attach({RegionOf(mapped.pointer(), mapped.bytes())}));
  ASSERT_OK_AND_ASSIGN(const auto a, gpus_->Attach({in_a}));
  gpus_->Detach(both.number);
  const MemoryRange only_a{mapped.address(), mapped.mapping_bytes()};
  EXPECT_THAT(verbs_.registered, ::testing::ElementsAre(only_a, only_a));
  EXPECT_TRUE(gpus_->Find(in_a.address, in_a.bytes, 0).has_value());
  gpus_->Detach(a.number);
  EXPECT_THAT(verbs_.registered, IsEmpty());
}

// The same where the process's own registrations (of a store, of copies) are of two mappings, one
// of which has been unmapped.
TEST_F(GpuRegistrationsTest, AMappingIsAttachedThoughItsNeighbourIsGone) {
  MappedMemory mapped(cuda_device(), 2);
  ASSERT_OK_AND_ASSIGN(const auto known,
                       device_.cuda()->registrations().Find(mapped.pointer(), mapped.bytes()));
  mapped.UnmapOne(1);
  ASSERT_OK_AND_ASSIGN(const auto a, gpus_->Attach({RegionOf(mapped.pointer(), 100)}));
  EXPECT_EQ(a.how, "memory of GPU 0000:01:00.0 registered by DMA-BUF with fake0, fake1");
  const MemoryRange only_a{mapped.address(), mapped.mapping_bytes()};
  EXPECT_THAT(verbs_.registered, ::testing::ElementsAre(only_a, only_a));
  gpus_->Detach(a.number);
}

TEST_F(GpuRegistrationsTest, AttachmentsShareARegistrationUntilTheLastIsDetached) {
  auto* const memory = static_cast<char*>(device_.Allocate(1 << 16));
  ASSERT_OK_AND_ASSIGN(const auto first, gpus_->Attach({RegionOf(memory, 100)}));
  ASSERT_OK_AND_ASSIGN(const auto second, gpus_->Attach({RegionOf(memory + 200, 100)}));
  EXPECT_EQ(verbs_.registrations, 2);
  gpus_->Detach(first.number);
  gpus_->Detach(first.number);  // of no effect
  EXPECT_TRUE(gpus_->Find(memory, 1, 0).has_value());
  gpus_->Detach(second.number);
  EXPECT_THAT(verbs_.registered, IsEmpty());
  device_.Free(memory);
}

TEST_F(GpuRegistrationsTest, TheBudgetIsThatOfHostMemoryToo) {
  Make(10'000);
  ASSERT_OK(budget_->Take(5000));
  void* const memory = device_.Allocate(6000);
  EXPECT_THAT(gpus_->Attach({RegionOf(memory, 1)}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("limit of 9.8KiB of registered memory"),
                             HasSubstr("4.9KiB are in use"))));
  EXPECT_THAT(verbs_.registered, IsEmpty());
  device_.Free(memory);
}

}  // namespace
}  // namespace th::ibverbs
