#include "th/reference_registry/link_order.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/registry_harness.h"
#include "th/scheduler/slow_source.h"

namespace th {
namespace {

constexpr double kGood = 400e3;          // bytes a second
constexpr char kRackOfTheSlow[] = "r1";  // the second reader's; the others have none

// All of one site.
TestRank Member(RegistryHarness& hub, const std::string& group, uint64_t segments,
                const std::string& rack = "") {
  TestRank rank(hub, group, 0, 1, LayoutNamed("w", segments));
  rank.location.site = "s";
  rank.location.rack = rack;
  rank.JoinAndRegister();
  return rank;
}

// A trainer and readers that ask one after the other: a chain.
class LinkOrderTest : public ::testing::Test {
 protected:
  // Too few for trials, unless the test says so.
  explicit LinkOrderTest(uint64_t segments = registry::kSegmentsForATrial - 1)
      : segments_(segments), trainer_(Member(hub_, "trainer", segments)) {
    trainer_.Publish("step-1");
    trainer_.Seal(hub_.model().high_water, "step-1");
    for (int i = 0; i < 5; ++i) Join(i == 1 ? kRackOfTheSlow : "");
  }

  void Join(const std::string& rack = "") {
    const std::string group = absl::StrCat("reader-", readers_.size());
    readers_.push_back(Member(hub_, group, segments_, rack));
    readers_.back().Update();
    sources_.push_back(readers_.back().Fill().buffer);
    held_.push_back(0);
  }
  BufferAddress at(size_t i) { return readers_[i].address(); }
  // The source that the reader was assigned last, by now.
  BufferAddress SourceOf(size_t i) {
    for (const AssignSources& message : hub_.TakeAll<AssignSources>(readers_[i].connection)) {
      if (!message.sources.empty()) sources_[i] = message.sources.front().buffer;
    }
    return sources_[i];
  }
  // The reader has received so much in a quarter of a second, from the source that was looked up
  // last.
  void Report(size_t i, double bytes_a_second) {
    const auto segments = static_cast<uint64_t>(bytes_a_second / 4) / kMinSegmentBytes;
    held_[i] += segments;
    readers_[i].Say(
        FillProgress{readers_[i].key(),
                     hub_.model().high_water,
                     SegmentSet::AllOf(held_[i]),
                     {{sources_[i], segments * kMinSegmentBytes, absl::Milliseconds(250)}}});
  }
  // Every reader tells, in the order of the chain, and those that look again do.
  void ReportAll(const std::vector<double>& bytes_a_second) {
    for (size_t i = 0; i < bytes_a_second.size(); ++i) SourceOf(i);
    for (size_t i = 0; i < bytes_a_second.size(); ++i) Report(i, bytes_a_second[i]);
    hub_.Advance(absl::Milliseconds(250));
  }

  const uint64_t segments_;
  RegistryHarness hub_;
  TestRank trainer_;
  std::vector<TestRank> readers_;
  std::vector<BufferAddress> sources_;
  std::vector<uint64_t> held_;
};

TEST_F(LinkOrderTest, AReaderThatHoldsOthersBackGoesToTheEnd) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  EXPECT_EQ(SourceOf(0), trainer_.address());
  EXPECT_EQ(SourceOf(2), at(0)) << "it has taken the slow one's place";
  EXPECT_EQ(SourceOf(3), at(2));
  EXPECT_EQ(SourceOf(4), at(3));
  EXPECT_EQ(SourceOf(1), at(4));
}

TEST_F(LinkOrderTest, TheOrderInWhichThroughputsAreToldDoesNotMatter) {
  for (size_t i : {4, 3, 2, 1}) Report(i, kGood / 2);
  EXPECT_EQ(SourceOf(2), at(1)) << "nobody has told yet that there is more to get";
  Report(0, kGood);
  hub_.Advance(absl::Milliseconds(250));
  EXPECT_EQ(SourceOf(2), at(0));
  EXPECT_EQ(SourceOf(3), at(2));
  EXPECT_EQ(SourceOf(4), at(3));
  EXPECT_EQ(SourceOf(1), at(4));
}

TEST_F(LinkOrderTest, WhereTheNextOneGetsNoMoreTheUplinkIsToBlame) {
  ReportAll({kGood, kGood / 8, kGood / 8, kGood / 8, kGood / 8});
  ASSERT_EQ(SourceOf(2), at(0));
  ReportAll({kGood, kGood / 8, kGood / 8, kGood / 8, kGood / 8});
  EXPECT_EQ(hub_.registry().counters().sources_left, 1u);
  EXPECT_EQ(SourceOf(2), trainer_.address());
}

TEST_F(LinkOrderTest, WhoJoinsLaterTakesTheSlowReadersPlace) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  ReportAll({kGood, kGood / 2, kGood, kGood, kGood});
  Join();
  EXPECT_EQ(SourceOf(5), at(4));
  EXPECT_EQ(SourceOf(1), at(4)) << "until the new one has as much as it";
  for (int quarter = 0; quarter < 3; ++quarter) {
    ReportAll({kGood, kGood / 2, kGood, kGood, kGood, kGood});
  }
  EXPECT_EQ(SourceOf(1), at(5));
}

TEST_F(LinkOrderTest, ASlowLinkInTheOwnRackLosesAgainstAFastOneFarther) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  ReportAll({kGood, kGood / 2, kGood, kGood, kGood});
  Join(kRackOfTheSlow);
  EXPECT_EQ(SourceOf(5), at(4));
}

TEST_F(LinkOrderTest, WhoIsKnownToBeSlowAsksLaterTheNextTimeAndComesLast) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  ReportAll({kGood, kGood / 2, kGood, kGood, kGood});
  for (TestRank& reader : readers_) {
    reader.Done();
    reader.Finished();
  }
  trainer_.Unpublish();
  trainer_.Done();
  trainer_.Finished();
  trainer_.Publish("step-2");
  trainer_.Seal(hub_.model().high_water, "step-2");
  for (size_t i : {1, 0, 2, 3, 4}) {
    readers_[i].Update();
    readers_[i].Ready();
  }
  hub_.Advance(registry::kSlowAsksLater);
  EXPECT_EQ(SourceOf(0), trainer_.address());
  EXPECT_EQ(SourceOf(2), at(0));
  EXPECT_EQ(SourceOf(1), at(4));
}

TEST_F(LinkOrderTest, ALinkThatCarriesMoreIsSlowNoMore) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  ReportAll({kGood, kGood, kGood, kGood, kGood});
  Join();
  EXPECT_EQ(SourceOf(5), at(1));
}

// The limit of a trial ends when another of the worker's buffers begins a fill: from then on the
// reader counts again where the first buffer fills from. The harness checks every place.
TEST_F(LinkOrderTest, WithItsLimitAReaderCountsAgainWhereItsOtherBufferFillsFrom) {
  ReportAll({kGood, kGood / 2, kGood / 2, kGood / 2, kGood / 2});
  ASSERT_EQ(SourceOf(1), at(4));
  TestRank publisher = Member(hub_, "publisher", segments_);
  publisher.Publish("step-2");
  publisher.Seal(hub_.model().high_water, "step-2");
  std::vector<TestRank*> alive = {&trainer_, &publisher};
  for (TestRank& reader : readers_) alive.push_back(&reader);
  PassAlive(hub_, alive, kJudgedFor + absl::Seconds(1));
  TestRank other = readers_[1];
  other.buffer_name = "other";
  other.buffer = BufferId(2);
  other.number = OperationNumber();
  ASSERT_OK(other.Register());
  other.Update();
  EXPECT_EQ(other.Fill().buffer, publisher.address()) << "it does not ask later than others";
  EXPECT_EQ(SourceOf(1), at(4));
}

class LongFillTest : public LinkOrderTest {
 protected:
  LongFillTest() : LinkOrderTest(2 * registry::kSegmentsForATrial) {}
};

TEST_F(LongFillTest, FirstReadersAreTriedInTurnWhileNobodyGetsMore) {
  for (uint32_t trial = 0; trial < registry::kMaxTrials; ++trial) {
    ReportAll({kGood, kGood, kGood, kGood, kGood});
    ReportAll({kGood, kGood, kGood, kGood, kGood});
  }
  EXPECT_EQ(SourceOf(registry::kMaxTrials), trainer_.address());
  const BufferAddress last = SourceOf(0);
  for (int i = 0; i < 5; ++i) ReportAll({kGood, kGood, kGood, kGood, kGood});
  EXPECT_EQ(SourceOf(registry::kMaxTrials), trainer_.address()) << "it is the trainer's uplink";
  EXPECT_EQ(SourceOf(0), last);
}

}  // namespace
}  // namespace th
