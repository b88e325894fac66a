#include "th/bench/latencies.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace th {
namespace {

TEST(LatenciesTest, NoneAreZero) {
  const LatencySummary summary = Latencies().Summarize();
  EXPECT_EQ(summary.samples, 0u);
  EXPECT_EQ(summary.median, absl::ZeroDuration());
  EXPECT_EQ(summary.max, absl::ZeroDuration());
}

TEST(LatenciesTest, OfOneEverythingIsThatOne) {
  Latencies latencies;
  latencies.Add(absl::Microseconds(7));
  const LatencySummary summary = latencies.Summarize();
  EXPECT_EQ(summary.samples, 1u);
  EXPECT_EQ(summary.median, absl::Microseconds(7));
  EXPECT_EQ(summary.p99, absl::Microseconds(7));
  EXPECT_EQ(summary.p999, absl::Microseconds(7));
  EXPECT_EQ(summary.max, absl::Microseconds(7));
}

TEST(LatenciesTest, APercentileIsNotExceededByThatManyWhateverTheOrder) {
  Latencies latencies;
  for (int i = 2000; i >= 1; --i) latencies.Add(absl::Microseconds(i));
  const LatencySummary summary = latencies.Summarize();
  EXPECT_EQ(summary.samples, 2000u);
  EXPECT_EQ(summary.median, absl::Microseconds(1000));
  EXPECT_EQ(summary.p99, absl::Microseconds(1980));
  EXPECT_EQ(summary.p999, absl::Microseconds(1998));
  EXPECT_EQ(summary.max, absl::Microseconds(2000));
}

}  // namespace
}  // namespace th
