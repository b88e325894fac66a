// The list of sums in a fill: what is held without being moved, what waits for the list, what a
// list that is wrong comes to, and how what is received is compared with it.
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/checksum_list.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/pipeline_replicator/replicator_harness.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Verdict = PipelineReplicator::SegmentVerdict;

std::vector<SegmentChecksum> List() {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < kSegments; ++i) checksums.push_back(ChecksumFor(i));
  return checksums;
}
Digest Root() { return RootOfChecksums(List()); }

// A shard of which the buffer has everything from before but segments 3 and 9, which have changed.
PipelineReplicator::Spec Republished() {
  PipelineReplicator::Spec spec = SpecOf(kSegments);
  spec.before = SegmentSet::AllOf(kSegments);
  spec.before_checksums = List();
  spec.before_checksums[3] = spec.before_checksums[9] = 7;
  return spec;
}

// Sources list their sums, unless they are added otherwise.
class TestFill : public PipelineReplicator {
 public:
  explicit TestFill(Spec spec) : PipelineReplicator(std::move(spec), SmallRequests()) {
    AddLister(kA);
  }
  void AddLister(SourceIndex source) {
    AddSource(source, At(0), SourceReach::kNear, /*lists_sums=*/true);
  }
  std::vector<SegmentRange> Ask(SourceIndex source = kA, absl::Time now = At(0)) {
    std::vector<SegmentRange> asked;
    while (auto request = PollRequest(source, now)) asked.push_back(request->range);
    return asked;
  }
  void Report(const std::vector<SegmentChecksum>& checksums, uint64_t first = 0,
              SourceIndex source = kA) {
    HandleChecksums(source, S(first), checksums, At(0));
  }
  Verdict Give(uint64_t i, SourceIndex source = kA) { return Give(i, ChecksumFor(i), source); }
  Verdict Give(uint64_t i, SegmentChecksum checksum, SourceIndex source = kA) {
    EXPECT_TRUE(BeginSegment(source, S(i))) << i;
    return HandleSegment(source, S(i), checksum, checksum, At(0));
  }
};

TEST(ChecksumListTest, TakesTheNextSumsOfItsSourceOnly) {
  ChecksumList list(3);
  list.Ask(kA);
  EXPECT_FALSE(list.Append(kB, S(0), {1}));
  EXPECT_FALSE(list.Append(kA, S(1), {2}));
  EXPECT_TRUE(list.Append(kA, S(0), {1}));
  EXPECT_TRUE(list.coming());
  EXPECT_FALSE(list.Append(kA, S(1), {2, 3, 4})) << "more than there are segments";
  EXPECT_TRUE(list.Append(kA, S(1), {2, 3}));
  EXPECT_TRUE(list.complete());
  EXPECT_FALSE(list.Check(Root()));
  EXPECT_TRUE(list.Check(RootOfChecksums({1, 2, 3})));
}

TEST(ListedChecksumsTest, WhatTheBufferHasFromBeforeIsNotMoved) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  EXPECT_FALSE(fill.PollChecksums(kA, At(0))) << "it was asked";
  EXPECT_THAT(fill.Ask(), IsEmpty()) << "the list may tell that nothing is needed";
  fill.Report(List());
  EXPECT_EQ(fill.TakeUnchanged().ToString(), "[0,3) [4,9) [10,32)");
  EXPECT_THAT(fill.TakeUnchanged().ranges(), IsEmpty());
  EXPECT_EQ(fill.bytes_unchanged(), 30 * kSegmentBytes);
  EXPECT_EQ(fill.bytes_held(), 30 * kSegmentBytes);
  EXPECT_THAT(fill.Ask(), ElementsAre(R(3, 4), R(9, 10)));
  fill.Give(3);
  fill.Give(9);
  EXPECT_TRUE(fill.complete());
  EXPECT_EQ(fill.bytes_from(kA), 2 * kSegmentBytes);
}

TEST(ListedChecksumsTest, NothingCountsBeforeTheWholeListIsChecked) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  std::vector<SegmentChecksum> half = List();
  half.resize(kSegments / 2);
  fill.Report(half);
  EXPECT_THAT(fill.TakeUnchanged().ranges(), IsEmpty());
  EXPECT_THAT(fill.TakeListed().checksums, IsEmpty()) << "readers are not told either";
  EXPECT_THAT(fill.Ask(), IsEmpty());
}

TEST(ListedChecksumsTest, AListThatDisagreesWithTheRootLosesItsSourceAndTheNextIsAsked) {
  TestFill fill(Republished());
  fill.AddLister(kB);
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  EXPECT_FALSE(fill.PollChecksums(kB, At(0))) << "one at a time";
  std::vector<SegmentChecksum> wrong = List();
  wrong[3] = 7;  // so that the changed segment would be taken for an unchanged one
  fill.Report(wrong);
  EXPECT_EQ(fill.bytes_held(), 0);
  EXPECT_THAT(fill.PollLost(At(0)),
              ElementsAre(PipelineReplicator::LostSource{.source = kA, .corrupt = true}));
  EXPECT_TRUE(fill.PollChecksums(kB, At(0)));
  fill.Report(List(), 0, kB);
  EXPECT_EQ(fill.bytes_unchanged(), 30 * kSegmentBytes);
  EXPECT_EQ(fill.rounds_restarted(), 0);
}

TEST(ListedChecksumsTest, ListsThatAreWrongAgainAndAgainEndTheFill) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  std::vector<SegmentChecksum> wrong = List();
  wrong[0] = 7;
  for (uint32_t i = 0; i <= ReplicatorLimits().root_mismatches; ++i) {
    EXPECT_FALSE(fill.failed());
    fill.AddLister(SourceIndex(i));
    fill.PollChecksums(SourceIndex(i), At(0));
    fill.Report(wrong, 0, SourceIndex(i));
  }
  EXPECT_TRUE(fill.failed());
}

TEST(ListedChecksumsTest, ALostSourcesListIsAskedOfTheNextFromItsBeginning) {
  TestFill fill(Republished());
  fill.AddLister(kB);
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Report({ChecksumFor(0), ChecksumFor(1)});
  fill.RetireSource(kA);
  fill.RemoveSource(kA);
  EXPECT_TRUE(fill.PollChecksums(kB, At(0)));
  fill.Report(List(), 0, kB);
  EXPECT_EQ(fill.bytes_unchanged(), 30 * kSegmentBytes);
}

TEST(ListedChecksumsTest, ASourceThatOwesTheListAloneIsLostWhenItIsSilent) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(1000));
  EXPECT_THAT(fill.PollLost(At(1399)), IsEmpty());
  EXPECT_EQ(fill.NextDeadline(), At(1400));
  EXPECT_EQ(fill.PollLost(At(1400)).size(), 1);
}

TEST(ListedChecksumsTest, BytesWaitForTheListSoLongOnly) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  const absl::Time late = At(0) + ReplicatorLimits().list_patience;
  EXPECT_THAT(fill.Ask(kA, late - absl::Milliseconds(1)), IsEmpty());
  EXPECT_EQ(fill.Ask(kA, late).front(), R(0, 4));
  // The rest of what is asked by then is still spared.
  fill.Give(0);
  fill.Report(List());
  EXPECT_EQ(fill.bytes_unchanged(), 29 * kSegmentBytes);
  EXPECT_FALSE(fill.WantsSegment(kA, S(1))) << "it is held, and thrown away when it comes";
}

TEST(ListedChecksumsTest, WithoutASourceThatListsItIsFilledAsIfNothingHadBeenThere) {
  PipelineReplicator fill(Republished(), SmallRequests());
  fill.HandleRoot(Root());
  fill.AddSource(kA, At(0));
  EXPECT_FALSE(fill.PollChecksums(kA, At(0)));
  EXPECT_EQ(fill.PollRequest(kA, At(0))->range, R(0, 4));
}

TEST(ListedChecksumsTest, BytesThatTheFillHasOverwrittenAreNotFromBefore) {
  TestFill fill(Republished());
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Ask(kA, At(0) + ReplicatorLimits().list_patience);
  EXPECT_TRUE(fill.BeginSegment(kA, S(0)));  // and the source is lost in the midst of it
  fill.AddLister(kB);
  fill.RetireSource(kA);
  fill.RemoveSource(kA);
  fill.PollChecksums(kB, At(0));
  fill.Report(List(), 0, kB);
  EXPECT_FALSE(fill.held().Contains(S(0)));
  EXPECT_EQ(fill.bytes_unchanged(), 29 * kSegmentBytes);
}

TEST(ListedChecksumsTest, BytesDoNotWaitWhereNothingWasThere) {
  TestFill fill(SpecOf(kSegments));
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  EXPECT_FALSE(fill.Ask().empty());
}

TEST(ListedChecksumsTest, AWholeWithNothingToCompareAsksForNoListBeforeThereIsARoot) {
  TestFill fill(SpecOf(kSegments));
  EXPECT_FALSE(fill.PollChecksums(kA, At(0)));
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
}

TEST(ListedChecksumsTest, AWrongSegmentWhoseOwnSumAgreesIsFoundAtOnce) {
  TestFill fill(SpecOf(kSegments));
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Report(List());
  fill.Ask();
  EXPECT_EQ(fill.Give(0, /*sum=*/7), Verdict::kCorrupt);
  EXPECT_EQ(fill.Give(1), Verdict::kAccepted);
  EXPECT_EQ(fill.corrupt_from(kA), 1);
}

TEST(ListedChecksumsTest, WhatWasReceivedBeforeTheListIsComparedWhenItComes) {
  TestFill fill(SpecOf(kSegments));
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Ask();
  EXPECT_EQ(fill.Give(0, /*sum=*/7), Verdict::kAccepted);
  fill.Report(List());
  EXPECT_EQ(fill.rounds_restarted(), 1);
  EXPECT_TRUE(fill.held().empty());
  EXPECT_EQ(fill.PollLost(At(0)).size(), 1) << "nobody else has sent anything";
}

TEST(ListedChecksumsTest, StartingOverKeepsWhatTheListShowsToBeUnchanged) {
  TestFill fill(Republished());
  fill.AddLister(kB);
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Ask(kB, At(0) + ReplicatorLimits().list_patience);
  fill.Give(0, /*sum=*/7, kB);
  fill.Report(List());
  EXPECT_EQ(fill.rounds_restarted(), 1);
  EXPECT_EQ(fill.bytes_unchanged(), 29 * kSegmentBytes);
  EXPECT_EQ(fill.TakeUnchanged().count(), 29);
}

// ---- published, and not sealed yet

TEST(ListedChecksumsTest, TheListIsFollowedAsItIsMade) {
  TestFill fill(Republished());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  fill.Report({ChecksumFor(0), ChecksumFor(1), ChecksumFor(2), ChecksumFor(3)});
  EXPECT_EQ(fill.TakeUnchanged().ToString(), "[0,3)");
  EXPECT_EQ(fill.TakeListed().checksums.size(), 4) << "relays' readers follow too";
  EXPECT_THAT(fill.Ask(), ElementsAre(R(3, 4)));
  fill.Give(3);
  std::vector<SegmentChecksum> rest = List();
  rest.erase(rest.begin(), rest.begin() + 4);
  fill.Report(rest, 4);
  EXPECT_EQ(fill.TakeListed().first, S(4));
  fill.Ask();
  fill.Give(9);
  EXPECT_TRUE(fill.all_received());
  EXPECT_FALSE(fill.complete());
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.complete());
}

TEST(ListedChecksumsTest, WhatAWrongListHasShownIsTakenBackWhenTheRootIsKnown) {
  TestFill fill(Republished());
  fill.PollChecksums(kA, At(0));
  std::vector<SegmentChecksum> wrong = List();
  wrong[3] = 7;
  fill.Report(wrong);
  EXPECT_TRUE(fill.held().Contains(S(3)));
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.held().empty());
  EXPECT_EQ(fill.rounds_restarted(), 1);
  EXPECT_EQ(fill.PollLost(At(0)).size(), 1);
}

// ---- parts, and what hands on

PipelineReplicator::Spec Part(uint64_t window = 0) {
  PipelineReplicator::Spec spec = SpecOf(kSegments);
  spec.wanted = SegmentSet::FromRanges({R(3, 5)});
  spec.window_segments = window;
  return spec;
}

TEST(ListedChecksumsTest, APartEndsWithTheListInAgreementWithTheRoot) {
  TestFill fill(Part());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  fill.Ask();
  fill.Give(3);
  fill.Give(4);
  EXPECT_FALSE(fill.all_received()) << "the list is missing";
  fill.Report(List());
  EXPECT_TRUE(fill.all_received());
  EXPECT_FALSE(fill.complete()) << "the root is missing";
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.complete());
}

TEST(ListedChecksumsTest, APartOfWrongSegmentsDoesNotEnd) {
  TestFill fill(Part());
  fill.HandleRoot(Root());
  fill.PollChecksums(kA, At(0));
  fill.Ask();
  fill.Give(3, /*sum=*/7);
  fill.Give(4);
  fill.Report(List());
  EXPECT_FALSE(fill.complete());
  EXPECT_EQ(fill.rounds_restarted(), 1);
}

TEST(ListedChecksumsTest, APartOfASourceWithoutAListHasItsOwnSums) {
  PipelineReplicator fill(Part(), SmallRequests());
  fill.AddSource(kA, At(0));
  while (fill.PollRequest(kA, At(0))) continue;
  for (uint64_t i : {3, 4}) {
    fill.BeginSegment(kA, S(i));
    fill.HandleSegment(kA, S(i), ChecksumFor(i), ChecksumFor(i), At(0));
  }
  EXPECT_TRUE(fill.complete());
}

TEST(ListedChecksumsTest, WhatHandsOnAsksForNothingBeforeTheListIsCheckedIfItCanBe) {
  TestFill fill(Part(/*window=*/2));
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  EXPECT_THAT(fill.Ask(kA, At(3'600'000)), IsEmpty());
  fill.Report(List());
  EXPECT_THAT(fill.Ask(), ElementsAre(R(3, 5)));
}

TEST(ListedChecksumsTest, WhatHandsOnBeforeThereIsARootFailsWhenItWasWrong) {
  TestFill fill(Part(/*window=*/2));
  fill.PollChecksums(kA, At(0));
  EXPECT_THAT(fill.Ask(), ElementsAre(R(3, 5)));
  fill.Give(3, /*sum=*/7);
  fill.Report(List());
  EXPECT_FALSE(fill.failed());
  fill.HandleRoot(Root());
  EXPECT_TRUE(fill.failed());
}

}  // namespace
}  // namespace th
