#include "th/reference_registry/throughput.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kSegments = 256;
constexpr double kGood = 200e3;  // bytes a second

TestRank Member(RegistryHarness& hub, const std::string& group) {
  TestRank rank(hub, group, 0, 1, LayoutNamed("w", kSegments));
  rank.JoinAndRegister();
  return rank;
}

// A trainer and a chain of readers below it that ask one after the other.
class ThroughputTest : public ::testing::Test {
 protected:
  explicit ThroughputTest(int readers = 5) : trainer_(Member(hub_, "trainer")) {
    trainer_.Publish("step-1");
    trainer_.Seal(hub_.model().high_water, "step-1");
    for (int i = 0; i < readers; ++i) {
      readers_.push_back(Member(hub_, absl::StrCat("reader-", i)));
      readers_.back().Update();
      sources_.push_back(readers_.back().Fill());
    }
  }

  TestRank& reader(size_t i) { return readers_[i]; }
  // It has received a quarter of a second at this throughput from its source.
  void Report(size_t i, double bytes_a_second, BufferAddress source, double seconds = 0.25) {
    const auto bytes = static_cast<uint64_t>(bytes_a_second * seconds);
    const uint64_t segments = bytes / kMinSegmentBytes;
    reader(i).Say(FillProgress{reader(i).key(),
                               hub_.model().high_water,
                               SegmentSet::AllOf(segments),
                               {{source, segments * kMinSegmentBytes, absl::Seconds(seconds)}}});
  }
  void Report(size_t i, double bytes_a_second, double seconds = 0.25) {
    Report(i, bytes_a_second, sources_[i].buffer, seconds);
  }
  // The sources that it was assigned instead; none if it was left alone.
  std::vector<AssignedSource> Moved(size_t i) {
    std::vector<AssignedSource> all;
    for (const AssignSources& message : hub_.TakeAll<AssignSources>(reader(i).connection)) {
      all.insert(all.end(), message.sources.begin(), message.sources.end());
    }
    if (!all.empty()) sources_[i] = all.back();
    return all;
  }
  uint64_t left() { return hub_.registry().counters().sources_left; }

  RegistryHarness hub_;
  TestRank trainer_;
  std::vector<TestRank> readers_;
  std::vector<AssignedSource> sources_;
};

// The one that is slow is the last: nobody could take its place to show who is to blame, as in
// link_order_test.
class ShortChainTest : public ThroughputTest {
 protected:
  ShortChainTest() : ThroughputTest(3) {}
};

TEST_F(ThroughputTest, ItIsAChain) {
  EXPECT_EQ(sources_[0].buffer, trainer_.address());
  for (size_t i = 1; i < readers_.size(); ++i) {
    EXPECT_EQ(sources_[i].buffer, reader(i - 1).address());
  }
}

TEST_F(ShortChainTest, TheReaderRightBelowTheSlowUplinkLeaves) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 10);
  const auto moved = Moved(2);
  ASSERT_THAT(moved, SizeIs(1));
  EXPECT_NE(moved[0].buffer, reader(1).address());
  EXPECT_EQ(left(), 1u);
  EXPECT_THAT(hub_.Log(), HasSubstr("reader-1/0, which is left for being slow"));
}

// The first two below it take turns; then it is clear that it is not the reader's link.
TEST_F(ThroughputTest, OnlyReadersRightBelowTheSlowUplinkMove) {
  for (size_t i : {0, 1}) Report(i, kGood);
  for (size_t i : {2, 3, 4}) Report(i, kGood / 10);
  EXPECT_EQ(Moved(3).size(), 1u) << "to reader 1, in place of reader 2";
  EXPECT_EQ(sources_[3].buffer, reader(1).address());
  EXPECT_EQ(Moved(2).size(), 1u);
  EXPECT_EQ(sources_[2].buffer, reader(4).address());
  for (size_t i : {0, 1}) Report(i, kGood);
  for (size_t i : {3, 4, 2}) Report(i, kGood / 10);
  EXPECT_EQ(Moved(3).size(), 1u);
  EXPECT_NE(sources_[3].buffer, reader(1).address());
  EXPECT_THAT(Moved(4), IsEmpty());
  EXPECT_EQ(left(), 1u);
  EXPECT_THAT(hub_.Log(), HasSubstr("reader-1/0, which is left for being slow"));
}

TEST_F(ShortChainTest, TheOrderInWhichThroughputsAreToldDoesNotMatter) {
  Report(2, kGood / 10);
  for (size_t i : {1, 0}) Report(i, kGood);
  EXPECT_EQ(left(), 0u);
  hub_.Advance(registry::kRecheckAfter);
  EXPECT_THAT(Moved(2), SizeIs(1));
  EXPECT_EQ(left(), 1u);
}

TEST_F(ThroughputTest, AFleetThatIsSlowAsAWholeStays) {
  for (double throughput : {kGood, kGood / 10, kGood / 50}) {
    for (int second = 0; second < 5; ++second) {
      for (size_t i = 0; i < readers_.size(); ++i) Report(i, throughput);
      hub_.Advance(absl::Seconds(1));
    }
  }
  EXPECT_EQ(left(), 0u);
}

// At the start of a chain each has received a little less than the one before it.
TEST_F(ThroughputTest, NobodyIsToBlameForThePlaceInAChain) {
  constexpr double kSeconds = 0.2;
  const std::vector<double> segments = {15, 12, 9, 5, 2};
  for (size_t i = 0; i < readers_.size(); ++i) {
    Report(i, (segments[i] + 0.5) * kMinSegmentBytes / kSeconds, kSeconds);
  }
  hub_.Advance(registry::kRecheckAfter);
  EXPECT_EQ(left(), 0u);
}

TEST_F(ShortChainTest, OtherReadersTakeASlowSourceLast) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 10);
  ASSERT_EQ(left(), 1u);
  TestRank late = Member(hub_, "late");
  late.Update();
  EXPECT_NE(late.Fill().buffer, reader(1).address()) << "though nobody reads from it now";
}

TEST_F(ShortChainTest, OneThatIsKnownToBeSlowLetsOthersAskFirst) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 10);
  ASSERT_EQ(left(), 1u);
  for (size_t i = 0; i < readers_.size(); ++i) {
    reader(i).Done();
    reader(i).Finished();
  }
  trainer_.Unpublish();
  trainer_.Done();
  trainer_.Finished();
  trainer_.Publish("step-2");
  trainer_.Seal(hub_.model().high_water, "step-2");
  reader(1).Update();
  reader(1).Ready();
  EXPECT_THAT(reader(1).Heard<AssignSources>().sources, IsEmpty());
  reader(0).Update();
  EXPECT_EQ(reader(0).Fill().buffer, trainer_.address());
  hub_.Advance(absl::Milliseconds(100));
  const AssignSources assigned = reader(1).Heard<AssignSources>();
  ASSERT_THAT(assigned.sources, SizeIs(1));
  EXPECT_EQ(assigned.sources[0].buffer, reader(0).address());
}

TEST_F(ShortChainTest, AReaderThatIsNoBetterOffElsewhereStaysAndItsOldSourceIsCleared) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 10);
  ASSERT_THAT(Moved(2), SizeIs(1));
  for (int second = 0; second < 20; ++second) {
    hub_.Advance(absl::Seconds(1));
    trainer_.Say(Heartbeat{});
    for (TestRank& rank : readers_) rank.Say(Heartbeat{});
    for (size_t i : {0, 1}) Report(i, kGood, 1);
    Report(2, kGood / 10, 1);
  }
  EXPECT_EQ(left(), 1u);
  TestRank late = Member(hub_, "late");
  late.Update();
  EXPECT_EQ(late.Fill().buffer, reader(1).address()) << "it was not to blame";
}

TEST_F(ShortChainTest, AReaderLeavesOneSourceEverySoOften) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 40);
  ASSERT_THAT(Moved(2), SizeIs(1));
  ASSERT_EQ(sources_[2].buffer, reader(0).address());
  // Reader 1, which has the same source now, tells nothing: it would be clear whose link is slow.
  hub_.Advance(absl::Milliseconds(250));
  Report(0, kGood);
  Report(2, kGood / 8);  // better, and still slow
  EXPECT_THAT(Moved(2), IsEmpty());
  hub_.Advance(kLeaveEvery);
  Report(0, kGood);
  Report(2, kGood / 8, 0.5);
  EXPECT_THAT(Moved(2), SizeIs(1));
}

TEST_F(ThroughputTest, ThroughputsOfStrangersAreIgnored) {
  for (size_t i : {0, 1}) Report(i, kGood);
  Report(2, kGood / 10, trainer_.address());
  EXPECT_EQ(left(), 0u);
}

TEST_F(ThroughputTest, MoreThanThereIsIsRefusedAndCounted) {
  FillProgress lie{reader(0).key(),
                   hub_.model().high_water,
                   SegmentSet(),
                   {{trainer_.address(), (kSegments + 1) * kMinSegmentBytes, absl::Seconds(1)}}};
  reader(0).Say(lie);
  lie.throughputs.assign(kMaxThroughputsReported + 1, {trainer_.address(), 1, absl::Seconds(1)});
  reader(0).Say(lie);
  EXPECT_EQ(hub_.registry().counters().messages_refused, 2u);
}

TEST_F(ThroughputTest, WithNobodyElseTheSlowSourceIsKept) {
  // Everybody is below the first reader, so only the trainer could feed it.
  for (size_t i : {1, 2, 3}) Report(i, kGood);
  Report(0, kGood / 10);
  hub_.Advance(absl::Seconds(1));
  EXPECT_EQ(left(), 0u);
}

}  // namespace
}  // namespace th
