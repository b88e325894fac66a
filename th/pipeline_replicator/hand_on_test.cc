// Fills that hand on what they receive: a part of the shard, and no more than a window at a time.
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Verdict = PipelineReplicator::SegmentVerdict;

constexpr SourceIndex kA(0), kB(1);
constexpr uint64_t kSegmentBytes = 1024;
constexpr uint64_t kSegments = 32;

SegmentIndex S(uint64_t i) { return SegmentIndex(i); }
SegmentRange R(uint64_t begin, uint64_t end) { return {S(begin), S(end)}; }
SegmentChecksum ChecksumFor(uint64_t i) { return 1000 + i; }
absl::Time Now() { return absl::UnixEpoch(); }

ReplicatorLimits SmallRequests() {
  ReplicatorLimits limits;
  limits.request_bytes = 4 * kSegmentBytes;
  limits.requests_at_first = limits.requests_in_flight;
  return limits;
}

// A fill with one source.
struct TestFill : PipelineReplicator {
  TestFill(std::optional<SegmentSet> wanted, uint64_t window)
      : PipelineReplicator({.segment_count = kSegments,
                            .segment_bytes = kSegmentBytes,
                            .total_bytes = kSegments * kSegmentBytes,
                            .wanted = std::move(wanted),
                            .window_segments = window},
                           SmallRequests()) {
    AddSource(kA, Now());
  }
};

std::vector<SegmentRange> Ask(PipelineReplicator& fill, SourceIndex source = kA) {
  std::vector<SegmentRange> asked;
  while (auto request = fill.PollRequest(source, Now())) asked.push_back(request->range);
  return asked;
}

Verdict Give(PipelineReplicator& fill, uint64_t i, SegmentChecksum computed,
             SourceIndex source = kA) {
  EXPECT_TRUE(fill.BeginSegment(source, S(i))) << i;
  return fill.HandleSegment(source, S(i), ChecksumFor(i), computed, Now());
}
Verdict Give(PipelineReplicator& fill, uint64_t i) { return Give(fill, i, ChecksumFor(i)); }

Digest Root() {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < kSegments; ++i) checksums.push_back(ChecksumFor(i));
  return RootOfChecksums(checksums);
}

TEST(HandOnTest, OnlyWhatIsWantedIsAskedFor) {
  TestFill fill(SegmentSet::FromRanges({R(3, 5), R(9, 10), R(30, 32)}), 0);
  EXPECT_THAT(Ask(fill), ElementsAre(R(3, 5), R(9, 10), R(30, 32)));
}

TEST(HandOnTest, APartIsCompleteOnceItIsReceivedWhateverTheRoot) {
  TestFill fill(SegmentSet::FromRanges({R(3, 5)}), 0);
  fill.HandleRoot(Root());
  Ask(fill);
  Give(fill, 3);
  EXPECT_FALSE(fill.complete());
  Give(fill, 4);
  EXPECT_TRUE(fill.all_received());
  EXPECT_TRUE(fill.complete());
  EXPECT_FALSE(fill.failed());
}

TEST(HandOnTest, NothingWantedIsCompleteAtOnce) {
  TestFill fill(SegmentSet(), 4);
  EXPECT_THAT(Ask(fill), IsEmpty());
  EXPECT_TRUE(fill.complete());
}

TEST(HandOnTest, AWholeWaitsForItsRoot) {
  TestFill fill(SegmentSet::AllOf(kSegments), kSegments);
  while (!Ask(fill).empty() || !fill.all_received()) {
    for (uint64_t i = 0; i < kSegments; ++i) {
      if (fill.WantsSegment(kA, S(i))) Give(fill, i);
    }
  }
  EXPECT_FALSE(fill.complete());
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.complete());
}

TEST(HandOnTest, AListThatIsWrongCannotBeTakenBackSoItFails) {
  TestFill fill(std::nullopt, kSegments);
  while (!Ask(fill).empty() || !fill.all_received()) {
    for (uint64_t i = 0; i < kSegments; ++i) {
      if (fill.WantsSegment(kA, S(i))) Give(fill, i);
    }
  }
  fill.HandleRoot(Digest());
  EXPECT_TRUE(fill.failed());
}

TEST(HandOnTest, NoMoreThanTheWindowIsAskedFor) {
  TestFill fill(std::nullopt, 6);
  EXPECT_THAT(Ask(fill), ElementsAre(R(0, 4), R(4, 6)));
  for (uint64_t i = 0; i < 6; ++i) Give(fill, i);
  EXPECT_THAT(Ask(fill), IsEmpty()) << "nothing was handed on";
  fill.HandleConsumed(S(1));
  EXPECT_THAT(Ask(fill), ElementsAre(R(6, 7)));
  fill.HandleConsumed(S(4));
  EXPECT_THAT(Ask(fill), ElementsAre(R(7, 10)));
}

TEST(HandOnTest, TheWindowCountsWantedSegmentsOnly) {
  TestFill fill(SegmentSet::FromRanges({R(1, 3), R(10, 12), R(20, 22)}), 3);
  EXPECT_THAT(Ask(fill), ElementsAre(R(1, 3), R(10, 11)));
  Give(fill, 1);
  Give(fill, 2);
  fill.HandleConsumed(S(10));
  EXPECT_THAT(Ask(fill), ElementsAre(R(11, 12), R(20, 21)));
}

TEST(HandOnTest, TheNextInOrderAlwaysHasRoom) {
  TestFill fill(std::nullopt, 4);
  fill.AddSource(kB, Now());
  EXPECT_THAT(Ask(fill, kA), ElementsAre(R(0, 4)));
  for (uint64_t i = 1; i < 4; ++i) Give(fill, i);
  EXPECT_THAT(Ask(fill, kB), IsEmpty());
  fill.RetireSource(kA);  // lost with segment 0
  fill.RemoveSource(kA);
  EXPECT_THAT(Ask(fill, kB), ElementsAre(R(0, 1)));
}

TEST(HandOnTest, WhatWasHandedOnIsNotAskedForAgainWhenASourceIsLost) {
  TestFill fill(std::nullopt, 4);
  Ask(fill);
  for (uint64_t i = 0; i < 3; ++i) Give(fill, i);
  fill.HandleConsumed(S(3));
  fill.AddSource(kB, Now());
  fill.RetireSource(kA);
  fill.RemoveSource(kA);
  EXPECT_THAT(Ask(fill, kB), ElementsAre(R(3, 7)));
}

TEST(HandOnTest, ACorruptSegmentIsNotReceived) {
  TestFill fill(SegmentSet::FromRanges({R(0, 1)}), 1);
  Ask(fill);
  EXPECT_EQ(Give(fill, 0, ChecksumFor(0) ^ 1), Verdict::kCorrupt);
  EXPECT_FALSE(fill.all_received());
  fill.AllowAgain(kA);
  EXPECT_THAT(Ask(fill), ElementsAre(R(0, 1)));
}

}  // namespace
}  // namespace th
