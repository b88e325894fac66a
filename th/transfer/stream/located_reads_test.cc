#include "th/transfer/stream/located_reads.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::stream {
namespace {

using ::testing::HasSubstr;
using Cause = LocatedReads::Failure::Cause;

constexpr BufferGeneration kGeneration(3);
constexpr ControlPlace kControl{.address = 64, .life = 77, .key = 5};
constexpr RemoteMemory::Read::Control kSame{.generation = 3, .life = 77};

// Notes what is started; tests say how it ends.
class NotedMemory : public RemoteMemory {
 public:
  absl::StatusOr<std::string> HandleOffer(absl::string_view) override { return ""; }
  bool ready() const override { return true; }
  int fd() const override { return -1; }
  void Start(absl::Span<const Located::Piece> from, absl::Span<const iovec> into,
             const ControlPlace& control) override {
    EXPECT_EQ(control, kControl);
    started.emplace_back(from.at(0).address, into.at(0).iov_base);
  }
  absl::StatusOr<std::optional<Read>> Poll() override { return std::nullopt; }

  std::vector<std::pair<uint64_t, void*>> started;
};

class LocatedReadsTest : public ::testing::Test {
 protected:
  LocatedReadsTest() { std::iota(bytes_.begin(), bytes_.end(), 0); }

  static SegmentHeader Segment(uint64_t index) {
    return {.segment = SegmentIndex(index), .bytes = 16, .generation = kGeneration};
  }
  static absl::Time At(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  void Start(uint64_t index, int64_t seconds = 0) {
    reads_.Start(Segment(index), {{.address = 1000 + index, .bytes = 16}},
                 {{bytes_.data(), 10}, {bytes_.data() + 10, 6}}, At(seconds));
  }
  // The answer to a read that has ended well.
  LocatedReads::Answer Land(int64_t seconds = 0) {
    const auto ended = reads_.Finish({.status = absl::OkStatus(), .control = kSame}, At(seconds));
    const auto* const answer = std::get_if<LocatedReads::Answer>(&ended);
    EXPECT_NE(answer, nullptr);
    return answer == nullptr ? LocatedReads::Answer{} : *answer;
  }
  LocatedReads::Failure Fail(const RemoteMemory::Read& read) {
    const auto ended = reads_.Finish(read, At(0));
    const auto* const failure = std::get_if<LocatedReads::Failure>(&ended);
    EXPECT_NE(failure, nullptr);
    return failure == nullptr ? LocatedReads::Failure{} : *failure;
  }

  NotedMemory memory_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(16);
  LocatedReads reads_{&memory_, {kControl, kGeneration}, ChecksumAlgorithm::kXxh3Leaves};
};

TEST_F(LocatedReadsTest, WhatHasLandedIsSummedWhereItLiesAndAnswered) {
  Start(4);
  ASSERT_EQ(memory_.started.size(), 1u);
  EXPECT_EQ(memory_.started[0], std::pair(uint64_t{1004}, static_cast<void*>(bytes_.data())));
  const LocatedReads::Answer answer = Land();
  EXPECT_TRUE(answer.landed);
  EXPECT_EQ(answer.segment.segment, SegmentIndex(4));
  EXPECT_EQ(answer.segment.bytes, 16u);
  EXPECT_EQ(answer.computed, ChecksumBytes(bytes_.data(), bytes_.size()));
  EXPECT_TRUE(reads_.empty());
}

// Its destination may be memory of a GPU.
TEST_F(LocatedReadsTest, TheSumOfWhoeverHasReadIsTaken) {
  Start(0);
  const auto ended = reads_.Finish(
      {.status = absl::OkStatus(), .control = kSame, .checksum = SegmentChecksum(9)}, At(0));
  EXPECT_EQ(std::get<LocatedReads::Answer>(ended).computed, SegmentChecksum(9));
}

TEST_F(LocatedReadsTest, ASkippedSegmentIsNotReadAndAnsweredInItsTurn) {
  Start(0);
  reads_.Skip(Segment(1));
  reads_.Skip(Segment(2));
  Start(3);
  EXPECT_EQ(memory_.started.size(), 2u);
  EXPECT_FALSE(reads_.TakeSkipped().has_value()) << "the one before it is being read";
  EXPECT_EQ(Land().segment.segment, SegmentIndex(0));
  for (const uint64_t skipped : {1, 2}) {
    const auto answer = reads_.TakeSkipped();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->segment.segment, SegmentIndex(skipped));
    EXPECT_FALSE(answer->landed);
    EXPECT_EQ(answer->segment.bytes, 0u);
  }
  EXPECT_FALSE(reads_.TakeSkipped().has_value());
  EXPECT_EQ(Land().segment.segment, SegmentIndex(3));
  EXPECT_TRUE(reads_.empty());
}

TEST_F(LocatedReadsTest, NothingCountsOfABufferThatIsAnotherByNow) {
  for (const RemoteMemory::Read::Control& other :
       {RemoteMemory::Read::Control{.generation = 4, .life = 77},
        RemoteMemory::Read::Control{.generation = 3, .life = 78}}) {
    Start(0);
    const LocatedReads::Failure landed = Fail({.status = absl::OkStatus(), .control = other});
    EXPECT_EQ(landed.cause, Cause::kGeneration);
    EXPECT_THAT(landed.detail, HasSubstr("left generation 3"));
    // It says more than what became of the read.
    EXPECT_EQ(
        Fail({.status = absl::UnavailableError("gone"), .control = other, .lost = true}).cause,
        Cause::kGeneration);
    EXPECT_FALSE(reads_.CheckControl(other).ok());
  }
  EXPECT_TRUE(reads_.CheckControl(kSame).ok());
}

TEST_F(LocatedReadsTest, ALostWayToTheMemoryIsToldApartFromAPlaceThatCannotBeRead) {
  Start(0);
  const LocatedReads::Failure source = Fail({.status = absl::DataLossError("EFAULT")});
  EXPECT_EQ(source.cause, Cause::kSource);
  EXPECT_EQ(source.detail, "EFAULT");
  EXPECT_EQ(Fail({.status = absl::UnavailableError("reset"), .lost = true}).cause,
            Cause::kMemoryLost);
}

TEST_F(LocatedReadsTest, CountsWhatIsUnderWayAndWhenItMoved) {
  Start(0, /*seconds=*/5);
  reads_.Skip(Segment(1));
  Start(2, /*seconds=*/6);
  EXPECT_EQ(reads_.moved_at(), At(5)) << "the first one began then, and none has ended";
  EXPECT_EQ(reads_.bytes_under_way(), 32u);
  const uint64_t of_both = reads_.extra_bytes();
  EXPECT_GE(of_both, 4 * sizeof(iovec));
  Land(/*seconds=*/8);
  EXPECT_LT(reads_.extra_bytes(), of_both);
  EXPECT_EQ(reads_.moved_at(), At(8));
  EXPECT_EQ(reads_.bytes_under_way(), 16u);
  EXPECT_TRUE(reads_.TakeSkipped().has_value());
  Land(/*seconds=*/9);
  EXPECT_EQ(reads_.extra_bytes(), 0u);
  Start(3, /*seconds=*/20);
  EXPECT_EQ(reads_.moved_at(), At(20)) << "after a rest";
}

}  // namespace
}  // namespace th::stream
