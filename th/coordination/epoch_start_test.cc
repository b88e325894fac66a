#include "th/coordination/epoch_start.h"

#include <cstdint>

#include "absl/time/civil_time.h"
#include "gtest/gtest.h"

namespace th {
namespace {

absl::Time StartOf(int year) { return absl::FromCivil(absl::CivilYear(year), absl::UTCTimeZone()); }

TEST(EpochAfterTest, ANewStateBeginsAtTheSecondsOrAtOne) {
  EXPECT_EQ(EpochAfter(std::nullopt, absl::UnixEpoch()), Epoch(1));
  EXPECT_EQ(EpochAfter(std::nullopt, StartOf(2026)), Epoch(1));
  EXPECT_EQ(EpochAfter(std::nullopt, StartOf(2027)), Epoch(365 * 24 * 60 * 60));
}

TEST(EpochAfterTest, AStoredEpochIsPassed) {
  EXPECT_EQ(EpochAfter(Epoch(0), absl::UnixEpoch()), Epoch(1));
  EXPECT_EQ(EpochAfter(Epoch(7), absl::UnixEpoch()), Epoch(8));
  EXPECT_EQ(EpochAfter(Epoch(7), StartOf(2026) + absl::Seconds(9)), Epoch(9));
  EXPECT_EQ(EpochAfter(Epoch(9), StartOf(2026) + absl::Seconds(9)), Epoch(10));
}

// Two servers of one epoch could give one sequence to two versions.
TEST(EpochAfterTest, TwoStatesThatBeginASecondApartShareNoEpoch) {
  const absl::Time first = StartOf(2027) + absl::Milliseconds(700);
  EXPECT_LT(EpochAfter(std::nullopt, first), EpochAfter(std::nullopt, first + absl::Seconds(1)));
}

TEST(EpochAfterTest, AClockBeyondAllUsesUpNoEpochs) {
  EXPECT_LT(EpochAfter(std::nullopt, absl::InfiniteFuture()), kLastEpoch);
}

TEST(EpochStartTest, OnlyTheNewestEpochsAreKept) {
  StateIdentity identity;
  for (uint64_t i = 1; i <= kMaxEpochsKept + 5; ++i) BeginEpochOf(identity, EpochId(i));
  EXPECT_EQ(identity.epoch_ids.size(), kMaxEpochsKept);
  EXPECT_EQ(identity.epoch_ids.front(), EpochId(6));
  EXPECT_EQ(identity.epoch_id(), EpochId(kMaxEpochsKept + 5));
}

TEST(EpochStartTest, AClusterIsNeverZero) {
  uint64_t drawn = 0;
  StateIdentity identity;
  NameCluster(identity, [&] { return drawn++; });
  EXPECT_EQ(identity.cluster, ClusterId(1));
  EXPECT_EQ(identity.key.bytes[0], 2);
}

}  // namespace
}  // namespace th
