#include "th/transfer/stream/uplink_bucket.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace th::stream {
namespace {

constexpr TransferId kA(1), kB(2), kC(3);
constexpr uint64_t kMegabyte = 1'000'000;

absl::Time At(double milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(1'000'000) + absl::Milliseconds(milliseconds);
}

// Transfers that always want more, each waking at its own retry time, rounded up to whole
// milliseconds as a loop's timers are, and late by `late_ms`.
std::map<TransferId, uint64_t> Simulate(UplinkBucket& bucket, std::vector<TransferId> transfers,
                                        double seconds, double late_ms = 0) {
  std::map<TransferId, uint64_t> sent;
  std::map<TransferId, double> wake;
  for (double now = 0; now < seconds * 1000; now += 0.25) {
    for (const TransferId transfer : transfers) {
      if (wake[transfer] > now) continue;
      for (int turn = 0; turn < 100; ++turn) {
        const UplinkBucket::Grant grant = bucket.Take(transfer, kMegabyte, At(now));
        sent[transfer] += grant.bytes;
        if (grant.bytes > 0) continue;
        wake[transfer] = absl::ToDoubleMilliseconds(grant.retry_at - At(0)) + late_ms;
        break;
      }
    }
  }
  return sent;
}

TEST(UplinkBucketTest, BucketStartsEmpty) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  const UplinkBucket::Grant grant = bucket.Take(kA, 1000, At(0));
  EXPECT_EQ(grant.bytes, 0);
  EXPECT_GT(grant.retry_at, At(0));
}

TEST(UplinkBucketTest, RetryTimeIsWhenTheTokensAreThere) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  const absl::Time retry_at = bucket.Take(kA, 100'000, At(0)).retry_at;
  EXPECT_EQ(retry_at, At(10));  // 100 kB at 10 MB/s
  EXPECT_EQ(bucket.Take(kA, 100'000, retry_at).bytes, 100'000);
}

TEST(UplinkBucketTest, NeverGrantsMoreThanIsWanted) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  EXPECT_EQ(bucket.Take(kA, 7, At(100)).bytes, 7);
}

TEST(UplinkBucketTest, IdleTimeIsSavedUpOnlyForABurst) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  uint64_t granted = 0;
  while (const uint64_t bytes = bucket.Take(kA, kMegabyte, At(60'000)).bytes) granted += bytes;
  EXPECT_LE(granted, 200'000);  // 20 ms worth
  EXPECT_GE(granted, 100'000);
}

TEST(UplinkBucketTest, RefundedBytesCanBeGrantedAgain) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  ASSERT_EQ(bucket.Take(kA, 50'000, At(5)).bytes, 50'000);
  bucket.Refund(50'000);
  EXPECT_EQ(bucket.Take(kA, 50'000, At(5)).bytes, 50'000);
}

struct RateCase {
  const char* name;
  uint64_t bytes_per_second;
  size_t transfers;
  double late_ms;
};
class UplinkRateTest : public ::testing::TestWithParam<RateCase> {};

TEST_P(UplinkRateTest, SumKeepsTheRateAndSharesAreEqual) {
  const RateCase& c = GetParam();
  UplinkBucket bucket(c.bytes_per_second, At(0));
  std::vector<TransferId> transfers;
  for (uint64_t i = 1; i <= c.transfers; ++i) transfers.push_back(TransferId(i));
  const auto sent = Simulate(bucket, transfers, 2.0, c.late_ms);
  uint64_t total = 0;
  for (const auto& [transfer, bytes] : sent) total += bytes;
  const double expected = 2.0 * static_cast<double>(c.bytes_per_second);
  EXPECT_LE(total, expected * 1.03);
  EXPECT_GE(total, expected * 0.9);
  for (const auto& [transfer, bytes] : sent) {
    EXPECT_NEAR(bytes, expected / c.transfers, expected / c.transfers * 0.15) << transfer.value;
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, UplinkRateTest,
                         ::testing::Values(RateCase{"one", 40 * kMegabyte, 1, 0},
                                           RateCase{"four", 40 * kMegabyte, 4, 0},
                                           RateCase{"four_late", 40 * kMegabyte, 4, 2},
                                           RateCase{"slow", kMegabyte, 3, 1},
                                           RateCase{"many", 100 * kMegabyte, 16, 1}),
                         [](const auto& info) { return info.param.name; });

TEST(UplinkBucketTest, TransferThatDoesNotComeForItsTurnHoldsNobodyUp) {
  UplinkBucket bucket(10 * kMegabyte, At(0));
  bucket.Take(kA, kMegabyte, At(0));  // asks once and never again
  EXPECT_GE(Simulate(bucket, {kB, kC}, 1.0)[kB], 4'000'000);
}

TEST(UplinkBucketTest, BytesOfEveryTransferFlowWellWithinTheSilenceThatReadersBear) {
  UplinkBucket bucket(kMegabyte, At(0));
  std::map<TransferId, double> last, longest;
  for (double now = 0; now < 2000; now += 1) {
    for (uint64_t i = 1; i <= 8; ++i) {
      if (bucket.Take(TransferId(i), kMegabyte, At(now)).bytes == 0) continue;
      longest[TransferId(i)] = std::max(longest[TransferId(i)], now - last[TransferId(i)]);
      last[TransferId(i)] = now;
    }
  }
  for (uint64_t i = 1; i <= 8; ++i) EXPECT_LE(longest[TransferId(i)], 100) << i;
  EXPECT_EQ(longest.size(), 8);
}

}  // namespace
}  // namespace th::stream
