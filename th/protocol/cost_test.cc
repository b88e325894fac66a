#include "th/protocol/cost.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;

TEST(AddReceivedTest, EachKindIsKeptOnce) {
  std::vector<ReceivedBytes> all;
  AddReceived({"tcp", Distance::kSameRack, true, 10}, all);
  AddReceived({"tcp", Distance::kSameRack, false, 5}, all);
  AddReceived({"tcp", Distance::kSameRack, true, 7}, all);
  EXPECT_THAT(all, ElementsAre(ReceivedBytes{"tcp", Distance::kSameRack, true, 17},
                               ReceivedBytes{"tcp", Distance::kSameRack, false, 5}));
}

TEST(AddReceivedTest, InventedTransportsCostNoMoreThanTheLimitAndLoseNoByte) {
  std::vector<ReceivedBytes> all;
  for (int i = 0; i < 1000; ++i) {
    AddReceived({absl::StrCat("t", i), static_cast<Distance>(i % 6), i % 2 == 0, 1}, all);
  }
  EXPECT_LE(all.size(), kMaxReceivedKinds);
  uint64_t bytes = 0;
  for (const ReceivedBytes& received : all) bytes += received.bytes;
  EXPECT_EQ(bytes, 1000u);
}

TEST(AddPassedOverTest, EachTransportAndReasonIsKeptOnce) {
  std::vector<PassedOver> all;
  AddPassedOver({"same_host", "on another host"}, all);
  AddPassedOver({"ibverbs", "no device"}, all);
  AddPassedOver({"same_host", "on another host", 3}, all);
  EXPECT_THAT(all, ElementsAre(PassedOver{"same_host", "on another host", 4},
                               PassedOver{"ibverbs", "no device", 1}));
  EXPECT_EQ(DescribePassedOver(all), "same_host: on another host; ibverbs: no device");
}

TEST(AddPassedOverTest, InventedReasonsCostNoMoreThanTheLimitAndLoseNoSource) {
  std::vector<PassedOver> all;
  for (int i = 0; i < 1000; ++i)
    AddPassedOver({"tcp", absl::StrCat(i, std::string(999, '!'))}, all);
  EXPECT_EQ(all.size(), kMaxPassedOverKinds);
  uint64_t sources = 0;
  for (const PassedOver& one : all) {
    sources += one.sources;
    EXPECT_LE(one.reason.size(), kMaxPassedOverReasonBytes);
  }
  EXPECT_EQ(sources, 1000u);
  EXPECT_EQ(all.back().transport, "other");
}

TEST(TransportsUsedTest, NamesWhatCarriedBytesAndWhatDidNot) {
  TransportsUsed used{.names = {}, .passed_over = {{"same_host", "on another host"}}};
  EXPECT_EQ(used.ToString(), "");
  EXPECT_EQ(TransportsUsed({.names = {"tcp"}, .passed_over = {}}).ToString(), "tcp");
  used.names = {"tcp"};
  used.Add({.names = {"tcp", "ibverbs"}, .passed_over = {{"same_host", "on another host"}}});
  EXPECT_EQ(used.ToString(), "ibverbs, tcp (same_host: on another host)");
}

TEST(ModelTotalsTest, SumsOverCausesAndKinds) {
  ModelTotals totals;
  totals.stall[static_cast<size_t>(StallPhase::kVerify)] = absl::Seconds(2);
  totals.stall[static_cast<size_t>(StallPhase::kDrain)] = absl::Seconds(1);
  totals.fill.received = {{"tcp", Distance::kSameHost, true, 3},
                          {"tcp", Distance::kSameSite, true, 4}};
  EXPECT_EQ(SumOf(totals.stall), absl::Seconds(3));
  EXPECT_EQ(totals.stall_of(StallPhase::kVerify), absl::Seconds(2));
  EXPECT_EQ(totals.bytes_received(), 7u);
  const std::map<std::string, double> seconds = SecondsByPhaseName(totals.stall);
  EXPECT_EQ(seconds.size(), kStallPhases);
  EXPECT_EQ(seconds.at("verify"), 2);
  EXPECT_EQ(seconds.at("queue"), 0);
}

TEST(StallPhaseTest, EachHasAName) {
  for (size_t phase = 0; phase < kStallPhases; ++phase) {
    EXPECT_NE(StallPhaseName(static_cast<StallPhase>(phase)), "unknown");
  }
  EXPECT_EQ(StallPhaseName(static_cast<StallPhase>(kStallPhases)), "unknown");
}

}  // namespace
}  // namespace th
