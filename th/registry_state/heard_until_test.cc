#include "th/registry_state/heard_until.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr absl::Duration kMinute = absl::Minutes(1);
constexpr absl::Duration kLong = absl::Seconds(3);

absl::Time At(absl::Duration since_start) { return absl::UnixEpoch() + since_start; }

// One turn of `heard` that begins at `from` and takes `lasting`; what it judges by.
absl::Time Turn(HeardUntil& heard, absl::Duration from, absl::Duration lasting) {
  heard.TakeInbox(At(from));
  const absl::Time judged = heard.time();
  heard.EndTurn(At(from + lasting));
  return judged;
}

TEST(HeardUntilTest, FastTurnsJudgeByTheTimeAtWhichTheyBegin) {
  HeardUntil heard(At({}));
  EXPECT_EQ(Turn(heard, kMinute, kSlowTurn), At(kMinute));
  EXPECT_EQ(Turn(heard, 2 * kMinute, absl::ZeroDuration()), At(2 * kMinute));
}

TEST(HeardUntilTest, ASlowTurnJudgesByTheTimeAtWhichItBegan) {
  HeardUntil heard(At({}));
  EXPECT_EQ(Turn(heard, kMinute, kLong), At(kMinute));
}

TEST(HeardUntilTest, AfterASlowTurnTheStreamsAreReadFirst) {
  HeardUntil heard(At({}));
  Turn(heard, kMinute, kLong);
  const absl::Duration over = kMinute + kLong;
  EXPECT_EQ(Turn(heard, over, absl::ZeroDuration()), At(kMinute));
  EXPECT_EQ(heard.caught_up_at(), At(over + kCatchUp));
  const absl::Duration early = over + kCatchUp - absl::Nanoseconds(1);
  EXPECT_EQ(Turn(heard, early, absl::ZeroDuration()), At(kMinute));
  EXPECT_EQ(Turn(heard, over + kCatchUp, absl::ZeroDuration()), At(over + kCatchUp));
}

// Dead workers end although the loop is never in time.
TEST(HeardUntilTest, SlowTurnsOneAfterTheOtherLagByOne) {
  HeardUntil heard(At({}));
  EXPECT_EQ(Turn(heard, kMinute, kLong), At(kMinute));
  EXPECT_EQ(Turn(heard, kMinute + kLong, kLong), At(kMinute));
  for (int turn = 2; turn < 10; ++turn) {
    EXPECT_EQ(Turn(heard, kMinute + turn * kLong, kLong), At(kMinute + (turn - 1) * kLong));
  }
}

TEST(HeardUntilTest, WhatIsLeftInTheInboxIsNotHeardYet) {
  HeardUntil heard(At({}));
  heard.TakeInbox(At(2 * kMinute));
  heard.LeftInInbox(At(kMinute));
  EXPECT_EQ(heard.time(), At(kMinute));
}

}  // namespace
}  // namespace th
