#include "th/scheduler/comparable_throughputs.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr Distance kNear = Distance::kSameRack;
constexpr Distance kFar = Distance::kSameSite;

class ComparableThroughputsTest : public ::testing::Test {
 protected:
  void Note(uint64_t reader, double throughput, Distance distance = kNear) {
    throughputs_.Note(distance, WorkerId(reader), throughput, now_);
  }
  double Others(uint64_t reader, Distance distance = kNear) const {
    return throughputs_.BestOfOthers(distance, WorkerId(reader), now_).value_or(0);
  }

  ComparableThroughputs throughputs_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(ComparableThroughputsTest, NobodyIsComparedWithItself) {
  EXPECT_EQ(Others(1), 0);
  Note(1, 100);
  EXPECT_EQ(Others(1), 0);
  EXPECT_EQ(Others(2), 100);
  Note(2, 40);
  Note(3, 30);
  EXPECT_EQ(Others(1), 40);
  Note(3, 200);
  EXPECT_EQ(Others(3), 100);
  EXPECT_EQ(Others(1), 200);
}

TEST_F(ComparableThroughputsTest, WhoeverIsFartherCountsAndWhoeverIsNearerDoesNot) {
  Note(1, 100, kNear);
  Note(2, 30, kFar);
  EXPECT_EQ(Others(9, kFar), 30);
  EXPECT_EQ(Others(1, kNear), 30);
}

TEST_F(ComparableThroughputsTest, WhatWasToldLongAgoIsNotLately) {
  Note(1, 100);
  now_ += kThroughputWindow;
  Note(2, 10);
  EXPECT_EQ(Others(3), 100);
  now_ += kThroughputWindow;
  Note(2, 10);
  EXPECT_EQ(Others(3), 10);
  now_ += 2 * kThroughputWindow;
  EXPECT_EQ(Others(3), 0);
}

TEST_F(ComparableThroughputsTest, TheBestIsRememberedForAWhileForWantOfOthers) {
  EXPECT_FALSE(throughputs_.BestRemembered(kNear, now_).has_value());
  Note(1, 100);
  now_ += kThroughputRemembered;
  Note(1, 20);
  EXPECT_EQ(throughputs_.BestRemembered(kNear, now_).value_or(0), 100);
  now_ += absl::Seconds(1);
  Note(1, 20);
  EXPECT_EQ(throughputs_.BestRemembered(kNear, now_).value_or(0), 20);
}

}  // namespace
}  // namespace th
