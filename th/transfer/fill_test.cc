#include "th/transfer/fill.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/transfer/fake_transport.h"
#include "th/transfer/fill_test_bed.h"

namespace th::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr AssignmentId kFirst(1), kSecond(2);

TestShard::Spec SomeShard() {
  return {.tensor_bytes = {700'000, 3, 0, 5'000, 262'144}, .segment_bytes = 16'384};
}

ReplicatorLimits SmallRequests() {
  ReplicatorLimits limits;
  limits.request_bytes = 65'536;
  return limits;
}

// Losing nobody by silence: for tests in which a loaded machine must not look like a dead source.
ReplicatorLimits Patient() {
  ReplicatorLimits limits = SmallRequests();
  limits.silence = kPatience;
  return limits;
}

class FillTest : public ::testing::Test {
 protected:
  FillTest() {
    limits_.keep_alive = absl::Milliseconds(10);
    for (uint64_t i = 0; i < 3; ++i) {
      nodes_.push_back(std::make_unique<TestNode>(network_.NewTransport(limits_), WorkerId(10 + i),
                                                  SomeShard()));
    }
  }

  TestNode& reader() { return *nodes_[0]; }
  TestNode& a() { return *nodes_[1]; }
  TestNode& b() { return *nodes_[2]; }
  // Assigns `next` instead of what is lost, as the server would.
  void ReplaceLostBy(const TestNode& next) {
    reader().observer.OnLoss([this, next = next.AsSource()](const TestObserver::Loss&) {
      reader().fill->SetSources(kSecond, {next});
    });
  }
  uint64_t segments() const { return nodes_[0]->shard.segment_count(); }

  TransportLimits limits_;
  FakeNetwork network_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

// ---- the plain case

TEST_F(FillTest, CompletesWithThePublishedBytesOnceTheRootIsKnown) {
  a().Publish(1);
  Fill& fill = reader().StartFill(Patient());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitAllReceived();
  EXPECT_FALSE(reader().observer.complete());
  fill.SetRoot(a().shard.Root());
  EXPECT_EQ(reader().observer.AwaitComplete(), a().shard.Root());
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  reader().observer.AwaitFirstWrite();
}

TEST(FillLimitsTest, NoSourceIsAskedForMoreThanSourcesTake) {
  const ReplicatorLimits fill;
  const TransportLimits source;
  const uint32_t requests = std::max(
      {fill.requests_in_flight, fill.far_requests_in_flight, fill.device_requests_in_flight});
  // The other half is for what moves from one connection of a pull to another.
  EXPECT_LE(requests, source.max_requests_queued / 2);
  EXPECT_LE(requests * fill.request_segments, source.max_segments_queued);
}

TEST_F(FillTest, LetsItsSourceGoAsSoonAsEverythingIsReceived) {
  a().Publish(1);
  reader().StartFill(Patient()).SetSources(kFirst, {a().AsSource()});
  a().holder.AwaitReleased(1);  // although no root is known
  reader().observer.AwaitAllReceived();
  EXPECT_THAT(reader().observer.losses(), IsEmpty());
}

TEST_F(FillTest, StatusSaysWhoGaveWhat) {
  a().Publish(1);
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  const FillStatus status = fill.status();
  EXPECT_EQ(status.bytes_held, a().shard.layout().bytes());
  EXPECT_EQ(status.held, SegmentSet::AllOf(segments()));
  ASSERT_THAT(status.sources, SizeIs(1));
  EXPECT_EQ(status.sources[0].bytes, status.bytes_held);
  EXPECT_EQ(status.sources[0].source, a().AsSource().buffer);
  EXPECT_EQ(status.sources[0].name.ToString(), "group/11");
  EXPECT_EQ(status.sources[0].transport, "fake");
  EXPECT_EQ(status.sources[0].peer, "fake " + a().address());
  EXPECT_FALSE(status.sources[0].failed);
  EXPECT_EQ(status.reroutes, 0);
  // The fake network copies one segment at a time.
  EXPECT_EQ(status.peak_extra_bytes, a().shard.layout().segment_bytes());
}

// ---- what the buffer has from before

TEST_F(FillTest, SegmentsThatTheBufferHasFromBeforeAreNotMoved) {
  a().Publish(1);
  a().shard.Corrupt(SegmentIndex(7));  // the change of the new version
  reader().Publish(1);
  reader().shard.ChecksumAll();
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {a().AsSource()});
  EXPECT_EQ(reader().observer.AwaitComplete(), a().shard.Root());
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  const uint64_t moved = a().shard.layout().segment_bytes();
  EXPECT_EQ(reader().transport->counters().bytes_received, moved);
  EXPECT_EQ(fill.status().bytes_unchanged, a().shard.layout().bytes() - moved);
  EXPECT_EQ(reader().shard.store()->held(), SegmentSet::AllOf(segments())) << "it serves all";
}

TEST_F(FillTest, TheSameContentMovesNothingAndWritesNothing) {
  a().Publish(1);
  reader().Publish(1);
  reader().shard.ChecksumAll();
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_FALSE(fill.wrote());
  EXPECT_EQ(reader().transport->counters().bytes_received, 0);
}

TEST_F(FillTest, ARelayPassesTheListOnBeforeItHasTheSegments) {
  a().Publish(1);
  b().Publish(1);
  b().shard.ChecksumAll();
  reader().Publish(1);
  reader().shard.ChecksumAll();
  a().shard.Corrupt(SegmentIndex(7));
  b().StartFill(Patient(), {}, a().shard.Root(), Before::kPublished)
      .SetSources(kFirst, {a().AsSource()});
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {b().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  EXPECT_EQ(fill.status().bytes_unchanged,
            a().shard.layout().bytes() - a().shard.layout().segment_bytes());
}

TEST_F(FillTest, AWrongListLosesItsSourceAndNothingIsHeldOnItsWord) {
  network_.ForgeListOf(a().address());
  a().Publish(1);
  b().Publish(1);
  reader().Publish(1);
  reader().shard.ChecksumAll();
  ReplaceLostBy(b());
  Fill& fill = reader().StartFill(Patient(), {}, b().shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  ASSERT_THAT(reader().observer.losses(), SizeIs(1));
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_EQ(fill.status().bytes_unchanged, b().shard.layout().bytes());
}

TEST_F(FillTest, OfAnOlderSourceEverythingIsMoved) {
  network_.ListNoChecksums();
  a().Publish(1);
  reader().Publish(1);
  reader().shard.ChecksumAll();
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root(), Before::kPublished);
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_EQ(fill.status().bytes_unchanged, 0);
  EXPECT_EQ(reader().transport->counters().bytes_received, a().shard.layout().bytes());
}

TEST_F(FillTest, TwoSourcesAtOnceBothContributeAndTheFasterTakesOverTheTail) {
  // a has only five segments itself so far; b has all, but comes later.
  a().shard.FillWith(1);
  a().shard.store()->BeginFill(BufferGeneration(1),
                               SegmentSet::FromRanges({{SegmentIndex(0), SegmentIndex(5)}}));
  b().Publish(1);
  b().holder.HoldDecisions();
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource(), b().AsSource()});
  reader().observer.AwaitFirstWrite();
  b().holder.AwaitUndecided(1);
  b().holder.DecideAll();
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  const FillStatus status = fill.status();
  ASSERT_THAT(status.sources, SizeIs(2));
  EXPECT_GT(status.sources[0].bytes, 0);
  EXPECT_GT(status.sources[1].bytes, 0);
  EXPECT_EQ(status.sources[0].bytes + status.sources[1].bytes, status.bytes_held);
  EXPECT_THAT(reader().observer.losses(), IsEmpty());
}

TEST_F(FillTest, ResumedFillMovesOnlyWhatIsMissing) {
  a().Publish(1);
  reader().StartFill(Patient()).SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitAllReceived();
  reader().StopFill();
  SegmentSet held = SegmentSet::AllOf(segments());
  held.Remove({SegmentIndex(3), SegmentIndex(5)});
  TestObserver second;
  reader().shard.store()->BeginFill(BufferGeneration(2), held);
  auto fill = Fill::Start({.store = reader().shard.store(),
                           .resume = held,
                           .root = a().shard.Root(),
                           .limits = Patient()},
                          {reader().transport.get()}, &second);
  fill->SetSources(kSecond, {a().AsSource()});
  second.AwaitComplete();
  EXPECT_EQ(fill->status().sources[0].bytes, 2 * 16'384);
  fill->Stop();
  second.AwaitStopped();
}

TEST_F(FillTest, FillThatHoldsEverythingCompletesWithoutASource) {
  a().Publish(1);
  reader().StartFill(Patient()).SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitAllReceived();
  reader().StopFill();
  TestObserver second;
  const SegmentSet all = SegmentSet::AllOf(segments());
  reader().shard.store()->BeginFill(BufferGeneration(2), all);
  auto fill =
      Fill::Start({.store = reader().shard.store(), .resume = all, .root = a().shard.Root()},
                  {reader().transport.get()}, &second);
  second.AwaitComplete();
  fill->Stop();
  second.AwaitStopped();
}

TEST_F(FillTest, RelaysWhatItHasWhileItStillReceives) {
  a().Publish(1);
  network_.FallSilentAfter(a().address(), 5);
  reader().StartFill(Patient()).SetSources(kFirst, {a().AsSource()});
  Fill& second = b().StartFill(Patient(), {}, a().shard.Root());
  second.SetSources(kFirst, {reader().AsSource()});
  // b's five segments can only have come through the reader, which itself is not complete.
  b().observer.AwaitFirstWrite();
  EXPECT_FALSE(reader().observer.complete());
}

// ---- losses

TEST_F(FillTest, SourceThatDiesIsReportedAndTheRestComesFromTheNext) {
  a().Publish(1);
  b().Publish(1);
  network_.FallSilentAfter(a().address(), 7);
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  ReplaceLostBy(b());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitFirstWrite();
  network_.Kill(a().address());
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  const auto losses = reader().observer.losses();
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_EQ(losses[0].source, a().AsSource().buffer);
  EXPECT_EQ(losses[0].failure, SourceFailure::kClosed);
  EXPECT_EQ(losses[0].assignment, kFirst);
  const FillStatus status = fill.status();
  EXPECT_EQ(status.reroutes, 1);
  EXPECT_EQ(status.rerouted_bytes, status.sources[1].bytes);
  EXPECT_TRUE(status.sources[0].failed);
  EXPECT_THAT(status.sources[0].failure, HasSubstr("reset"));
}

TEST_F(FillTest, SilentSourceIsLostAndNamedWithItsSilence) {
  a().Publish(1);
  network_.FallSilentAfter(a().address(), 2);
  ReplicatorLimits limits = SmallRequests();
  limits.silence = absl::Milliseconds(100);
  Fill& fill = reader().StartFill(limits);
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitLosses(1);
  const auto losses = reader().observer.losses();
  EXPECT_EQ(losses[0].failure, SourceFailure::kStalled);
  EXPECT_THAT(losses[0].detail, HasSubstr("silent for 0."));
  EXPECT_EQ(fill.status().held.count(), 2);  // what was checked stays
}

TEST_F(FillTest, SecondSourceTakesOverWithoutANewAssignment) {
  a().Publish(1);
  b().Publish(1);
  network_.FallSilentAfter(a().address(), 1);
  ReplicatorLimits limits = SmallRequests();
  limits.silence = absl::Milliseconds(300);
  Fill& fill = reader().StartFill(limits, {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource(), b().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(a().shard));
}

// Node 0 publishes, each other pulls from the one before it; the second relay stops. Only its
// reader may blame it: the others hear keep-alives.
TEST(FillChainTest, ExactlyOneSourceIsBlamedWhenAHopInTheMiddleStops) {
  constexpr size_t kChain = 8;
  FakeNetwork network;
  TransportLimits limits;
  limits.keep_alive = absl::Milliseconds(20);
  std::vector<std::unique_ptr<TestNode>> nodes;
  for (size_t i = 0; i <= kChain; ++i) {
    nodes.push_back(
        std::make_unique<TestNode>(network.NewTransport(limits), WorkerId(10 + i), SomeShard()));
  }
  nodes[0]->Publish(1);
  ReplicatorLimits replicator = SmallRequests();
  replicator.silence = absl::Milliseconds(400);
  network.FallSilentAfter(nodes[2]->address(), 6);
  for (size_t i = 1; i <= kChain; ++i) {
    nodes[i]->StartFill(replicator, {}, nodes[0]->shard.Root());
    // Another source is assigned instead of the one that is lost, as the server would.
    nodes[i]->observer.OnLoss([&, i, next = nodes[0]->AsSource()](const TestObserver::Loss&) {
      nodes[i]->fill->SetSources(kSecond, {next});
    });
    nodes[i]->fill->SetSources(kFirst, {nodes[i - 1]->AsSource()});
  }
  for (size_t i = 1; i <= kChain; ++i) {
    nodes[i]->observer.AwaitComplete();
    EXPECT_TRUE(nodes[i]->shard.Equals(nodes[0]->shard)) << i;
  }
  size_t blamed = 0;
  for (size_t i = 1; i <= kChain; ++i) blamed += nodes[i]->observer.losses().size();
  EXPECT_EQ(blamed, 1);
  ASSERT_THAT(nodes[3]->observer.losses(), SizeIs(1));
  EXPECT_EQ(nodes[3]->observer.losses()[0].source, nodes[2]->AsSource().buffer);
  for (auto& node : nodes) node->StopFill();  // before the nodes that they pull from go
}

TEST_F(FillTest, SourceNamedAgainAfterItsLossIsTriedAgain) {
  a().Publish(1);
  network_.FallSilentAfter(a().address(), 1);
  ReplicatorLimits limits = SmallRequests();
  limits.silence = absl::Milliseconds(500);  // longer than a busy machine stalls the fake network
  Fill& fill = reader().StartFill(limits, {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitLosses(1);
  network_.FallSilentAfter(a().address(), 1'000'000);
  fill.SetSources(kSecond, {a().AsSource()});
  reader().observer.AwaitComplete();
}

TEST_F(FillTest, RefusedCapabilityIsReportedAsRefused) {
  a().Publish(1);
  AssignedSource source = a().AsSource();
  source.capability.mac[3] ^= 1;
  reader().StartFill(Patient()).SetSources(kFirst, {source});
  reader().observer.AwaitLosses(1);
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kRefused);
}

TEST_F(FillTest, SourceWithoutATransportInCommonIsReportedWithTheReasons) {
  AssignedSource source = a().AsSource();
  source.endpoints = {{.address = "10.0.0.1:1", .transport = "ibverbs"}};
  reader().StartFill(Patient()).SetSources(kFirst, {source});
  reader().observer.AwaitLosses(1);
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kConnect);
  EXPECT_THAT(reader().observer.losses()[0].detail,
              HasSubstr("ibverbs: this process does not use it"));
}

TEST_F(FillTest, NextEndpointIsTriedWhenTheFirstCannotBeReached) {
  a().Publish(1);
  AssignedSource source = a().AsSource();
  source.endpoints.insert(source.endpoints.begin(), {.address = "nowhere", .transport = "fake"});
  reader().StartFill(Patient()).SetSources(kFirst, {source});
  reader().observer.AwaitAllReceived();
  EXPECT_THAT(reader().observer.losses(), IsEmpty());
}

// ---- wrong bytes

TEST_F(FillTest, FlippedBitIsFetchedAgainFromAnotherSourceCountedAndTheSourceSuspected) {
  a().Publish(1);
  b().Publish(1);
  network_.CorruptNext(a().address(), SegmentIndex(0));
  ReplicatorLimits limits = Patient();
  limits.another_source_wait = kPatience;
  Fill& fill = reader().StartFill(limits, {}, a().shard.Root());
  // b comes in only now: what a sent wrong can come from b alone.
  reader().observer.OnSuspicion([this](BufferAddress) {
    reader().fill->SetSources(kSecond, {a().AsSource(), b().AsSource()});
  });
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(a().shard));
  const FillStatus status = fill.status();
  EXPECT_EQ(status.corrupt_segments, 1);
  EXPECT_EQ(status.sources[0].corrupt_segments, 1);
  EXPECT_GT(status.sources[1].bytes, 0);
  EXPECT_THAT(reader().observer.suspected(), SizeIs(1));
  EXPECT_FALSE(status.sources[0].failed);  // suspected, not lost
}

TEST_F(FillTest, SourceThatKeepsSendingWrongBytesIsLost) {
  a().Publish(1);
  a().shard.store()->ChecksumOf(SegmentIndex(4));
  a().shard.Corrupt(SegmentIndex(4));  // its memory is bad: every copy is wrong
  Fill& fill = reader().StartFill(Patient());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitLosses(1);
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_EQ(fill.status().corrupt_segments, 2);
  EXPECT_FALSE(fill.status().held.Contains(SegmentIndex(4)));
}

TEST_F(FillTest, ListThatDisagreesWithTheRootStartsOverFromAnotherSource) {
  a().Publish(666);  // not what was published under this version
  b().Publish(1);
  Fill& fill = reader().StartFill(Patient(), {}, b().shard.Root());
  ReplaceLostBy(b());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_TRUE(reader().shard.Equals(b().shard));
  ASSERT_THAT(reader().observer.losses(), SizeIs(1));
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_EQ(reader().observer.losses()[0].source, a().AsSource().buffer);
}

TEST_F(FillTest, ListThatIsWrongAgainAndAgainFailsTheFill) {
  a().Publish(666);
  Fill& fill = reader().StartFill(Patient(), {}, Digest{});
  ReplaceLostBy(a());
  fill.SetSources(kFirst, {a().AsSource()});
  EXPECT_EQ(reader().observer.AwaitFailed().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(reader().observer.complete());
  EXPECT_TRUE(reader().shard.store()->held().empty());
}

// ---- re-assignment, stopping

TEST_F(FillTest, SourceThatANewAssignmentOmitsIsLetGoAndNotBlamed) {
  a().Publish(1);
  b().Publish(1);
  network_.FallSilentAfter(a().address(), 3);
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitFirstWrite();
  fill.SetSources(kSecond, {b().AsSource()});
  reader().observer.AwaitComplete();
  EXPECT_THAT(reader().observer.losses(), IsEmpty());
  EXPECT_TRUE(fill.status().sources[0].replaced);
  EXPECT_FALSE(fill.status().sources[1].replaced);
  EXPECT_EQ(fill.status().reroutes, 1);
}

TEST_F(FillTest, SourceThatIsNamedAgainGoesOnUndisturbed) {
  a().Publish(1);
  network_.FallSilentAfter(a().address(), 3);
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitFirstWrite();
  fill.SetSources(kSecond, {a().AsSource()});
  network_.Kill(a().address());
  reader().observer.AwaitLosses(1);
  EXPECT_EQ(reader().observer.losses()[0].assignment, kSecond);
  EXPECT_THAT(a().holder.admitted(), SizeIs(1));  // one transfer all along
}

TEST_F(FillTest, NoSourceAssignedMeansWaiting) {
  a().Publish(1);
  Fill& fill = reader().StartFill(Patient(), {}, a().shard.Root());
  fill.SetSources(kFirst, {});
  fill.SetSources(kSecond, {a().AsSource()});
  reader().observer.AwaitComplete();
}

TEST_F(FillTest, StopInTheMiddleEndsWritingAndKeepsWhatIsChecked) {
  a().Publish(1);
  network_.FallSilentAfter(a().address(), 4);
  Fill& fill = reader().StartFill(Patient());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitFirstWrite();
  fill.Stop();
  reader().observer.AwaitStopped();
  const SegmentSet held = fill.status().held;
  EXPECT_EQ(held, reader().shard.store()->held());
  for (uint64_t i = 0; i < segments(); ++i) {
    if (!held.Contains(SegmentIndex(i))) continue;
    EXPECT_EQ(reader().shard.BytesOf(SegmentIndex(i)), a().shard.BytesOf(SegmentIndex(i)));
  }
  fill.SetSources(kSecond, {a().AsSource()});
  fill.SetRoot(a().shard.Root());
  a().holder.AwaitReleased(1);
  reader().fill.reset();
  EXPECT_FALSE(reader().observer.calls_after_stopped());
}

TEST_F(FillTest, StopBeforeAnySourceIsAnswered) {
  Fill& fill = reader().StartFill(Patient());
  fill.Stop();
  fill.Stop();
  reader().observer.AwaitStopped();
  EXPECT_FALSE(reader().observer.calls_after_stopped());
}

}  // namespace
}  // namespace th::testing
