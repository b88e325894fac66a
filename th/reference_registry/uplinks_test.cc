#include "th/reference_registry/uplinks.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry_harness.h"
#include "th/reference_registry/registry_types.h"
#include "th/weights/segments.h"

namespace th {
namespace {

constexpr uint64_t kSegments = 256;

TestRank Member(RegistryHarness& hub, const std::string& group) {
  TestRank rank(hub, group, 0, 1, LayoutNamed("w", kSegments));
  rank.JoinAndRegister();
  return rank;
}

// A trainer and a chain of five readers below it: the last one loses its source, and another is
// chosen by what is outstanding on the uplinks of those above.
class UplinksTest : public ::testing::Test {
 protected:
  UplinksTest() : trainer_(Member(hub_, "trainer")) {
    trainer_.Publish("step-1");
    trainer_.Seal(hub_.model().high_water, "step-1");
    readers_.reserve(5);
    for (int i = 0; i < 5; ++i) {
      readers_.push_back(Member(hub_, absl::StrCat("reader-", i)));
      readers_.back().Update();
      source_ = readers_.back().Fill();
      EXPECT_EQ(source_.buffer, i == 0 ? trainer_.address() : readers_[i - 1].address());
    }
  }

  void Has(TestRank& reader, uint64_t segments) {
    reader.Say(FillProgress{reader.key(), hub_.model().high_water, SegmentSet::AllOf(segments)});
  }
  BufferAddress NextSourceOfTheLast(SourceFailure failure) {
    readers_.back().Report(source_, failure);
    const AssignSources assigned = readers_.back().Heard<AssignSources>();
    return assigned.sources.empty() ? BufferAddress() : assigned.sources.front().buffer;
  }

  RegistryHarness hub_;
  TestRank trainer_;
  std::vector<TestRank> readers_;
  AssignedSource source_;  // of the last reader
};

TEST_F(UplinksTest, BeforeAnybodyHasToldUplinksWithOneReaderAreAlike) {
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[0].address())
      << "the shortest chain below the trainer";
}

TEST_F(UplinksTest, WhoseReaderLacksLittleIsLessLoaded) {
  Has(readers_[2], kSegments - kSegments / 8);
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[1].address());
}

TEST_F(UplinksTest, LessThanAQuarterOfTheShardIsNoDifference) {
  Has(readers_[2], kSegments / 8);
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[0].address());
}

TEST_F(UplinksTest, AReaderThatWasReportedIsNoLoad) {
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kStalled), readers_[2].address())
      << "the reader that stands is this one's only reader";
}

TEST_F(UplinksTest, AReaderWhoseStreamBrokeIsNoLoad) {
  readers_[2].Disconnect();
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[1].address());
}

TEST_F(UplinksTest, ASilentReaderIsNoLoad) {
  hub_.Advance(RegistryLimits().suspect_after + absl::Milliseconds(1));
  for (TestRank* rank : {&trainer_, &readers_[0], &readers_[1], &readers_[3], &readers_[4]}) {
    rank->Say(Heartbeat{});
  }
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[1].address());
}

}  // namespace
}  // namespace th
