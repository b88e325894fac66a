#include "th/transfer/cuda_ipc/device_copier.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/transfer/stream/socket.h"

namespace th::cuda_ipc {
namespace {

using ::th::testing::StatusIs;

constexpr uint32_t kBytes = 5000;

// The peer of both ends is this very process.
same_host::PeerMemory OwnMemory() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const stream::Socket one(ends[0]), other(ends[1]);
  auto memory = same_host::PeerMemory::Of(one.fd());
  EXPECT_OK(memory.status());
  return *memory;
}

class DeviceCopierTest : public CudaTest {
 protected:
  // A copy between host memory of the source and of this process.
  struct Copy {
    std::vector<std::byte> from = PatternBytes(kBytes, 1);
    std::vector<std::byte> into = std::vector<std::byte>(kBytes);
    iovec piece{into.data(), kBytes};
    std::shared_ptr<CopyJob> job;
  };

  void SetUp() override {
    CudaTest::SetUp();
    const std::shared_ptr<const CudaDevices> devices(devices_.get(), [](auto*) {});
    kinds_ = std::make_shared<MemoryKinds>(devices);
    copier_ = std::make_unique<DeviceCopier>(devices, kinds_, std::make_shared<CopyCounters>(),
                                             /*lanes=*/1);
  }
  // Into host memory, unless it says where.
  static std::unique_ptr<Copy> NewCopy(std::function<void()> on_end, void* into = nullptr) {
    auto copy = std::make_unique<Copy>();
    if (into != nullptr) copy->piece.iov_base = into;
    const auto address = reinterpret_cast<uint64_t>(copy->from.data());
    copy->job = std::make_shared<CopyJob>(
        CopyJob::Spec{.from = {{.address = address, .bytes = kBytes, .key = 0}},
                      .into = {copy->piece},
                      .source = nullptr,
                      .process = OwnMemory(),
                      .on_end = std::move(on_end)});
    return copy;
  }

  std::shared_ptr<MemoryKinds> kinds_;
  std::unique_ptr<DeviceCopier> copier_;
};

TEST_F(DeviceCopierTest, JobIsDoneWhenItSaysSo) {
  absl::Notification done;
  const auto copy = NewCopy([&] { done.Notify(); });
  copier_->Submit(device_, 0, copy->job);
  done.WaitForNotification();
  EXPECT_TRUE(copy->job->ended());
  EXPECT_OK(copy->job->status());
  EXPECT_EQ(copy->into, copy->from);
  EXPECT_TRUE(copy->job->Cancel());
  EXPECT_OK(copy->job->status()) << "it had ended before";
}

// Its owner may free it, or count what is registered.
TEST_F(DeviceCopierTest, NothingUsesTheDestinationWhenAJobSaysThatItIsDone) {
  const DeviceBuffer into = Filled(std::vector<std::byte>(kBytes));
  size_t unused = 0;
  absl::Notification done;
  const auto copy = NewCopy(
      [&] {
        unused = kinds_->registrations()->size();
        kinds_->registrations()->DropUnused();
        unused -= kinds_->registrations()->size();
        done.Notify();
      },
      into.pointer());
  copier_->Submit(device_, 0, copy->job);
  done.WaitForNotification();
  copy->job->Cancel();
  EXPECT_OK(copy->job->status());
  EXPECT_EQ(unused, 1);
  EXPECT_EQ(ReadDevice(into.address(), kBytes), copy->from);
}

// It may be the last to hold a descriptor, and the copier keeps the job until the lane goes on.
TEST_F(DeviceCopierTest, AJobThatHasEndedHoldsNothingOfWhoWaitedForIt) {
  absl::Notification first_ends, go_on;
  std::weak_ptr<int> of_first, of_second;
  const auto held_by = [](std::weak_ptr<int>* weak) {
    auto held = std::make_shared<int>(0);
    *weak = held;
    return held;
  };
  const auto first = NewCopy([&, held = held_by(&of_first)] {
    first_ends.Notify();
    go_on.WaitForNotification();
  });
  copier_->Submit(device_, 0, first->job);
  first_ends.WaitForNotification();
  const auto second = NewCopy([held = held_by(&of_second)] {});
  copier_->Submit(device_, 0, second->job);
  second->job->Cancel();
  EXPECT_TRUE(of_second.expired()) << "cancelled before it has begun";
  EXPECT_FALSE(of_first.expired());
  go_on.Notify();
  first->job->Cancel();
  EXPECT_TRUE(of_first.expired());
}

TEST_F(DeviceCopierTest, AGpuThatHangsHoldsUpNothingThatAnotherCopies) {
  const testing::FakeCuda fake;
  ASSERT_OK_AND_ASSIGN(CudaDevice* const other, devices_->ByIndex(1));
  const DeviceBuffer into = Filled(std::vector<std::byte>(kBytes));
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer into_other, DeviceBuffer::Allocate(other, kBytes));
  absl::Notification hung_ends, other_ends;
  fake.HoldStreamsOf(0, true);
  const auto hung = NewCopy([&] { hung_ends.Notify(); }, into.pointer());
  const auto beside = NewCopy([&] { other_ends.Notify(); }, into_other.pointer());
  copier_->Submit(device_, 0, hung->job);
  fake.AwaitHeld();
  copier_->Submit(other, 0, beside->job);
  other_ends.WaitForNotification();
  EXPECT_FALSE(hung->job->ended());
  fake.HoldStreams(false);
  hung_ends.WaitForNotification();
  EXPECT_TRUE(hung->job->Cancel());
  EXPECT_OK(hung->job->status());
  EXPECT_TRUE(beside->job->Cancel());
  EXPECT_OK(beside->job->status());
}

// Nobody hears of a copy that was given up; its owner still has to wait for the device.
TEST_F(DeviceCopierTest, WhatADeviceWritesIsKnownUntilItHasEnded) {
  const testing::FakeCuda fake;
  const DeviceBuffer into = Filled(std::vector<std::byte>(kBytes));
  std::weak_ptr<int> write;
  absl::Notification ended;
  auto copy = NewCopy([&] { ended.Notify(); }, into.pointer());
  CopyJob::Spec spec{.from = {{.address = reinterpret_cast<uint64_t>(copy->from.data()),
                               .bytes = kBytes,
                               .key = 0}},
                     .into = {copy->piece},
                     .source = nullptr,
                     .process = OwnMemory(),
                     .on_end = [&] { ended.Notify(); }};
  {
    auto kept = std::make_shared<int>(0);
    write = kept;
    spec.device_write = std::move(kept);
  }
  auto job = std::make_shared<CopyJob>(std::move(spec));
  fake.HoldStreams(true);
  copier_->Submit(device_, 0, job);
  fake.AwaitHeld();
  EXPECT_FALSE(job->Cancel());
  job->GiveUp();
  job = nullptr;
  EXPECT_FALSE(write.expired());
  fake.HoldStreams(false);
  ended.WaitForNotification();
  EXPECT_TRUE(write.expired());
}

TEST_F(DeviceCopierTest, WhatWasGivenUpWritesNoMemoryOfTheHost) {
  auto copy = NewCopy([] {});
  bool written = false;
  copy->job->WriteHost([&] { written = true; });
  EXPECT_TRUE(written);
  copy->job->GiveUp();
  copy->job->WriteHost([] { ADD_FAILURE() << "it is its owner's again"; });
}

TEST_F(DeviceCopierTest, JobThatIsCancelledWhileItWaitsIsCancelledAndCopiesNothing) {
  absl::Notification first_ends, go_on;
  const auto first = NewCopy([&] {
    first_ends.Notify();
    go_on.WaitForNotification();
  });
  copier_->Submit(device_, 0, first->job);
  first_ends.WaitForNotification();  // the lane is held up
  bool reported = false;
  const auto second = NewCopy([&] { reported = true; });
  copier_->Submit(device_, 0, second->job);
  EXPECT_TRUE(second->job->Cancel());
  EXPECT_TRUE(second->job->ended());
  EXPECT_THAT(second->job->status(), StatusIs(absl::StatusCode::kCancelled));
  go_on.Notify();
  // The third one's end comes after the lane has passed the second.
  absl::Notification done;
  const auto third = NewCopy([&] { done.Notify(); });
  copier_->Submit(device_, 0, third->job);
  done.WaitForNotification();
  EXPECT_TRUE(third->job->Cancel());
  EXPECT_FALSE(reported);
  EXPECT_EQ(second->into, std::vector<std::byte>(kBytes));
  EXPECT_THAT(second->job->status(), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace th::cuda_ipc
