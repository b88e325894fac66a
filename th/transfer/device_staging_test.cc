#include "th/transfer/device_staging.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/device_side.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kSlot = 65'536;

// Stands still before it does anything, while it is closed.
class GatedSide final : public DeviceSide {
 public:
  explicit GatedSide(std::shared_ptr<DeviceSide> side) : side_(std::move(side)) {}

  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    entered_ = false;
  }
  void AwaitEntered() {
    absl::MutexLock lock(&mu_);
    AwaitOrFail(mu_, absl::Condition(&entered_), "the device is called");
  }
  void Open() {
    absl::MutexLock lock(&mu_);
    closed_ = false;
  }

  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) override {
    Pass();
    return side_->Checksum(segments);
  }
  absl::Status CopyToHost(absl::Span<const DeviceCopy> copies) override {
    Pass();
    return side_->CopyToHost(copies);
  }
  absl::Status CopyToDevice(absl::Span<const DeviceCopy> copies) override {
    Pass();
    return side_->CopyToDevice(copies);
  }
  absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) override {
    Pass();
    return side_->AllocatePinned(bytes);
  }
  absl::Status Revoke(absl::Duration timeout) override { return side_->Revoke(timeout); }
  void Restore() override { side_->Restore(); }

 private:
  void Pass() {
    absl::MutexLock lock(&mu_);
    entered_ = true;
    const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !closed_; };
    mu_.Await(absl::Condition(&open));
  }

  const std::shared_ptr<DeviceSide> side_;
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool entered_ ABSL_GUARDED_BY(mu_) = false;
};

class DeviceStagingTest : public ::testing::Test {
 protected:
  DeviceStagingTest() {
    shard_.FillWith(2);
    shard_.store()->Publish(BufferGeneration(1));
  }

  void CopyOut(uint64_t segment) { CopyOutOf(shard_, segment); }
  void CopyOutOf(const TestShard& shard, uint64_t segment) {
    staging_->CopyOut({.store = shard.store(),
                       .device = shard.device_side(),
                       .segment = SegmentIndex(segment),
                       .wanted = wanted_,
                       .done = [this](absl::StatusOr<StagedSegment> staged) {
                         absl::MutexLock lock(&mu_);
                         staged_.push_back(std::move(staged));
                       }});
  }
  void AwaitStaged(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return staged_.size() >= count; };
    AwaitOrFail(mu_, absl::Condition(&enough), "segments are staged");
  }
  absl::StatusOr<StagedSegment> Staged(size_t i) {
    AwaitStaged(i + 1);
    absl::MutexLock lock(&mu_);
    return staged_[i];
  }
  size_t staged_count() {
    absl::MutexLock lock(&mu_);
    return staged_.size();
  }
  std::shared_ptr<StagingSlot> AwaitLandingOf(TestShard& shard) {
    absl::Notification done;
    std::shared_ptr<StagingSlot> got;
    staging_->AwaitLandingSlot({.store = shard.store(), .wanted = wanted_, .done = [&](auto slot) {
                                  EXPECT_OK(slot.status());
                                  if (slot.ok()) got = *std::move(slot);
                                  done.Notify();
                                }});
    done.WaitForNotification();
    return got;
  }
  // Until th-land has come to what was posted.
  void PassLanding() {
    absl::Notification passed;
    staging_->PostPinning([&] { passed.Notify(); });
    passed.WaitForNotification();
  }
  // The same of the thread that copies out of the shard's GPU.
  void PassStaging() { PassStagingOf(shard_); }
  void PassStagingOf(const TestShard& shard) {
    absl::Notification passed;
    staging_->TakeChecksum({.store = shard.store(),
                            .segment = SegmentIndex(0),
                            .wanted = wanted_,
                            .done = [&](const absl::Status&) { passed.Notify(); }});
    passed.WaitForNotification();
  }
  static std::string Bytes(const StagedSegment& staged) {
    return {reinterpret_cast<const char*>(staged.bytes.data()), staged.bytes.size()};
  }

  CudaTestDevice device_;
  TestShard shard_{{.tensor_bytes = {8 * kSlot, 3, 0, 5'000}, .device = &device_}};
  std::shared_ptr<int> wanted_ = std::make_shared<int>(0);
  absl::Mutex mu_;
  std::vector<absl::StatusOr<StagedSegment>> staged_ ABSL_GUARDED_BY(mu_);
  // Ends first: its threads call what stands above.
  std::shared_ptr<DeviceStaging> staging_ =
      DeviceStaging::Create({.outgoing_bytes = 2 * kSlot, .landing_bytes = 3 * kSlot});
};

TEST_F(DeviceStagingTest, SegmentsComeInOrderWithTheirSumAndGeneration) {
  CopyOut(0);
  CopyOut(3);
  for (const uint64_t i : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(i));
    const SegmentIndex segment(i == 0 ? 0 : 3);
    EXPECT_EQ(Bytes(staged), shard_.BytesOf(segment));
    EXPECT_EQ(staged.copied.checksum, shard_.ChecksumOf(segment));
    EXPECT_EQ(staged.copied.generation, BufferGeneration(1));
  }
}

TEST_F(DeviceStagingTest, MoreThanTheLimitWaitsForASlot) {
  for (uint64_t i = 0; i < 4; ++i) CopyOut(i);
  AwaitStaged(2);
  EXPECT_EQ(staging_->outgoing_bytes(), 2 * kSlot);
  EXPECT_EQ(staged_count(), 2);
  {
    absl::MutexLock lock(&mu_);
    staged_[0] = absl::CancelledError("sent");  // its slot goes back
  }
  ASSERT_OK_AND_ASSIGN(const StagedSegment third, Staged(2));
  EXPECT_EQ(Bytes(third), shard_.BytesOf(SegmentIndex(2)));
  EXPECT_EQ(staging_->outgoing_bytes(), 2 * kSlot);
}

TEST_F(DeviceStagingTest, ThoseWhoAskTakeTurns) {
  for (uint64_t i = 0; i < 5; ++i) CopyOut(i);
  AwaitStaged(2);
  const std::shared_ptr<int> first = std::exchange(wanted_, std::make_shared<int>(0));
  CopyOut(6);
  CopyOut(7);
  std::vector<std::string> copied;
  for (size_t i = 2; i < 7; ++i) {
    {
      absl::MutexLock lock(&mu_);
      staged_[i - 2] = absl::CancelledError("sent");
    }
    ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(i));
    copied.push_back(Bytes(staged));
  }
  const auto bytes = [this](uint64_t segment) { return shard_.BytesOf(SegmentIndex(segment)); };
  EXPECT_THAT(copied, ::testing::ElementsAre(bytes(2), bytes(6), bytes(3), bytes(7), bytes(4)));
}

TEST_F(DeviceStagingTest, SlotIsAwaitedWhileASegmentThatIsWantedHasNone) {
  CopyOut(0);
  CopyOut(1);
  AwaitStaged(2);
  EXPECT_FALSE(staging_->IsOutgoingSlotAwaited());
  const std::shared_ptr<int> first = std::exchange(wanted_, std::make_shared<int>(0));
  CopyOut(2);
  const absl::Time last = absl::Now() + kPatience;
  while (!staging_->IsOutgoingSlotAwaited() && absl::Now() < last) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(staging_->IsOutgoingSlotAwaited());
  wanted_ = nullptr;
  EXPECT_FALSE(staging_->IsOutgoingSlotAwaited());
}

TEST_F(DeviceStagingTest, WhatNobodyWantsAnyMoreIsNotCopied) {
  CopyOut(0);
  CopyOut(1);
  AwaitStaged(2);
  CopyOut(2);  // waits for a slot
  wanted_ = nullptr;
  {
    absl::MutexLock lock(&mu_);
    staged_[0] = staged_[1] = absl::CancelledError("sent");
  }
  wanted_ = std::make_shared<int>(0);
  CopyOut(3);
  ASSERT_OK_AND_ASSIGN(const StagedSegment next, Staged(2));
  EXPECT_EQ(Bytes(next), shard_.BytesOf(SegmentIndex(3)));
}

TEST_F(DeviceStagingTest, NobodyIsAnsweredWhoEndsWhileTheDeviceIsAtWork) {
  const TestShard one({.tensor_bytes = {kSlot}, .device = &device_});
  const auto side = std::make_shared<GatedSide>(one.device_side());
  const auto store = std::make_shared<SegmentStore>(
      one.store()->shared_layout(),
      StorageMemory{.regions = {one.store()->regions()[0]}, .device = side});
  store->Publish(BufferGeneration(1));
  const auto answer = [](const auto&) { ADD_FAILURE() << "who asked has ended"; };
  const auto copy_out = [&](const std::shared_ptr<int>& wanted) {
    staging_->CopyOut({.store = store,
                       .device = side,
                       .segment = SegmentIndex(0),
                       .wanted = wanted,
                       .done = answer});
  };
  const auto take_checksum = [&](const std::shared_ptr<int>& wanted) {
    staging_->TakeChecksum(
        {.store = store, .segment = SegmentIndex(0), .wanted = wanted, .done = answer});
  };
  const auto await_landing = [&](const std::shared_ptr<int>& wanted) {
    staging_->AwaitLandingSlot({.store = store, .wanted = wanted, .done = answer});
  };
  const auto end_meanwhile = [&](const std::function<void(const std::shared_ptr<int>&)>& ask) {
    side->Close();
    auto wanted = std::make_shared<int>(0);
    ask(wanted);
    side->AwaitEntered();
    wanted = nullptr;
    side->Open();
    PassStaging();
    PassLanding();
  };
  end_meanwhile(copy_out);  // while a slot is pinned
  EXPECT_FALSE(store->IsChecksummed(SegmentIndex(0))) << "it has been copied";
  end_meanwhile(take_checksum);
  end_meanwhile(copy_out);  // while the segment is copied into that slot
  end_meanwhile(await_landing);
}

TEST_F(DeviceStagingTest, WhatWaitsIsCopiedInOneGo) {
  staging_ = DeviceStaging::Create({.outgoing_bytes = 8 * kSlot});
  const FakeCuda fake;
  const uint64_t before = fake.synchronizations();
  fake.HoldStreams(true);
  CopyOut(0);
  fake.AwaitHeld();
  auto other = std::make_shared<int>(0);
  for (uint64_t i = 1; i < 8; ++i) {
    wanted_.swap(other);  // two who ask in turn
    CopyOut(i);
  }
  fake.HoldStreams(false);
  AwaitStaged(8);
  EXPECT_EQ(fake.synchronizations() - before, 2) << "of the first and of the others";
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(i));
    EXPECT_EQ(Bytes(staged), shard_.BytesOf(SegmentIndex(i)));
    EXPECT_EQ(staged.copied.checksum, shard_.ChecksumOf(SegmentIndex(i)));
  }
}

TEST_F(DeviceStagingTest, WhatIsCopiedInOneGoIsBoundedAndOfOneStore) {
  constexpr uint64_t kInOneGo = kDeviceBytesCopiedAtOnce / kSlot;
  TestShard large({.tensor_bytes = {2 * kInOneGo * kSlot}, .device = &device_});
  large.FillWith(3);
  large.store()->Publish(BufferGeneration(1));
  staging_ = DeviceStaging::Create({.outgoing_bytes = 2 * (kInOneGo + 1) * kSlot});
  const FakeCuda fake;
  const uint64_t before = fake.synchronizations();
  fake.HoldStreams(true);
  CopyOut(0);
  fake.AwaitHeld();
  for (uint64_t i = 0; i < kInOneGo + 1; ++i) CopyOutOf(large, i);
  CopyOut(1);
  fake.HoldStreams(false);
  AwaitStaged(kInOneGo + 3);
  EXPECT_EQ(fake.synchronizations() - before, 4) << "the first, a full go, one more, the last";
}

TEST_F(DeviceStagingTest, SegmentThatIsNotHeldSpoilsNoOtherOfItsGo) {
  staging_ = DeviceStaging::Create({.outgoing_bytes = 8 * kSlot});
  SegmentSet held;
  for (const uint64_t i : {0, 1, 3}) held.Add(SegmentIndex(i));
  shard_.store()->BeginFill(BufferGeneration(2), held);
  const FakeCuda fake;
  fake.HoldStreams(true);
  CopyOut(0);
  fake.AwaitHeld();
  for (uint64_t i = 1; i < 4; ++i) CopyOut(i);
  fake.HoldStreams(false);
  for (const uint64_t i : {0, 1, 3}) {
    ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(i));
    EXPECT_EQ(Bytes(staged), shard_.BytesOf(SegmentIndex(i)));
  }
  EXPECT_THAT(Staged(2).status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(DeviceStagingTest, GpuThatHangsHoldsUpNoOther) {
  CudaTestDevice other_device(1);
  TestShard other({.tensor_bytes = {4 * kSlot}, .device = &other_device});
  other.FillWith(3);
  other.store()->Publish(BufferGeneration(1));
  const FakeCuda fake;
  fake.HoldStreamsOf(0, true);
  CopyOut(0);
  fake.AwaitHeld();
  for (uint64_t i = 0; i < 4; ++i) {
    CopyOutOf(other, i);
    ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(i));
    EXPECT_EQ(Bytes(staged), other.BytesOf(SegmentIndex(i)));
    absl::MutexLock lock(&mu_);
    staged_[i] = absl::CancelledError("sent");
  }
  PassStagingOf(other);
  fake.HoldStreams(false);
  ASSERT_OK_AND_ASSIGN(const StagedSegment held, Staged(4));
  EXPECT_EQ(Bytes(held), shard_.BytesOf(SegmentIndex(0)));
}

TEST_F(DeviceStagingTest, SlotThatComesBackIsAnyGpus) {
  CudaTestDevice other_device(1);
  TestShard other({.tensor_bytes = {kSlot}, .device = &other_device});
  other.FillWith(3);
  other.store()->Publish(BufferGeneration(1));
  CopyOut(0);
  CopyOut(1);
  AwaitStaged(2);
  CopyOutOf(other, 0);
  PassStagingOf(other);
  EXPECT_TRUE(staging_->IsOutgoingSlotAwaited());
  {
    absl::MutexLock lock(&mu_);
    staged_[0] = absl::CancelledError("sent");
  }
  ASSERT_OK_AND_ASSIGN(const StagedSegment staged, Staged(2));
  EXPECT_EQ(Bytes(staged), other.BytesOf(SegmentIndex(0)));
}

// Meanwhile it counts as pinned, and another GPU finds the limit reached.
TEST_F(DeviceStagingTest, SlotThatCannotBePinnedLeavesItsRoomToAnotherGpu) {
  CudaTestDevice other_device(1);
  const TestShard refused(
      {.tensor_bytes = {2 * kSlot}, .segment_bytes = 2 * kSlot, .device = &other_device});
  const auto side = std::make_shared<GatedSide>(refused.device_side());
  const auto store = std::make_shared<SegmentStore>(
      refused.store()->shared_layout(),
      StorageMemory{.regions = {refused.store()->regions()[0]}, .device = side});
  store->Publish(BufferGeneration(1));
  side->Close();
  absl::Notification reported;
  staging_->CopyOut({.store = store,
                     .device = side,
                     .segment = SegmentIndex(0),
                     .wanted = wanted_,
                     .done = [&](const absl::StatusOr<StagedSegment>& staged) {
                       EXPECT_THAT(staged.status(), StatusIs(absl::StatusCode::kResourceExhausted));
                       reported.Notify();
                     }});
  side->AwaitEntered();
  CopyOut(0);
  PassStaging();
  EXPECT_TRUE(staging_->IsOutgoingSlotAwaited());
  const FakeCuda fake;
  fake.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  side->Open();
  reported.WaitForNotification();
  EXPECT_OK(Staged(0).status());
}

TEST_F(DeviceStagingTest, SlotsOfOtherSizesMakeRoom) {
  CopyOut(0);
  CopyOut(1);
  AwaitStaged(2);
  {
    absl::MutexLock lock(&mu_);
    staged_.clear();
  }
  TestShard large({.tensor_bytes = {2 * kSlot}, .segment_bytes = 2 * kSlot, .device = &device_});
  large.FillWith(3);
  large.store()->Publish(BufferGeneration(1));
  absl::Notification done;
  staging_->CopyOut({.store = large.store(),
                     .device = large.device_side(),
                     .segment = SegmentIndex(0),
                     .wanted = wanted_,
                     .done = [&](const absl::StatusOr<StagedSegment>& staged) {
                       EXPECT_OK(staged.status());
                       done.Notify();
                     }});
  done.WaitForNotification();
  EXPECT_EQ(staging_->outgoing_bytes(), 2 * kSlot);
}

TEST_F(DeviceStagingTest, MemoryThatCannotBePinnedIsTold) {
  const FakeCuda fake;
  fake.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  CopyOut(0);
  EXPECT_THAT(Staged(0).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  CopyOut(0);
  EXPECT_OK(Staged(1).status());
}

TEST_F(DeviceStagingTest, ClosedStoreIsCancelled) {
  shard_.store()->Close(BufferGeneration(2));
  CopyOut(0);
  EXPECT_THAT(Staged(0).status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(DeviceStagingTest, LandingSlotsArePreparedUpToTheLimit) {
  EXPECT_EQ(staging_->TryTakeLandingSlot(shard_.layout()), nullptr);
  ASSERT_OK(staging_->PrepareLanding(*shard_.store()));
  EXPECT_EQ(staging_->landing_bytes(), 3 * kSlot);
  std::vector<std::shared_ptr<StagingSlot>> slots;
  for (int i = 0; i < 3; ++i) slots.push_back(staging_->TryTakeLandingSlot(shard_.layout()));
  EXPECT_THAT(slots, Each(::testing::NotNull()));
  EXPECT_EQ(staging_->TryTakeLandingSlot(shard_.layout()), nullptr);
  slots.pop_back();
  // Shorter segments of the shard share the slots.
  EXPECT_LT(shard_.layout().SegmentLength(SegmentIndex(shard_.segment_count() - 1)), kSlot / 2);
  EXPECT_NE(staging_->TryTakeLandingSlot(shard_.layout()), nullptr);
}

TEST_F(DeviceStagingTest, WhoAwaitsALandingSlotGetsOneForFreeSlotsOfOtherSizes) {
  TestShard large({.tensor_bytes = {4 * kSlot}, .segment_bytes = 2 * kSlot, .device = &device_});
  ASSERT_OK(staging_->PrepareLanding(*shard_.store()));
  ASSERT_EQ(staging_->TryTakeLandingSlot(large.layout()), nullptr);
  const auto slot = AwaitLandingOf(large);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(slot->size(), 2 * kSlot);
  EXPECT_LE(staging_->landing_bytes(), 3 * kSlot);
}

TEST_F(DeviceStagingTest, WhoAwaitsALandingSlotIsToldWhenOneComesBack) {
  TestShard large({.tensor_bytes = {4 * kSlot}, .segment_bytes = 2 * kSlot, .device = &device_});
  ASSERT_OK(staging_->PrepareLanding(*large.store()));
  auto taken = staging_->TryTakeLandingSlot(large.layout());
  ASSERT_NE(taken, nullptr);
  std::vector<std::shared_ptr<StagingSlot>> small = {AwaitLandingOf(shard_)};
  absl::Notification done;
  staging_->AwaitLandingSlot({.store = shard_.store(), .wanted = wanted_, .done = [&](auto slot) {
                                EXPECT_OK(slot.status());
                                done.Notify();
                              }});
  PassLanding();
  EXPECT_FALSE(done.HasBeenNotified()) << "all are in use";
  taken = nullptr;
  done.WaitForNotification();
}

TEST_F(DeviceStagingTest, LandingSlotThatCannotBePinnedIsAwaitedWhileOthersAreInUse) {
  auto taken = AwaitLandingOf(shard_);
  std::vector<std::shared_ptr<StagingSlot>> others;
  while (auto slot = staging_->TryTakeLandingSlot(shard_.layout())) {
    others.push_back(std::move(slot));
  }
  others.pop_back();
  TestShard large({.tensor_bytes = {4 * kSlot}, .segment_bytes = 2 * kSlot, .device = &device_});
  const FakeCuda fake;
  absl::Notification done;
  staging_->AwaitLandingSlot({.store = large.store(), .wanted = wanted_, .done = [&](auto slot) {
                                EXPECT_OK(slot.status());
                                done.Notify();
                              }});
  PassLanding();
  EXPECT_FALSE(done.HasBeenNotified());
  fake.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  others.clear();  // room for it, and the device refuses
  PassLanding();
  taken = nullptr;
  done.WaitForNotification();
}

TEST_F(DeviceStagingTest, LandingWithoutAnyPinnedMemoryIsRefused) {
  const FakeCuda fake;
  fake.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(staging_->PrepareLanding(*shard_.store()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("pinned")));
}

}  // namespace
}  // namespace th::testing
