#include "th/scheduler/slow_source.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr uint64_t kMegabyte = 1'000'000;

// A reader with a tenth of what others get, from a source that holds everything.
SlowSourceEvidence Slow() {
  return {.reader_most = 10.0,
          .source = {.least = 9.0, .most = 10.0},
          .waited = absl::Milliseconds(250),
          .source_readers = 1,
          .comparable = 100.0,
          .source_whole = true,
          .bytes_missing = 1000};
}

TEST(ThroughputOfTest, IsKnownUpToTheSegmentUnderWay) {
  const Throughput throughput = ThroughputOf(8 * kMegabyte, kMegabyte, absl::Milliseconds(500));
  EXPECT_DOUBLE_EQ(throughput.least, 16e6);
  EXPECT_DOUBLE_EQ(throughput.most, 18e6);
}

TEST(PassingThroughputTest, LeavesOutTheSegmentsThatAreOnTheirWay) {
  constexpr auto kWaited = absl::Milliseconds(250);
  EXPECT_DOUBLE_EQ(PassingThroughput(20e6, kMegabyte, kWaited), 20e6 - kSegmentsInPassing * 4e6);
  EXPECT_DOUBLE_EQ(PassingThroughput(4e6, kMegabyte, kWaited), 0)
      << "it has given on what it could";
}

TEST(JudgeSourceTest, WhoGetsATenthOfWhatOthersGetLeaves) {
  EXPECT_EQ(JudgeSource(Slow()), SourceVerdict::kLeave);
}

TEST(JudgeSourceTest, WhoGetsHalfStays) {
  SlowSourceEvidence evidence = Slow();
  evidence.reader_most = evidence.source.most = 50;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
}

TEST(JudgeSourceTest, AFleetThatIsSlowAsAWholeStays) {
  SlowSourceEvidence evidence = Slow();
  evidence.comparable = 10;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
}

TEST(JudgeSourceTest, WhatTheOtherSourcesGiveCounts) {
  SlowSourceEvidence evidence = Slow();
  evidence.reader_most = 90;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
}

TEST(JudgeSourceTest, AnUplinkThatIsSharedIsNotSlow) {
  SlowSourceEvidence evidence = Slow();
  evidence.source_readers = 4;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
  evidence.source_readers = 3;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kLeave) << "all of them together get 30 of 100";
}

TEST(JudgeSourceTest, ARelayThatWaitsForItsOwnSourceIsNotToBlame) {
  SlowSourceEvidence evidence = Slow();
  evidence.source_whole = false;
  evidence.source_intake = 10;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
  evidence.source_intake = 60;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kLeave);
}

TEST(JudgeSourceTest, WhatNobodyHasToldYetIsAskedAgain) {
  SlowSourceEvidence evidence = Slow();
  evidence.source_whole = false;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kUnknown);
  evidence = Slow();
  evidence.comparable.reset();
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kUnknown);
}

TEST(JudgeSourceTest, AShortLookSaysNothing) {
  SlowSourceEvidence evidence = Slow();
  evidence.waited = kLeastWaited - absl::Milliseconds(1);
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
}

TEST(JudgeSourceTest, WhatIsNearlyDoneEndsWhereItIs) {
  SlowSourceEvidence evidence = Slow();
  evidence.bytes_missing = 3;
  EXPECT_EQ(JudgeSource(evidence), SourceVerdict::kKeep);
}

TEST(WouldBeFasterTest, AShareOfItsUplinkHasToBeEnough) {
  EXPECT_TRUE(WouldBeFaster(Slow(), {.readers = 0, .whole = true}));
  EXPECT_TRUE(WouldBeFaster(Slow(), {.readers = 5, .whole = true}));
  EXPECT_FALSE(WouldBeFaster(Slow(), {.readers = 6, .whole = true}));
}

TEST(WouldBeFasterTest, ARelayGivesNoMoreThanItReceives) {
  EXPECT_FALSE(WouldBeFaster(Slow(), {.intake = 14}));
  EXPECT_TRUE(WouldBeFaster(Slow(), {.intake = 15}));
  EXPECT_TRUE(WouldBeFaster(Slow(), {})) << "nobody knows";
}

}  // namespace
}  // namespace th
