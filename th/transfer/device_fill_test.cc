// Fills out of and into device memory, over the transports that stage.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/transfer/device_fill_test_bed.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/same_host/same_host_transport.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::testing {
namespace {

using ::testing::HasSubstr;

constexpr AssignmentId kFirst(1), kSecond(2);

enum class Carrier : uint8_t { kTcp, kSameHost };

std::unique_ptr<Transport> NewTransport(Carrier carrier) {
  auto transport = carrier == Carrier::kTcp ? NewTcpTransport({.limits = PatientFillLimits()})
                                            : NewSameHostTransport({.limits = PatientFillLimits()});
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

class DeviceFillTest : public DeviceFillTestBed {
 protected:
  // Requests are small, so that there are many.
  static ReplicatorLimits Patient() {
    ReplicatorLimits limits = PatientReplicatorLimits();
    limits.request_bytes = 4 * kSegment;
    return limits;
  }
  std::unique_ptr<TestNode> NewNode(uint64_t worker, Memory memory, Carrier carrier = Carrier::kTcp,
                                    ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves) {
    auto node = std::make_unique<TestNode>(NewTransport(carrier), WorkerId(worker),
                                           SpecIn(memory, checksum));
    Attach(*node);
    return node;
  }

  // Returns once the threads of the landings have done all that they were given before.
  void PassLanding() {
    absl::Notification pinned, passed;
    staging_->PostPinning([&] { pinned.Notify(); });
    staging_->Post(device_.pci_address(), [&] { passed.Notify(); });
    pinned.WaitForNotification();
    passed.WaitForNotification();
  }

  // The same of th-stage-gpu, which sums a segment of `node` after it.
  void PassStaging(const TestNode& node) {
    absl::Notification passed;
    const auto wanted = std::make_shared<int>(0);
    staging_->TakeChecksum({.store = node.shard.store(),
                            .segment = SegmentIndex(0),
                            .wanted = wanted,
                            .done = [&](const absl::Status&) { passed.Notify(); }});
    passed.WaitForNotification();
  }

  // A fill that takes a GPU that has done nothing for a second for one that hangs.
  std::shared_ptr<Fill> StartHasty(TestNode& reader, Digest root, TestObserver& observer) {
    EXPECT_OK(staging_->PrepareLanding(*reader.shard.store()));
    reader.shard.store()->BeginFill(BufferGeneration(2), {});
    return Fill::Start({.store = reader.shard.store(),
                        .root = root,
                        .limits = Patient(),
                        .device_time = absl::Seconds(1)},
                       {reader.transport.get()}, &observer);
  }

  // A shard whose two segments fill all that may be pinned.
  TestShard::Spec Large() {
    return {.tensor_bytes = {kMaxLandingStagingBytes},
            .segment_bytes = kMaxLandingStagingBytes / 2,
            .device = &device_};
  }

  // As a registered buffer does.
  const std::shared_ptr<DeviceStaging> staging_ = SharedDeviceStaging();
};

class EveryWayTest : public DeviceFillTest,
                     public ::testing::WithParamInterface<std::tuple<Carrier, Memory, Memory>> {};

TEST_P(EveryWayTest, EachByteArrives) {
  const auto [carrier, from, into] = GetParam();
  for (const auto checksum : {ChecksumAlgorithm::kXxh3Leaves, ChecksumAlgorithm::kNone}) {
    const auto source = NewNode(11, from, carrier, checksum);
    const auto reader = NewNode(12, into, carrier, checksum);
    ExpectEachByteArrives(*source, *reader, Patient());
    attached_.clear();
  }
  EXPECT_LE(staging_->outgoing_bytes(), kMaxOutgoingStagingBytes);
  EXPECT_LE(staging_->landing_bytes(), kLandingBytesPerFill);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EveryWayTest,
    ::testing::Combine(::testing::Values(Carrier::kTcp, Carrier::kSameHost),
                       ::testing::Values(Memory::kHost, Memory::kDevice, Memory::kMixed),
                       ::testing::Values(Memory::kHost, Memory::kDevice, Memory::kOtherDevice,
                                         Memory::kMixed)));

TEST_F(DeviceFillTest, RelayInDeviceMemoryHandsOnWhatHasNotAllArrived) {
  const auto source = NewNode(11, Memory::kDevice);
  const auto relay = NewNode(12, Memory::kDevice), reader = NewNode(13, Memory::kOtherDevice);
  ExpectRelayHandsOnWhatHasNotAllArrived(*source, *relay, *reader, Patient());
}

TEST_F(DeviceFillTest, ListOfSumsComesFromASealedDevice) {
  const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  std::atomic<bool> never{false};
  ASSERT_OK(source->shard.store()->Seal(never).status());
  // The reader has had half of these bytes before.
  reader->Publish(1);
  for (uint64_t i = 0; i < 20; ++i) reader->shard.Corrupt(SegmentIndex(i));
  ASSERT_OK(reader->shard.store()->Seal(never).status());
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  EXPECT_EQ(fill.status().bytes_unchanged, source->shard.layout().bytes() - 20 * kSegment);
}

TEST_F(DeviceFillTest, ReadersMemoryThatIsFreedFailsTheFill) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->PublishFirst(10);
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
  fill.SetSources(kFirst, {source->AsSource()});
  AwaitHeld(*reader->shard.store(), 10);
  reader->shard.FreeMemory();
  source->Hold(10, source->shard.segment_count());
  EXPECT_THAT(reader->observer.AwaitFailed(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the memory")));
  EXPECT_EQ(reader->shard.store()->held().count(), 10);
  EXPECT_THAT(reader->observer.losses(), ::testing::IsEmpty());
}

TEST_F(DeviceFillTest, SourcesMemoryThatIsFreedEndsItsTransfersWithTheReason) {
  const auto source = NewNode(11, Memory::kDevice), other = NewNode(13, Memory::kHost);
  const auto reader = NewNode(12, Memory::kDevice);
  other->Publish(1);
  source->PublishFirst(10);
  Fill& fill = reader->StartFill(Patient(), {}, other->shard.Root());
  fill.SetSources(kFirst, {source->AsSource()});
  AwaitHeld(*reader->shard.store(), 10);
  const SegmentChecksum checksum = source->shard.ChecksumOf(SegmentIndex(10));
  source->shard.FreeMemory();
  source->shard.store()->MarkHeld(SegmentIndex(10), checksum);
  reader->observer.AwaitLosses(1);
  EXPECT_EQ(reader->observer.losses()[0].failure, SourceFailure::kClosed);
  EXPECT_THAT(reader->observer.losses()[0].detail, HasSubstr("not the memory"));
  fill.SetSources(kSecond, {other->AsSource()});
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(other->shard));
}

TEST_F(DeviceFillTest, CorruptSegmentIsRefusedAndNeverCopiedToTheDevice) {
  const auto source = NewNode(11, Memory::kDevice), other = NewNode(13, Memory::kDevice);
  const auto reader = NewNode(12, Memory::kDevice);
  other->Publish(1);
  source->Publish(1);
  std::atomic<bool> never{false};
  ASSERT_OK(source->shard.store()->Seal(never).status());
  source->shard.Corrupt(SegmentIndex(4));
  Fill& fill = reader->StartFill(Patient(), {}, other->shard.Root());
  reader->observer.OnSuspicion(
      [&](BufferAddress) { fill.SetSources(kSecond, {other->AsSource()}); });
  fill.SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(other->shard));
  EXPECT_EQ(fill.status().corrupt_segments, 1);
}

TEST_F(DeviceFillTest, StopWaitsForTheDeviceAndNothingIsWrittenAfterwards) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
  // Slots are prepared on th-land before anything is held up there.
  PassLanding();
  fake_.HoldStreams(true);
  fill.SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitFirstWrite();
  // Something is on its way to the device.
  source->holder.AwaitBytesReported();
  fill.Stop();
  source->holder.AwaitReleased(1);
  fake_.HoldStreams(false);
  reader->observer.AwaitStopped();
  const std::string before = reader->shard.BytesOf(SegmentIndex(0));
  PassLanding();
  EXPECT_EQ(reader->shard.BytesOf(SegmentIndex(0)), before);
  EXPECT_FALSE(reader->observer.calls_after_stopped());
}

TEST_F(DeviceFillTest, WhatHasLandedGoesToItsPlaceInOneGo) {
  // A fill asks for so many segments at a time.
  const uint64_t ahead = Patient().requests_in_flight * (Patient().request_bytes / kSegment);
  ASSERT_GT(ahead, 10);
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->PublishFirst(ahead);
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
  PassLanding();
  const uint64_t before = fake_.synchronizations();
  fake_.HoldStreams(true);
  fill.SetSources(kFirst, {source->AsSource()});
  const absl::Time last = absl::Now() + kPatience;
  while (fill.status().peak_extra_bytes < ahead * kSegment && absl::Now() < last) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_GE(fill.status().peak_extra_bytes, ahead * kSegment) << "all have a slot";
  fake_.HoldStreams(false);
  AwaitHeld(*reader->shard.store(), ahead);
  // The first to land, those that landed behind it, and one of each connection that came later.
  EXPECT_LE(fake_.synchronizations() - before, 4);
  for (uint64_t i = 0; i < ahead; ++i) {
    EXPECT_EQ(reader->shard.BytesOf(SegmentIndex(i)), source->shard.BytesOf(SegmentIndex(i))) << i;
  }
}

// Two readers of one process; the GPU of the first hangs.
TEST_F(DeviceFillTest, AGpuThatHangsFailsItsFillAloneWhichStopsWithoutIt) {
  const auto source = NewNode(11, Memory::kHost);
  const auto reader = NewNode(12, Memory::kDevice), other = NewNode(13, Memory::kOtherDevice);
  source->Publish(1);
  fake_.HoldStreamsOf(0, true);
  const auto fill = StartHasty(*reader, source->shard.Root(), reader->observer);
  fill->SetSources(kFirst, {source->AsSource()});
  fake_.AwaitHeld();
  other->StartFill(Patient(), {}, source->shard.Root()).SetSources(kFirst, {source->AsSource()});
  other->observer.AwaitComplete();
  EXPECT_TRUE(other->shard.Equals(source->shard));

  EXPECT_THAT(reader->observer.AwaitFailed(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("GPU ", device_.pci_address()))));
  EXPECT_THAT(reader->observer.losses(), ::testing::IsEmpty());
  fill->Stop();
  reader->observer.AwaitStopped();
  SegmentStore& store = *reader->shard.store();
  EXPECT_THAT(store.AwaitDevices(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(device_.pci_address())));
  EXPECT_EQ(store.held().count(), 0);
  fake_.HoldStreams(false);
  EXPECT_OK(store.AwaitDevices(kPatience));
  PassLanding();
  EXPECT_EQ(store.held().count(), 0) << "nothing counts any more";
  EXPECT_FALSE(reader->observer.calls_after_stopped());
  TestObserver of_next;
  const auto next = StartHasty(*reader, source->shard.Root(), of_next);
  next->SetSources(kSecond, {source->AsSource()});
  of_next.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  of_next.AwaitStopped();
}

// The user's own deadline comes first.
TEST_F(DeviceFillTest, AFillThatIsStoppedWaitsForAGpuThatHangsNoLongerThanItMayTake) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  fake_.HoldStreams(true);
  const auto fill = StartHasty(*reader, source->shard.Root(), reader->observer);
  fill->SetSources(kFirst, {source->AsSource()});
  fake_.AwaitHeld();
  fill->Stop();
  reader->observer.AwaitStopped();
  EXPECT_FALSE(reader->shard.store()->AwaitDevices(absl::ZeroDuration()).ok());
  fake_.HoldStreams(false);
  EXPECT_OK(reader->shard.store()->AwaitDevices(kPatience));
}

TEST_F(DeviceFillTest, FillGoesOnWhereAllSlotsWereTaken) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
  PassLanding();
  TestShard large(Large());
  ASSERT_OK(staging_->PrepareLanding(*large.store()));
  std::vector<std::shared_ptr<StagingSlot>> taken;
  while (auto slot = staging_->TryTakeLandingSlot(large.layout())) taken.push_back(std::move(slot));
  ASSERT_EQ(taken.size(), 2);
  fill.SetSources(kFirst, {source->AsSource()});
  while (fill.status().reread_bytes == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(fill.status().bytes_held, 0);
  taken.clear();
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  EXPECT_LE(fill.status().reread_bytes, 2 * Patient().request_bytes);
}

TEST_F(DeviceFillTest, FillGoesOnWhereItsSlotsWereGivenUpForOtherSizes) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
  PassLanding();
  TestShard large(Large());
  ASSERT_OK(staging_->PrepareLanding(*large.store()));
  EXPECT_EQ(staging_->TryTakeLandingSlot(reader->shard.layout()), nullptr);
  fill.SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  EXPECT_LE(staging_->landing_bytes(), kMaxLandingStagingBytes);
  EXPECT_LE(fill.status().reread_bytes, 2 * Patient().request_bytes);
}

TEST_F(DeviceFillTest, NoPinnedMemoryFailsTheFillWithTheReason) {
  const auto source = NewNode(11, Memory::kHost), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  // Whatever other fills have left is in use.
  std::vector<std::shared_ptr<StagingSlot>> taken;
  while (auto slot = staging_->TryTakeLandingSlot(reader->shard.layout()))
    taken.push_back(std::move(slot));
  fake_.Fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  reader->StartFill(Patient(), {}, source->shard.Root());
  EXPECT_THAT(reader->observer.AwaitFailed(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("pinned")));
}

TEST_F(DeviceFillTest, NothingIsLeftBehindByFillsThatCompleteOrStop) {
  const auto run = [&](bool complete) {
    const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
    source->Publish(1);
    Fill& fill = reader->StartFill(Patient(), {}, source->shard.Root());
    fill.SetSources(kFirst, {source->AsSource()});
    if (complete) {
      reader->observer.AwaitComplete();
    } else {
      reader->observer.AwaitFirstWrite();
    }
    reader->StopFill();
    source->holder.AwaitReleased(1);
    PassStaging(*source);  // a copy that was under way has ended
    attached_.clear();
  };
  // Streams, kernels and slots are kept for the next ones.
  run(/*complete=*/true);
  const uint64_t landing_bytes = staging_->landing_bytes();
  const uint64_t live = fake_.live() - staging_->outgoing_bytes() / kSegment;
  for (int round = 0; round < 20; ++round) run(round % 2 == 0);
  EXPECT_EQ(staging_->landing_bytes(), landing_bytes);
  EXPECT_EQ(fake_.live() - staging_->outgoing_bytes() / kSegment, live);
}

}  // namespace
}  // namespace th::testing
