#include "th/transfer/segment_ring.h"

#include <sys/uio.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/transfer/test_peers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::th::testing::kPatience;
using ::th::testing::TestShard;

constexpr uint64_t kSegmentBytes = 4096;

SegmentIndex S(uint64_t i) { return SegmentIndex(i); }

class SegmentRingTest : public ::testing::Test {
 protected:
  SegmentRingTest()
      : shard_({.tensor_bytes = {9 * kSegmentBytes + 100}, .segment_bytes = kSegmentBytes}) {}

  // Makes a ring of the segments {1, 2, 5, 8, 9} of ten, the last of which is short.
  std::shared_ptr<SegmentRing> Ring(uint64_t slots) {
    auto memory =
        std::shared_ptr<char>(new char[slots * kSegmentBytes], std::default_delete<char[]>());
    memory_ = memory.get();
    return std::make_shared<SegmentRing>(
        shard_.store()->shared_layout(),
        SegmentSet::FromRanges({{S(1), S(3)}, {S(5), S(6)}, {S(8), S(10)}}), slots, memory);
  }
  static iovec SlotOf(const SegmentRing& ring, uint64_t segment) {
    std::vector<iovec> pieces;
    ring.AppendSlot(S(segment), &pieces);
    EXPECT_THAT(pieces, SizeIs(1));
    return pieces.at(0);
  }
  static void Land(SegmentRing& ring, uint64_t segment) {
    const iovec slot = SlotOf(ring, segment);
    std::memset(slot.iov_base, static_cast<int>('0' + segment), slot.iov_len);
    ring.Arrived(S(segment));
  }

  const TestShard shard_;
  const char* memory_ = nullptr;
};

TEST_F(SegmentRingTest, SlotsAreUsedAgainInTheOrderOfWhatIsWanted) {
  const auto ring = Ring(2);
  EXPECT_EQ(SlotOf(*ring, 1).iov_base, memory_);
  EXPECT_EQ(SlotOf(*ring, 2).iov_base, memory_ + kSegmentBytes);
  EXPECT_EQ(SlotOf(*ring, 5).iov_base, memory_);
  EXPECT_EQ(SlotOf(*ring, 8).iov_base, memory_ + kSegmentBytes);
  EXPECT_EQ(SlotOf(*ring, 9).iov_base, memory_);
  EXPECT_EQ(SlotOf(*ring, 9).iov_len, 100u);
}

TEST_F(SegmentRingTest, WhatArrivesOutOfOrderIsHandedOnInOrder) {
  const auto ring = Ring(5);
  for (const uint64_t segment : {9, 2, 8, 1, 5}) Land(*ring, segment);
  std::string seen;
  while (const char* bytes = ring->Await(absl::ZeroDuration())) {
    seen.push_back(*bytes);
    ring->HandOn();
  }
  EXPECT_EQ(seen, "12589");
  EXPECT_EQ(ring->next(), S(10));
  EXPECT_EQ(ring->peak_segments(), 5u);
}

TEST_F(SegmentRingTest, TheFillHearsWhatHasRoomAgain) {
  const auto ring = Ring(3);
  std::vector<uint64_t> ends;
  ring->OnRoom([&](SegmentIndex end) { ends.push_back(end.value); });
  for (const uint64_t segment : {1, 2, 5}) Land(*ring, segment);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(ring->Await(absl::ZeroDuration()), nullptr);
    ring->HandOn();
  }
  EXPECT_THAT(ends, ElementsAre(2, 5, 8));
  EXPECT_EQ(ring->peak_segments(), 3u);
}

TEST_F(SegmentRingTest, TheConsumerWaitsForTheNextOne) {
  const auto ring = Ring(2);
  Land(*ring, 2);
  EXPECT_EQ(ring->Await(absl::ZeroDuration()), nullptr) << "segment 1 comes first";
  std::thread lands([&] { Land(*ring, 1); });
  const char* bytes = ring->Await(kPatience);
  lands.join();
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(*bytes, '1');
}

TEST_F(SegmentRingTest, WithoutRoomNothingCounts) {
  const auto ring = Ring(2);
  ring->Arrived(S(5));  // its slot is segment 1's
  EXPECT_EQ(ring->Await(absl::ZeroDuration()), nullptr);
  EXPECT_EQ(ring->peak_segments(), 0u);
}

TEST_F(SegmentRingTest, AfterAGoodEndWhatArrivedCanStillBeHad) {
  const auto ring = Ring(5);
  Land(*ring, 1);
  ring->End(/*whole=*/true);
  ASSERT_NE(ring->Await(kPatience), nullptr);
  ring->HandOn();
  EXPECT_EQ(ring->Await(kPatience), nullptr);
}

TEST_F(SegmentRingTest, AfterABadEndNothingMoreIsHandedOn) {
  const auto ring = Ring(5);
  Land(*ring, 1);
  ring->End(/*whole=*/false);
  EXPECT_EQ(ring->Await(kPatience), nullptr);
}

}  // namespace
}  // namespace th
