#include "th/cli/live/fill_rates.h"

#include <string>

#include "gtest/gtest.h"

namespace th {
namespace {

const ModelKey kModel{"r1", "m"};

absl::Time At(double seconds) { return absl::FromUnixSeconds(1000) + absl::Seconds(seconds); }

CatalogRank ARank(uint64_t held, uint64_t worker = 7) {
  return {.name = {"rollout", Rank(0)},
          .worker = WorkerId(worker),
          .buffer_name = "weights",
          .bytes = 1000,
          .bytes_held = held};
}

Catalog Filling(uint64_t held, uint32_t version = 1, const std::string& state = "filling") {
  CatalogModel model{.key = kModel};
  CatalogVersion listed;
  listed.info.sequence = VersionSequence::Of(Epoch(1), version);
  listed.replicas = {{.group = "rollout", .state = state, .ranks = {ARank(held)}}};
  model.versions = {listed};
  return {.models = {model}};
}

class FillRatesTest : public ::testing::Test {
 protected:
  double rate() const { return rates_.BytesPerSecond(kModel, ARank(0)); }
  FillRates rates_;
};

TEST_F(FillRatesTest, OneListingGivesNone) {
  rates_.Observe(Filling(500), At(0));
  EXPECT_EQ(rate(), 0);
}

TEST_F(FillRatesTest, TwoListingsGiveTheBytesBetweenThemASecond) {
  rates_.Observe(Filling(100), At(0));
  rates_.Observe(Filling(400), At(1.5));
  EXPECT_DOUBLE_EQ(rate(), 200);
  EXPECT_DOUBLE_EQ(rates_.BytesPerSecond(kModel, Filling(0).models[0].versions[0].replicas[0]),
                   200);
}

TEST_F(FillRatesTest, ListingsBetweenTwoReportsChangeNothing) {
  rates_.Observe(Filling(100), At(0));
  rates_.Observe(Filling(300), At(1));
  rates_.Observe(Filling(300), At(1.3));
  EXPECT_DOUBLE_EQ(rate(), 200);
  rates_.Observe(Filling(500), At(2));
  EXPECT_DOUBLE_EQ(rate(), 200);
}

TEST_F(FillRatesTest, AFillThatStandsStillHasNoRateAfterAWhile) {
  rates_.Observe(Filling(100), At(0));
  rates_.Observe(Filling(300), At(1));
  rates_.Observe(Filling(300), At(1) + kRateHolds);
  EXPECT_EQ(rate(), 0);
}

TEST_F(FillRatesTest, AnotherVersionOrAFillBegunAnewStartsAgain) {
  rates_.Observe(Filling(800), At(0));
  rates_.Observe(Filling(900, /*version=*/2), At(1));
  EXPECT_EQ(rate(), 0);
  rates_.Observe(Filling(50, /*version=*/2), At(2));
  EXPECT_EQ(rate(), 0);
}

TEST_F(FillRatesTest, WhatIsCompleteOrGoneIsForgotten) {
  rates_.Observe(Filling(100), At(0));
  rates_.Observe(Filling(300), At(1));
  rates_.Observe(Filling(1000, 1, "complete"), At(2));
  EXPECT_EQ(rate(), 0);
  rates_.Observe({}, At(3));
  rates_.Observe(Filling(400), At(4));
  EXPECT_EQ(rate(), 0);
}

TEST_F(FillRatesTest, AClockThatStandsStillDividesNothingByZero) {
  rates_.Observe(Filling(100), At(0));
  rates_.Observe(Filling(300), At(0));
  EXPECT_EQ(rate(), 0);
}

}  // namespace
}  // namespace th
