#include "th/pipeline_replicator/request_queue.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::Optional;

SegmentRange Range(uint64_t begin, uint64_t end) {
  return {SegmentIndex(begin), SegmentIndex(end)};
}
auto AnyOf(SegmentSet held) {
  return [held](SegmentIndex segment) { return held.Contains(segment); };
}
SegmentSet Held(std::vector<SegmentRange> ranges) {
  return SegmentSet::FromRanges(std::move(ranges));
}

class RequestQueueTest : public ::testing::Test {
 protected:
  RequestQueueTest() {
    queue_.Push(Range(4, 6));
    queue_.Push(Range(0, 2));
  }
  SegmentSet Open() const {
    SegmentSet open;
    queue_.AddOpenTo(&open);
    return open;
  }
  RequestQueue queue_;
};

TEST_F(RequestQueueTest, TheLowestThatIsReadyComesFirstWheneverItWasAsked) {
  EXPECT_THAT(queue_.First(AnyOf(SegmentSet::AllOf(9))), Optional(SegmentIndex(0)));
  EXPECT_THAT(queue_.First(AnyOf(Held({Range(2, 4), Range(5, 9)}))), Optional(SegmentIndex(5)));
  EXPECT_THAT(queue_.First(AnyOf(Held({Range(1, 4)}))), Optional(SegmentIndex(1)));
  queue_.Push(Range(3, 8));
  EXPECT_THAT(queue_.First(AnyOf(Held({Range(5, 8)}))), Optional(SegmentIndex(5)));
}

TEST_F(RequestQueueTest, ItKnowsWhetherAHigherSegmentIsOpen) {
  EXPECT_TRUE(queue_.AsksAbove(SegmentIndex(4)));
  EXPECT_FALSE(queue_.AsksAbove(SegmentIndex(5)));
  queue_.Take(SegmentIndex(5));
  EXPECT_FALSE(queue_.AsksAbove(SegmentIndex(4)));
  EXPECT_TRUE(queue_.AsksAbove(SegmentIndex(3)));
}

TEST_F(RequestQueueTest, WhatWasNotAskedIsNotOffered) {
  EXPECT_EQ(queue_.First(AnyOf(Held({Range(2, 4), Range(6, 9)}))), std::nullopt);
}

TEST_F(RequestQueueTest, ARequestEndsWithItsLastSegment) {
  EXPECT_TRUE(queue_.Take(SegmentIndex(5)));
  EXPECT_EQ(queue_.size(), 2u);
  EXPECT_TRUE(queue_.Take(SegmentIndex(4)));
  EXPECT_EQ(queue_.size(), 1u);
  EXPECT_EQ(Open(), Held({Range(0, 2)}));
}

TEST_F(RequestQueueTest, WhatWasNotAskedOrWasAnsweredIsNotTaken) {
  EXPECT_FALSE(queue_.Take(SegmentIndex(2)));
  EXPECT_TRUE(queue_.Take(SegmentIndex(0)));
  EXPECT_FALSE(queue_.Take(SegmentIndex(0)));
}

TEST_F(RequestQueueTest, WhatWasAskedTwiceIsAnsweredTwice) {
  queue_.Push(Range(4, 5));
  EXPECT_TRUE(queue_.Take(SegmentIndex(4)));
  EXPECT_TRUE(queue_.Take(SegmentIndex(4)));
  EXPECT_FALSE(queue_.Take(SegmentIndex(4)));
}

TEST_F(RequestQueueTest, ItKnowsWhatIsOpenAndHowMuch) {
  queue_.Push(Range(5, 7));
  EXPECT_EQ(queue_.segments(), 6u) << "one of them twice";
  EXPECT_TRUE(queue_.Contains(SegmentIndex(5)));
  queue_.Take(SegmentIndex(5));
  EXPECT_TRUE(queue_.Contains(SegmentIndex(5)));
  queue_.Take(SegmentIndex(5));
  queue_.Take(SegmentIndex(5));
  EXPECT_FALSE(queue_.Contains(SegmentIndex(5)));
  EXPECT_EQ(queue_.segments(), 4u);
}

TEST_F(RequestQueueTest, AnEmptyRangeIsNoRequest) {
  queue_.Push(Range(3, 3));
  EXPECT_EQ(queue_.size(), 2u);
  EXPECT_EQ(queue_.segments(), 4u);
}

TEST_F(RequestQueueTest, ClearedItOwesNothing) {
  queue_.Clear();
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.segments(), 0u);
  EXPECT_TRUE(Open().empty());
}

}  // namespace
}  // namespace th
