#include "th/scheduler/comparable_paces.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr Distance kNear = Distance::kSameRack;
constexpr Distance kFar = Distance::kSameSite;

class ComparablePacesTest : public ::testing::Test {
 protected:
  void Note(uint64_t reader, double pace, Distance distance = kNear) {
    paces_.Note(distance, WorkerId(reader), pace, now_);
  }
  double Others(uint64_t reader, Distance distance = kNear) const {
    return paces_.BestOfOthers(distance, WorkerId(reader), now_).value_or(0);
  }

  ComparablePaces paces_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(ComparablePacesTest, NobodyIsComparedWithItself) {
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

TEST_F(ComparablePacesTest, WhoeverIsFartherCountsAndWhoeverIsNearerDoesNot) {
  Note(1, 100, kNear);
  Note(2, 30, kFar);
  EXPECT_EQ(Others(9, kFar), 30);
  EXPECT_EQ(Others(1, kNear), 30);
}

TEST_F(ComparablePacesTest, WhatWasToldLongAgoIsNotLately) {
  Note(1, 100);
  now_ += kPaceWindow;
  Note(2, 10);
  EXPECT_EQ(Others(3), 100);
  now_ += kPaceWindow;
  Note(2, 10);
  EXPECT_EQ(Others(3), 10);
  now_ += 2 * kPaceWindow;
  EXPECT_EQ(Others(3), 0);
}

TEST_F(ComparablePacesTest, TheBestIsRememberedForAWhileForWantOfOthers) {
  EXPECT_FALSE(paces_.BestRemembered(kNear, now_).has_value());
  Note(1, 100);
  now_ += kPaceRemembered;
  Note(1, 20);
  EXPECT_EQ(paces_.BestRemembered(kNear, now_).value_or(0), 100);
  now_ += absl::Seconds(1);
  Note(1, 20);
  EXPECT_EQ(paces_.BestRemembered(kNear, now_).value_or(0), 20);
}

}  // namespace
}  // namespace th
