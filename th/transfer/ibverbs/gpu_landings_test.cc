// Tests of what follows a landing in GPU memory, on the fake driver.
#include "th/transfer/ibverbs/gpu_landings.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/transfer/cuda_test_device.h"
#include "th/weights/checksum.h"

namespace th::ibverbs {
namespace {

using ::testing::HasSubstr;
using ::th::testing::CudaTestDevice;
using ::th::testing::FakeCuda;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

constexpr uint64_t kBytes = 20'000;

// A segment of one allocation of its own.
struct Segment {
  explicit Segment(CudaTestDevice& on, uint64_t seed) : device(on), memory(on.Allocate(kBytes)) {
    const std::vector<std::byte> pattern = PatternBytes(kBytes, seed);
    bytes.assign(reinterpret_cast<const char*>(pattern.data()), pattern.size());
    device.Write(memory, bytes);
    auto found = device.cuda()->registrations().Find(memory, kBytes);
    EXPECT_THAT(found, IsOk());
    registration = found->memory;
  }
  std::shared_ptr<GpuLanding> Landing(bool checksummed = true) {
    const std::vector<DevicePiece> pieces = {{registration.get(), 0, 7},
                                             {registration.get(), 7, kBytes - 7}};
    auto use = PiecesUse::Begin(registration->device(), pieces);
    EXPECT_THAT(use, IsOk());
    return std::make_shared<GpuLanding>(GpuLanding::Spec{.gpus = device.cuda(),
                                                         .memories = {registration},
                                                         .pieces = pieces,
                                                         .use = *std::move(use),
                                                         .checksummed = checksummed,
                                                         .on_end = [this] { ended.Notify(); }});
  }

  CudaTestDevice& device;
  void* const memory;
  std::string bytes;
  std::shared_ptr<DeviceMemory> registration;
  absl::Notification ended;
};

class GpuLandingsTest : public ::testing::Test {
 protected:
  ~GpuLandingsTest() override {
    fake_.HoldStreams(false);
    fake_.Fail("cuFlushGPUDirectRDMAWrites", CUDA_SUCCESS, 0, 0);
  }

  const FakeCuda fake_;
  CudaTestDevice device_;
  CudaTestDevice other_device_{1};
  GpuLandings landings_;
};

TEST_F(GpuLandingsTest, TheGpuIsFlushedAndTheSumIsThatOfTheHost) {
  Segment segment(device_, 1);
  const uint64_t before = fake_.flushes();
  const auto landing = segment.Landing();
  landings_.Submit(landing);
  segment.ended.WaitForNotification();
  EXPECT_OK(landing->status());
  EXPECT_EQ(landing->checksum(), ChecksumBytes(segment.bytes.data(), kBytes));
  EXPECT_EQ(fake_.flushes(), before + 1);
  EXPECT_OK(segment.registration->Revoke(absl::ZeroDuration())) << "what has ended uses nothing";
}

TEST_F(GpuLandingsTest, WithoutASumItIsFlushedAllTheSame) {
  Segment segment(device_, 1);
  const uint64_t before = fake_.flushes();
  const auto landing = segment.Landing(/*summed=*/false);
  landings_.Submit(landing);
  segment.ended.WaitForNotification();
  EXPECT_OK(landing->status());
  EXPECT_FALSE(landing->checksum().has_value());
  EXPECT_EQ(fake_.flushes(), before + 1);
}

TEST_F(GpuLandingsTest, WhatWaitsIsDoneTogetherEachOnItsGpu) {
  Segment first(device_, 1), second(device_, 2), third(device_, 3), other(other_device_, 4);
  fake_.HoldStreams(true);
  const auto busy = first.Landing();
  const uint64_t before = fake_.flushes();
  landings_.Submit(busy);
  while (fake_.flushes() == before) std::this_thread::yield();  // it has begun
  const std::vector<std::shared_ptr<GpuLanding>> waiting = {
      second.Landing(), third.Landing(/*summed=*/false), other.Landing()};
  for (const auto& landing : waiting) landings_.Submit(landing);
  fake_.HoldStreams(false);
  for (Segment* segment : {&first, &second, &third, &other}) segment->ended.WaitForNotification();
  EXPECT_EQ(fake_.flushes(), before + 3) << "one for the first, one a GPU for the others";
  EXPECT_EQ(busy->checksum(), ChecksumBytes(first.bytes.data(), kBytes));
  EXPECT_EQ(waiting[0]->checksum(), ChecksumBytes(second.bytes.data(), kBytes));
  EXPECT_FALSE(waiting[1]->checksum().has_value());
  EXPECT_EQ(waiting[2]->checksum(), ChecksumBytes(other.bytes.data(), kBytes));
}

TEST_F(GpuLandingsTest, AGpuThatHangsHoldsUpNoOther) {
  Segment hung(device_, 1), other(other_device_, 2);
  fake_.HoldStreamsOf(0, true);
  const auto landing = hung.Landing(), beside = other.Landing();
  landings_.Submit(landing);
  fake_.AwaitHeld();
  landings_.Submit(beside);
  other.ended.WaitForNotification();
  EXPECT_OK(beside->status());
  EXPECT_FALSE(landing->ended());
  EXPECT_EQ(landing->device_name(), device_.pci_address());
  fake_.HoldStreams(false);
  hung.ended.WaitForNotification();
  EXPECT_OK(landing->status());
}

TEST_F(GpuLandingsTest, AFlushThatFailsIsTheLandingsFailure) {
  Segment segment(device_, 1);
  fake_.Fail("cuFlushGPUDirectRDMAWrites", CUDA_ERROR_UNKNOWN);
  const auto landing = segment.Landing();
  landings_.Submit(landing);
  segment.ended.WaitForNotification();
  EXPECT_THAT(landing->status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("flush")));
  EXPECT_FALSE(landing->checksum().has_value());
}

TEST_F(GpuLandingsTest, MemoryThatWasFreedMeanwhileIsRefusedAndOthersAreNot) {
  for (const bool checksummed : {true, false}) {
    Segment freed(device_, 1), kept(device_, 2), first(device_, 3);
    const auto landing = freed.Landing(checksummed), other = kept.Landing(checksummed);
    device_.Free(freed.memory);
    fake_.HoldStreams(true);
    const uint64_t before = fake_.flushes();
    landings_.Submit(first.Landing());
    while (fake_.flushes() == before) std::this_thread::yield();
    landings_.Submit(landing);
    landings_.Submit(other);
    fake_.HoldStreams(false);
    for (Segment* segment : {&first, &freed, &kept}) segment->ended.WaitForNotification();
    EXPECT_THAT(landing->status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lies none any more")));
    EXPECT_OK(other->status());
  }
}

TEST_F(GpuLandingsTest, OneThatIsCancelledEndsAtOnceUnlessItHasBegun) {
  Segment first(device_, 1), second(device_, 2);
  fake_.HoldStreams(true);
  const uint64_t before = fake_.flushes();
  const auto running = first.Landing(), waiting = second.Landing();
  landings_.Submit(running);
  while (fake_.flushes() == before) std::this_thread::yield();
  landings_.Submit(waiting);
  EXPECT_TRUE(waiting->Cancel());
  EXPECT_THAT(waiting->status(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_OK(second.registration->Revoke(absl::ZeroDuration())) << "it is not used any more";
  EXPECT_FALSE(running->Cancel());
  EXPECT_FALSE(running->AwaitEnd(absl::Milliseconds(1)));
  fake_.HoldStreams(false);
  EXPECT_TRUE(running->AwaitEnd(absl::InfiniteDuration()));
  EXPECT_TRUE(first.ended.HasBeenNotified());
  EXPECT_OK(running->status());
  EXPECT_FALSE(second.ended.HasBeenNotified());
}

// The use of its memory is kept with it, whoever has given it up.
TEST_F(GpuLandingsTest, OneThatIsGivenUpIsKeptUntilTheGpuHasEnded) {
  Segment segment(device_, 1);
  fake_.HoldStreams(true);
  const uint64_t before = fake_.flushes();
  auto landing = segment.Landing();
  const std::weak_ptr<GpuLanding> kept = landing;
  landings_.Submit(landing);
  while (fake_.flushes() == before) std::this_thread::yield();
  EXPECT_FALSE(landing->Cancel());
  landing = nullptr;
  EXPECT_FALSE(kept.expired());
  fake_.HoldStreams(false);
  EXPECT_OK(segment.registration->Revoke(absl::InfiniteDuration()));
  segment.ended.WaitForNotification();  // its use has ended before
}

// An owner that takes its memory back waits for it.
TEST_F(GpuLandingsTest, RevokeWaitsForALanding) {
  Segment segment(device_, 1);
  auto landing = segment.Landing();
  EXPECT_THAT(segment.registration->Revoke(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in use")));
  landing = nullptr;
  EXPECT_OK(segment.registration->Revoke(absl::ZeroDuration()));
}

}  // namespace
}  // namespace th::ibverbs
