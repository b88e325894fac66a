#include "th/pipeline_replicator/pipeline_replicator.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/replicator_harness.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Digest RootFor(uint64_t segments) {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < segments; ++i) checksums.push_back(ChecksumFor(i));
  return RootOfChecksums(checksums);
}

class PipelineReplicatorTest : public ReplicatorHarness {};

// ---- asking

TEST_F(PipelineReplicatorTest, AsksInCanonicalOrderUpToTheWindow) {
  fill_.AddSource(kA, At(0));
  EXPECT_THAT(Ask(kA), ElementsAre(R(0, 4), R(4, 8), R(8, 12), R(12, 16)));
}

TEST_F(PipelineReplicatorTest, ASourceOfAnotherSiteIsAskedMoreAtOnceAndNotWithoutEnd) {
  ReplicatorLimits limits = SmallRequests();
  limits.far_requests_in_flight = 6;
  PipelineReplicator fill(SpecOf(kSegments), limits);
  const auto asked = [&](SourceIndex source) {
    size_t requests = 0;
    while (fill.PollRequest(source, At(0)).has_value()) ++requests;
    return requests;
  };
  fill.AddSource(kA, At(0), SourceReach::kOtherSite);
  EXPECT_EQ(asked(kA), 6u);
  fill.AddSource(kB, At(0), SourceReach::kNear);
  EXPECT_EQ(asked(kB), 2u);  // what is left; never more than four
}

// Its bytes are there sooner than a word about them, but another source may come as well.
TEST_F(PipelineReplicatorTest, ASourceOfWhichAGpuCopiesIsAskedMoreAsItAnswers) {
  ReplicatorLimits limits = SmallRequests();
  limits.requests_at_first = 1;
  limits.requests_in_flight = 2;
  limits.device_requests_in_flight = 3;
  PipelineReplicator fill(SpecOf(kSegments), limits);
  fill.AddSource(kA, At(0), SourceReach::kDevice);
  const auto asked = [&] {
    std::vector<SegmentRange> ranges;
    while (const auto request = fill.PollRequest(kA, At(0))) ranges.push_back(request->range);
    return ranges;
  };
  const auto give = [&](SegmentRange range) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
      ASSERT_TRUE(fill.BeginSegment(kA, i));
      fill.HandleSegment(kA, i, ChecksumFor(i.value), ChecksumFor(i.value), At(0));
    }
  };
  EXPECT_THAT(asked(), ElementsAre(R(0, 4)));
  give(R(0, 4));
  EXPECT_THAT(asked(), ElementsAre(R(4, 8), R(8, 12)));
  give(R(4, 8));
  EXPECT_THAT(asked(), ElementsAre(R(12, 16), R(16, 20)));  // three are in flight
  give(R(8, 12));
  EXPECT_THAT(asked(), ElementsAre(R(20, 24)));
}

TEST_F(PipelineReplicatorTest, OfLargeSegmentsAGpuIsAskedForNoMoreBytes) {
  const auto asked = [](uint64_t segment_bytes) {
    PipelineReplicator::Spec spec = SpecOf(/*segments=*/1000);
    spec.segment_bytes = segment_bytes;
    spec.total_bytes = 1000 * segment_bytes;
    ReplicatorLimits limits;
    limits.requests_at_first = 100;
    PipelineReplicator fill(std::move(spec), limits);
    fill.AddSource(kA, At(0), SourceReach::kDevice);
    uint64_t requests = 0;
    while (fill.PollRequest(kA, At(0)).has_value()) ++requests;
    return requests;
  };
  EXPECT_EQ(asked(uint64_t{4} << 20), 32u);
  EXPECT_EQ(asked(uint64_t{16} << 20), 8u);
  EXPECT_EQ(asked(uint64_t{64} << 20), 4u) << "as of any near source";
}

TEST_F(PipelineReplicatorTest, AnsweredRequestOpensTheWindow) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  for (uint64_t i = 0; i < 3; ++i) Give(kA, i);
  EXPECT_THAT(Ask(kA), IsEmpty());
  Give(kA, 3);
  EXPECT_THAT(Ask(kA), ElementsAre(R(16, 20)));
}

// So that the parts of two sources lie side by side though one of them is there first.
TEST(FirstRequestsTest, ASourceIsAskedForMoreAsItAnswers) {
  ReplicatorLimits limits = SmallRequests();
  limits.requests_at_first = 1;
  limits.requests_in_flight = 2;
  PipelineReplicator fill(SpecOf(kSegments), limits);
  const auto ask = [&](SourceIndex source) {
    std::vector<SegmentRange> asked;
    while (auto request = fill.PollRequest(source, At(0))) asked.push_back(request->range);
    return asked;
  };
  const auto give = [&](SourceIndex source, SegmentRange range) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
      ASSERT_TRUE(fill.BeginSegment(source, i));
      fill.HandleSegment(source, i, ChecksumFor(i.value), ChecksumFor(i.value), At(0));
    }
  };
  fill.AddSource(kA, At(0));
  EXPECT_THAT(ask(kA), ElementsAre(R(0, 4)));
  fill.AddSource(kB, At(0));
  EXPECT_THAT(ask(kB), ElementsAre(R(4, 8)));
  give(kA, R(0, 4));
  EXPECT_THAT(ask(kA), ElementsAre(R(8, 12), R(12, 16)));
  give(kA, R(8, 12));
  EXPECT_THAT(ask(kA), ElementsAre(R(16, 20))) << "two at once are the limit";
}

// A source that has what was asked of it later would send that first, or a relay nothing at all.
TEST(FirstRequestsTest, WhatAnotherSourceGaveBackIsAskedAtOnce) {
  ReplicatorLimits limits = SmallRequests();
  limits.requests_at_first = 1;
  PipelineReplicator fill(SpecOf(kSegments), limits);
  const auto ask = [&](SourceIndex source) {
    std::vector<SegmentRange> asked;
    while (auto request = fill.PollRequest(source, At(0))) asked.push_back(request->range);
    return asked;
  };
  fill.AddSource(kA, At(0));
  ask(kA);
  for (uint64_t i = 0; i < 4; ++i)
    fill.HandleSegment(kA, S(i), ChecksumFor(i), ChecksumFor(i), At(0));
  ASSERT_THAT(ask(kA), ElementsAre(R(4, 8), R(8, 12)));
  fill.DetachSource(kA, At(0));
  fill.AddSource(kB, At(0));
  ASSERT_THAT(ask(kB), ElementsAre(R(12, 16)));
  fill.HandleSegment(kA, S(4), ChecksumFor(4), ChecksumFor(4), At(0));
  fill.RemoveSource(kA);
  EXPECT_THAT(ask(kB), ElementsAre(R(5, 9), R(9, 12))) << "what comes next awaits an answer";
}

TEST_F(PipelineReplicatorTest, AnswersOutOfOrderOpenTheWindowToo) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  for (uint64_t i : {5, 4, 7, 6}) EXPECT_EQ(Give(kA, i), Verdict::kAccepted);
  EXPECT_THAT(Ask(kA), ElementsAre(R(16, 20)));
}

TEST_F(PipelineReplicatorTest, TwoSourcesGetDisjointRanges) {
  fill_.AddSource(kA, At(0));
  fill_.AddSource(kB, At(0));
  const auto a = fill_.PollRequest(kA, At(0));
  const auto b = fill_.PollRequest(kB, At(0));
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(a->range, R(0, 4));
  EXPECT_EQ(b->range, R(4, 8));
}

TEST_F(PipelineReplicatorTest, UnknownOrRetiredSourceIsAskedNothing) {
  EXPECT_THAT(Ask(kA), IsEmpty());
  fill_.AddSource(kA, At(0));
  fill_.RetireSource(kA);
  EXPECT_THAT(Ask(kA), IsEmpty());
}

struct RequestSizeCase {
  std::string name;
  uint64_t request_bytes;
  uint64_t segment_bytes;
  uint64_t segments;
  SegmentRange first;
};
class RequestSizeTest : public ::testing::TestWithParam<RequestSizeCase> {};
TEST_P(RequestSizeTest, FirstRequestHasAsManySegmentsAsFit) {
  const RequestSizeCase& c = GetParam();
  ReplicatorLimits limits;
  limits.request_bytes = c.request_bytes;
  PipelineReplicator fill({.segment_count = c.segments,
                           .segment_bytes = c.segment_bytes,
                           .total_bytes = c.segments * c.segment_bytes},
                          limits);
  fill.AddSource(kA, At(0));
  const auto request = fill.PollRequest(kA, At(0));
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->range, c.first);
}
INSTANTIATE_TEST_SUITE_P(
    Sizes, RequestSizeTest,
    ::testing::Values(RequestSizeCase{"several", 4096, 1024, 10, R(0, 4)},
                      RequestSizeCase{"not_a_multiple", 4000, 1024, 10, R(0, 3)},
                      RequestSizeCase{"segment_above_request", 1024, 4096, 10, R(0, 1)},
                      RequestSizeCase{"shard_below_request", 1 << 20, 1024, 3, R(0, 3)},
                      RequestSizeCase{"many_small_segments", 1 << 20, 1024, 1000, R(0, 128)}),
    [](const auto& info) { return info.param.name; });

// ---- receiving

TEST_F(PipelineReplicatorTest, AcceptedSegmentIsHeldWithItsSum) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  EXPECT_EQ(Give(kA, 2), Verdict::kAccepted);
  EXPECT_TRUE(fill_.held().Contains(S(2)));
  EXPECT_EQ(fill_.ChecksumOf(S(2)), ChecksumFor(2));
  EXPECT_EQ(fill_.bytes_held(), kSegmentBytes);
  EXPECT_EQ(fill_.bytes_from(kA), kSegmentBytes);
}

enum class Setup { kUnknownSource, kNotAsked, kOutOfRange, kAskedOfAnother };
class UnexpectedTest : public PipelineReplicatorTest,
                       public ::testing::WithParamInterface<Setup> {};
TEST_P(UnexpectedTest, SegmentThatWasNotAskedIsUnexpectedAndUnwanted) {
  SourceIndex sender = kA;
  uint64_t segment = 0;
  switch (GetParam()) {
    case Setup::kUnknownSource:
      break;
    case Setup::kNotAsked:
      fill_.AddSource(kA, At(0));
      break;
    case Setup::kOutOfRange:
      fill_.AddSource(kA, At(0));
      Ask(kA);
      segment = kSegments;
      break;
    case Setup::kAskedOfAnother:
      fill_.AddSource(kA, At(0));
      fill_.AddSource(kB, At(0));
      Ask(kA);
      sender = kB;
      break;
  }
  EXPECT_FALSE(fill_.WantsSegment(sender, S(segment)));
  EXPECT_FALSE(fill_.BeginSegment(sender, S(segment)));
  EXPECT_FALSE(fill_.HandleDiscarded(sender, S(segment), At(0)));
  EXPECT_EQ(Give(sender, segment), Verdict::kUnexpected);
  EXPECT_EQ(fill_.bytes_held(), 0);
}
INSTANTIATE_TEST_SUITE_P(All, UnexpectedTest,
                         ::testing::Values(Setup::kUnknownSource, Setup::kNotAsked,
                                           Setup::kOutOfRange, Setup::kAskedOfAnother));

TEST_F(PipelineReplicatorTest, LastSegmentCountsItsOwnLength) {
  PipelineReplicator fill({.segment_count = 3, .segment_bytes = 1024, .total_bytes = 2 * 1024 + 7},
                          SmallRequests());
  fill.AddSource(kA, At(0));
  fill.PollRequest(kA, At(0));
  fill.HandleSegment(kA, S(2), 1, 1, At(0));
  EXPECT_EQ(fill.bytes_held(), 7);
}

TEST_F(PipelineReplicatorTest, CorruptSegmentIsAskedAgainOfAnotherSource) {
  fill_.AddSource(kA, At(0));
  fill_.AddSource(kB, At(0));
  Ask(kA);
  EXPECT_EQ(GiveCorrupt(kA, 1), Verdict::kCorrupt);
  EXPECT_FALSE(fill_.held().Contains(S(1)));
  EXPECT_EQ(fill_.corrupt_segments(), 1);
  EXPECT_EQ(fill_.corrupt_from(kA), 1);
  EXPECT_EQ(fill_.corrupt_from(kB), 0);
  for (uint64_t i : {0, 2, 3}) Give(kA, i);
  EXPECT_THAT(Ask(kA), ElementsAre(R(16, 20)));  // not R(1, 2)
  const auto b = fill_.PollRequest(kB, At(0));
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(b->range, R(1, 2));
}

TEST_F(PipelineReplicatorTest, CorruptSegmentWaitsForAnotherSourceThatComesLater) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  for (uint64_t i : {0, 2, 3}) Give(kA, i);
  EXPECT_THAT(Ask(kA, At(999)), ElementsAre(R(16, 20)));  // not R(1, 2)
  fill_.AddSource(kB, At(999));
  EXPECT_EQ(fill_.PollRequest(kB, At(999))->range, R(1, 2));
}

TEST_F(PipelineReplicatorTest, CorruptSegmentIsAskedOfTheSameSourceWhenNoOtherCameInTime) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  for (uint64_t i : {0, 2, 3}) Give(kA, i);
  EXPECT_THAT(Ask(kA, At(1000)), ElementsAre(R(1, 2)));
  EXPECT_EQ(Give(kA, 1), Verdict::kAccepted);
}

TEST_F(PipelineReplicatorTest, CorruptSegmentIsAskedOfTheSameSourceAtOnceWhenThereIsNoOther) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  for (uint64_t i : {0, 2, 3}) Give(kA, i);
  fill_.AllowAgain(kB);  // unknown: nothing
  fill_.AllowAgain(kA);
  EXPECT_THAT(Ask(kA), ElementsAre(R(1, 2)));
}

TEST_F(PipelineReplicatorTest, SourceOfACorruptSegmentIsSuspectedOnce) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  Give(kA, 0);
  EXPECT_THAT(fill_.PollSuspected(), IsEmpty());
  GiveCorrupt(kA, 1);
  EXPECT_THAT(fill_.PollSuspected(),
              ElementsAre(PipelineReplicator::Suspicion{.source = kA, .segment = S(1)}));
  EXPECT_THAT(fill_.PollSuspected(), IsEmpty());
}

TEST_F(PipelineReplicatorTest, SourceThatIsLostAsCorruptIsNotSuspectedToo) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  GiveCorrupt(kA, 2);
  EXPECT_THAT(fill_.PollSuspected(), IsEmpty());
  EXPECT_EQ(fill_.PollLost(At(0)).size(), 1);
}

TEST_F(PipelineReplicatorTest, SegmentCorruptFromBothIsAskedAgainOfBoth) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  fill_.AddSource(kB, At(0));
  ASSERT_EQ(fill_.PollRequest(kB, At(0))->range, R(1, 2));
  EXPECT_EQ(fill_.HandleSegment(kB, S(1), 5, 6, At(0)), Verdict::kCorrupt);
  EXPECT_EQ(fill_.PollRequest(kB, At(999))->range, R(16, 20));
  EXPECT_EQ(fill_.PollRequest(kB, At(1000))->range, R(1, 2));
}

TEST_F(PipelineReplicatorTest, SourceWithTooManyCorruptSegmentsIsLostOnce) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  GiveCorrupt(kA, 1);
  EXPECT_THAT(fill_.PollLost(At(1)), IsEmpty());
  GiveCorrupt(kA, 2);
  for (uint64_t i : {0, 3, 4, 5}) Give(kA, i);
  EXPECT_THAT(Ask(kA), IsEmpty());  // not even before the owner has heard of it
  EXPECT_EQ(fill_.NextDeadline(), absl::InfinitePast());
  EXPECT_THAT(fill_.PollLost(At(1)),
              ElementsAre(PipelineReplicator::LostSource{.source = kA, .corrupt = true}));
  EXPECT_THAT(fill_.PollLost(At(1)), IsEmpty());
  EXPECT_THAT(Ask(kA), IsEmpty());
}

TEST_F(PipelineReplicatorTest, WithoutChecksumsSumsAreNotCompared) {
  PipelineReplicator::Spec spec = SpecOf(1);
  spec.checksums = false;
  PipelineReplicator fill(spec, SmallRequests());
  fill.AddSource(kA, At(0));
  fill.PollRequest(kA, At(0));
  EXPECT_EQ(fill.HandleSegment(kA, S(0), 1, 2, At(0)), Verdict::kAccepted);
  EXPECT_TRUE(fill.complete());  // and no root is awaited
}

// ---- who may write

TEST_F(PipelineReplicatorTest, OnlyOneSourceWritesASegmentAtATime) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  ASSERT_TRUE(fill_.BeginSegment(kA, S(0)));
  fill_.RetireSource(kA);  // its bytes may still be landing
  fill_.AddSource(kB, At(0));
  EXPECT_EQ(fill_.PollRequest(kB, At(0))->range, R(1, 5));
  EXPECT_FALSE(fill_.BeginSegment(kB, S(0)));
  fill_.RemoveSource(kA);  // nothing of it touches the buffer now
  EXPECT_EQ(fill_.PollRequest(kB, At(0))->range, R(0, 1));
  EXPECT_TRUE(fill_.BeginSegment(kB, S(0)));
}

TEST_F(PipelineReplicatorTest, SegmentThatARetiredSourceHadBegunStillCounts) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  ASSERT_TRUE(fill_.BeginSegment(kA, S(0)));
  fill_.RetireSource(kA);
  EXPECT_EQ(Give(kA, 0), Verdict::kAccepted);
  EXPECT_FALSE(fill_.BeginSegment(kA, S(1)));
  EXPECT_TRUE(fill_.HandleDiscarded(kA, S(1), At(0)));
}

TEST_F(PipelineReplicatorTest, DiscardedSegmentAnswersItsRequest) {
  fill_.AddSource(kA, At(0));
  Ask(kA);
  for (uint64_t i = 0; i < 3; ++i) Give(kA, i);
  EXPECT_TRUE(fill_.HandleDiscarded(kA, S(3), At(0)));
  EXPECT_THAT(Ask(kA), ElementsAre(R(3, 4)));  // nobody has it, so it is asked again
}

// ---- the root

TEST_F(PipelineReplicatorTest, CompleteOnlyOnceTheRootAgrees) {
  fill_.AddSource(kA, At(0));
  GiveAll(kA);
  EXPECT_TRUE(fill_.all_received());
  EXPECT_FALSE(fill_.complete());
  fill_.HandleRoot(RootFor(kSegments));
  EXPECT_TRUE(fill_.complete());
}

TEST_F(PipelineReplicatorTest, RootKnownBeforehandCompletesWithTheLastSegment) {
  fill_.HandleRoot(RootFor(kSegments));
  EXPECT_FALSE(fill_.complete());
  fill_.AddSource(kA, At(0));
  GiveAll(kA);
  EXPECT_TRUE(fill_.complete());
}

TEST_F(PipelineReplicatorTest, DisagreeingRootStartsOverAndBlamesTheOnlySource) {
  fill_.AddSource(kA, At(0));
  GiveAll(kA);
  fill_.HandleRoot(RootFor(kSegments - 1));
  EXPECT_EQ(fill_.rounds_restarted(), 1);
  EXPECT_FALSE(fill_.all_received());
  EXPECT_EQ(fill_.bytes_held(), 0);
  EXPECT_THAT(fill_.PollLost(At(0)),
              ElementsAre(PipelineReplicator::LostSource{.source = kA, .corrupt = true}));
  EXPECT_THAT(fill_.PollLost(At(0)), IsEmpty());
}

TEST_F(PipelineReplicatorTest, OnlySourceIsBlamedForTheListEvenAfterItLeft) {
  fill_.AddSource(kA, At(0));
  GiveAll(kA);
  fill_.RemoveSource(kA);
  fill_.HandleRoot(Digest{});
  EXPECT_EQ(fill_.NextDeadline(), absl::InfinitePast());
  EXPECT_EQ(fill_.PollLost(At(0)).size(), 1);
}

TEST_F(PipelineReplicatorTest, OneOfSeveralSourcesIsNotBlamedForTheList) {
  fill_.AddSource(kA, At(0));
  fill_.AddSource(kB, At(0));
  fill_.PollRequest(kA, At(0));
  for (uint64_t i = 0; i < 4; ++i) Give(kA, i);
  GiveAll(kB);
  fill_.HandleRoot(Digest{});
  EXPECT_EQ(fill_.rounds_restarted(), 1);
  EXPECT_THAT(fill_.PollLost(At(0)), IsEmpty());
}

TEST_F(PipelineReplicatorTest, FillThatStartedOverCompletesFromAGoodSource) {
  fill_.AddSource(kA, At(0));
  fill_.HandleRoot(RootFor(kSegments));
  for (auto asked = Ask(kA); !asked.empty() && fill_.rounds_restarted() == 0; asked = Ask(kA)) {
    for (const SegmentRange& range : asked) {
      for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
        fill_.HandleSegment(kA, i, 7, 7, At(0));  // a list of its own making
      }
    }
  }
  fill_.PollLost(At(0));
  fill_.RemoveSource(kA);
  fill_.AddSource(kB, At(0));
  GiveAll(kB);
  EXPECT_TRUE(fill_.complete());
  EXPECT_FALSE(fill_.failed());
}

TEST_F(PipelineReplicatorTest, ListThatIsWrongTooOftenFailsTheFill) {
  fill_.HandleRoot(Digest{});
  for (uint32_t round = 1; round <= 3; ++round) {
    EXPECT_FALSE(fill_.failed());
    fill_.AddSource(SourceIndex(round), At(0));
    GiveAll(SourceIndex(round));
    EXPECT_EQ(fill_.rounds_restarted(), round);
  }
  EXPECT_TRUE(fill_.failed());
  fill_.AddSource(SourceIndex(9), At(0));
  EXPECT_THAT(Ask(SourceIndex(9)), IsEmpty());
}

// ---- resuming, edges

TEST_F(PipelineReplicatorTest, ResumedFillAsksOnlyForWhatIsMissing) {
  PipelineReplicator::Spec spec = SpecOf(8);
  spec.already_held.Add(R(0, 3));
  spec.already_held.Add(S(6));
  for (uint64_t i = 0; i < 8; ++i) spec.held_checksums.push_back(ChecksumFor(i));
  PipelineReplicator fill(spec, SmallRequests());
  fill.HandleRoot(RootFor(8));
  EXPECT_EQ(fill.bytes_held(), 4 * kSegmentBytes);
  fill.AddSource(kA, At(0));
  EXPECT_EQ(fill.PollRequest(kA, At(0))->range, R(3, 6));
  EXPECT_EQ(fill.PollRequest(kA, At(0))->range, R(7, 8));
  for (uint64_t i : {3, 4, 5, 7})
    fill.HandleSegment(kA, S(i), ChecksumFor(i), ChecksumFor(i), At(0));
  EXPECT_TRUE(fill.complete());
}

TEST_F(PipelineReplicatorTest, EmptyShardIsReceivedAtOnceAndStillNeedsItsRoot) {
  PipelineReplicator fill(SpecOf(0), SmallRequests());
  EXPECT_TRUE(fill.all_received());
  EXPECT_FALSE(fill.complete());
  fill.HandleRoot(RootOfChecksums({}));
  EXPECT_TRUE(fill.complete());
}

// Random sources that come, go, corrupt and repeat: what is held was always given with its own sum,
// the fill ends, and no segment is ever written by two at once or once it is held.
class RandomFillTest : public ::testing::TestWithParam<uint32_t> {};
TEST_P(RandomFillTest, EndsWithEverySegmentAccountedOnce) {
  std::mt19937 random(GetParam());
  ReplicatorLimits limits = SmallRequests();
  limits.corrupt_segments_per_source = 1000;
  PipelineReplicator fill(SpecOf(kSegments), limits);
  fill.HandleRoot(RootFor(kSegments));
  std::map<SourceIndex, std::vector<SegmentIndex>> inbox;
  uint32_t next_source = 0;
  int64_t now = 0;
  for (int step = 0; step < 20000 && !fill.complete(); ++step, ++now) {
    if (inbox.size() < 3 && random() % 4 == 0) {
      fill.AddSource(SourceIndex(next_source), At(now));
      inbox[SourceIndex(next_source++)];
    }
    if (inbox.empty()) continue;
    auto chosen = std::next(inbox.begin(), random() % inbox.size());
    const SourceIndex source = chosen->first;
    if (auto request = fill.PollRequest(source, At(now))) {
      for (auto i = request->range.begin; i < request->range.end; i = i.Next()) {
        chosen->second.push_back(i);
      }
    }
    if (random() % 40 == 0) {
      fill.RemoveSource(source);
      inbox.erase(chosen);
    } else if (!chosen->second.empty()) {
      const SegmentIndex segment = chosen->second.front();
      chosen->second.erase(chosen->second.begin());
      const bool held = fill.held().Contains(segment);
      if (!fill.BeginSegment(source, segment)) {
        EXPECT_TRUE(fill.HandleDiscarded(source, segment, At(now)));
        continue;
      }
      EXPECT_FALSE(held);
      const SegmentChecksum computed = ChecksumFor(segment.value) ^ (random() % 5 == 0 ? 1 : 0);
      fill.HandleSegment(source, segment, ChecksumFor(segment.value), computed, At(now));
    }
  }
  EXPECT_TRUE(fill.complete());
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < next_source; ++i) bytes += fill.bytes_from(SourceIndex(i));
  EXPECT_EQ(bytes, kSegments * kSegmentBytes);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomFillTest, ::testing::Range(1u, 11u));

}  // namespace
}  // namespace th
