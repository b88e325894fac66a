// Ranges through pinned memory. Runs on the fake driver and on GPUs.
#include "th/memory/cuda/staging_ring.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/stream.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kSlot = 64 << 10;

class StagingRingTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_OK_AND_ASSIGN(ring_, StagingRing::Create(device_, {.slot_bytes = kSlot, .slots = 3}));
  }
  void TearDown() override { ring_.reset(); }

  std::unique_ptr<StagingRing> ring_;
};

TEST_F(StagingRingTest, AnySizeAndOffsetArrivesAsItWas) {
  const std::vector<std::byte> pattern = PatternBytes(10 * kSlot + 77, 1);
  const DeviceBuffer source = Filled(pattern);
  const std::unique_ptr<DeviceMemory> from = Register(source);
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, kSlot - 1, kSlot, kSlot + 1, 7 * kSlot, 10 * kSlot}) {
    for (const uint64_t offset : {0, 1, 77}) {
      std::vector<std::byte> got(bytes);
      ASSERT_OK(ring_->CopyToHost(*from, offset, absl::MakeSpan(got)));
      ASSERT_TRUE(
          std::equal(got.begin(), got.end(), pattern.begin() + static_cast<int64_t>(offset)))
          << bytes << " bytes at " << offset;
      const DeviceBuffer target = Filled(std::vector<std::byte>(bytes + offset + 1));
      ASSERT_OK(ring_->CopyToDevice(*Register(target), offset, got));
      ASSERT_EQ(ReadDevice(target.address() + offset, bytes), got);
      ASSERT_EQ(ReadDevice(target.address() + offset + bytes, 1)[0], std::byte{0})
          << "a byte too many";
    }
  }
}

TEST_F(StagingRingTest, RangesOverManyMappingsAreTransferred) {
  const MappedMemory mapped(device_, 3);
  const std::vector<std::byte> pattern = PatternBytes(mapped.bytes(), 2);
  const std::unique_ptr<DeviceMemory> memory = Register(mapped.pointer(), mapped.bytes());
  ASSERT_OK(ring_->CopyToDevice(*memory, 0, pattern));
  std::vector<std::byte> got(mapped.bytes());
  ASSERT_OK(ring_->CopyToHost(*memory, 0, absl::MakeSpan(got)));
  EXPECT_EQ(got, pattern);
}

TEST_F(StagingRingTest, AFailureOfTheConsumerEndsTheTransferAndNotTheRing) {
  const std::vector<std::byte> pattern = PatternBytes(8 * kSlot, 3);
  const DeviceBuffer source = Filled(pattern);
  const std::unique_ptr<DeviceMemory> memory = Register(source);
  int calls = 0;
  const absl::Status read =
      ring_->Read(*memory, 0, memory->bytes(), [&](absl::Span<const std::byte>) {
        return ++calls == 2 ? absl::DataLossError("no space") : absl::OkStatus();
      });
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kDataLoss, "no space"));
  EXPECT_EQ(calls, 2);
  std::vector<std::byte> got(pattern.size());
  ASSERT_OK(ring_->CopyToHost(*memory, 0, absl::MakeSpan(got)));
  EXPECT_EQ(got, pattern);
}

TEST_F(StagingRingTest, AFailureOfTheProducerEndsTheTransferAndNotTheRing) {
  const DeviceBuffer target = Filled(std::vector<std::byte>(8 * kSlot));
  const std::unique_ptr<DeviceMemory> memory = Register(target);
  EXPECT_THAT(ring_->Write(*memory, 0, memory->bytes(),
                           [](absl::Span<std::byte>) { return absl::AbortedError("cut off"); }),
              StatusIs(absl::StatusCode::kAborted, "cut off"));
  const std::vector<std::byte> pattern = PatternBytes(8 * kSlot, 4);
  ASSERT_OK(ring_->CopyToDevice(*memory, 0, pattern));
  EXPECT_EQ(ReadDevice(target.address(), pattern.size()), pattern);
}

TEST_F(StagingRingTest, BytesOfMemoryThatWasFreedMeanwhileAreRefused) {
  // As long as the ring: all copies have been asked for when the consumer is called.
  std::optional<DeviceBuffer> source;
  source.emplace(Filled(PatternBytes(2 * kSlot, 5)));
  const std::unique_ptr<DeviceMemory> memory = Register(*source);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagingRing> ring,
                       StagingRing::Create(device_, {.slot_bytes = kSlot, .slots = 2}));
  int calls = 0;
  const absl::Status read =
      ring->Read(*memory, 0, memory->bytes(), [&](absl::Span<const std::byte>) {
        if (++calls == 2) source.reset();
        return absl::OkStatus();
      });
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("not the memory that was registered")));
}

TEST_F(StagingRingTest, BytesOfMemoryThatWasFreedBeforeAreNeverHandedOut) {
  std::optional<DeviceBuffer> source;
  source.emplace(Filled(PatternBytes(2 * kSlot, 6)));
  const std::unique_ptr<DeviceMemory> memory = Register(*source);
  source.reset();
  EXPECT_THAT(ring_->Read(*memory, 0, 1,
                          [](absl::Span<const std::byte>) {
                            ADD_FAILURE() << "bytes of freed memory";
                            return absl::OkStatus();
                          }),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(StagingRingTest, RangesBeyondTheMemoryAreRefused) {
  const DeviceBuffer source = Filled(PatternBytes(100, 7));
  const std::unique_ptr<DeviceMemory> memory = Register(source);
  std::vector<std::byte> got(100);
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("registered memory of 100 bytes"));
  EXPECT_THAT(ring_->CopyToHost(*memory, 1, absl::MakeSpan(got)), refused);
  EXPECT_THAT(ring_->CopyToDevice(*memory, UINT64_MAX, got), refused);
}

TEST_F(StagingRingTest, RingsOutsideOfTheirLimitsAreRefused) {
  for (const StagingRing::Options options :
       {StagingRing::Options{kSlot, 1}, StagingRing::Options{kSlot, kMaxStagingSlots + 1},
        StagingRing::Options{0, 2}, StagingRing::Options{kMaxStagingBytes, 2},
        StagingRing::Options{UINT64_MAX, 2}}) {
    EXPECT_THAT(StagingRing::Create(device_, options),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(ring_->pinned_bytes(), 3 * kSlot);
}

TEST_F(StagingRingTest, ThreadsWithRingsOfTheirOwnShareRegisteredMemory) {
  const std::vector<std::byte> pattern = PatternBytes(20 * kSlot, 8);
  const DeviceBuffer source = Filled(pattern);
  const std::unique_ptr<DeviceMemory> memory = Register(source);
  std::vector<std::vector<std::byte>> got(3, std::vector<std::byte>(pattern.size()));
  std::vector<std::thread> threads;
  for (std::vector<std::byte>& into : got) {
    threads.emplace_back([&] {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagingRing> ring,
                           StagingRing::Create(device_, {.slot_bytes = kSlot}));
      EXPECT_OK(ring->CopyToHost(*memory, 0, absl::MakeSpan(into)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::byte>& into : got) EXPECT_EQ(into, pattern);
}

}  // namespace
}  // namespace th
