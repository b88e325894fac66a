// Fills over real sockets, with sources that die, stop, lie and dawdle.
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/stream/raw_peer.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::stream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::kPatience;
using ::th::testing::PatientFillLimits;
using ::th::testing::PatientReplicatorLimits;
using ::th::testing::TestNode;
using ::th::testing::TestObserver;
using ::th::testing::TestShard;

constexpr AssignmentId kFirst(1), kSecond(2);

TestShard::Spec SomeShard() {
  return {.tensor_bytes = {3'000'000, 3, 0, 5'000, 262'144}, .segment_bytes = 65'536};
}

ReplicatorLimits Patient() {
  ReplicatorLimits limits = PatientReplicatorLimits();
  limits.request_bytes = 4 * 65'536;
  return limits;
}

std::unique_ptr<TestNode> NewNode(uint64_t worker,
                                  const TransportLimits& limits = PatientFillLimits()) {
  auto transport = NewTcpTransport({.limits = limits});
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::make_unique<TestNode>(*std::move(transport), WorkerId(worker), SomeShard());
}

// A source that is a raw peer: `node` only lends its name and capability.
AssignedSource At(const RawSource& raw, const TestNode& node) {
  AssignedSource source = node.AsSource();
  source.endpoints = {{.address = raw.address()}};
  return source;
}

class TcpFillTest : public ::testing::Test {
 protected:
  void ExpectComplete() {
    reader_->observer.AwaitComplete();
    EXPECT_TRUE(reader_->shard.Equals(good_->shard));
  }
  // Assigns `next` instead of what is lost, as the server would.
  void ReplaceLostBy(std::vector<AssignedSource> next) {
    reader_->observer.OnLoss([this, next = std::move(next)](const TestObserver::Loss&) {
      reader_->fill->SetSources(kSecond, next);
    });
  }
  void SetUp() override { good_->Publish(1); }

  std::unique_ptr<TestNode> good_ = NewNode(11);
  std::unique_ptr<TestNode> bad_ = NewNode(12);
  std::unique_ptr<TestNode> reader_ = NewNode(10);
};

TEST_F(TcpFillTest, CompletesFromOneSource) {
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  fill.SetSources(kFirst, {good_->AsSource()});
  ExpectComplete();
  EXPECT_EQ(fill.status().sources[0].peer, absl::StrCat("tcp ", good_->address()));
  EXPECT_EQ(fill.status().reread_bytes, 0);
  good_->holder.AwaitReleased(1);
}

TEST_F(TcpFillTest, CompletesFromTwoSourcesAtOnce) {
  bad_->Publish(1);  // good too, here
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  fill.SetSources(kFirst, {good_->AsSource(), bad_->AsSource()});
  ExpectComplete();
  const FillStatus status = fill.status();
  EXPECT_EQ(status.sources[0].bytes + status.sources[1].bytes, status.bytes_held);
}

TEST_F(TcpFillTest, SourceThatIsKilledMidwayIsReplacedAndNothingIsFetchedTwice) {
  bad_->shard.FillWith(1);
  bad_->shard.store()->BeginFill(BufferGeneration(1),
                                 SegmentSet::FromRanges({{SegmentIndex(0), SegmentIndex(9)}}));
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {bad_->AsSource()});
  reader_->observer.AwaitFirstWrite();
  bad_.reset();
  ExpectComplete();
  const FillStatus status = fill.status();
  ASSERT_THAT(status.sources, SizeIs(2));
  EXPECT_TRUE(status.sources[0].failed);
  EXPECT_EQ(status.sources[0].bytes + status.sources[1].bytes, status.bytes_held);
  EXPECT_EQ(status.reroutes, 1);
  EXPECT_EQ(reader_->observer.losses()[0].failure, SourceFailure::kClosed);
}

TEST_F(TcpFillTest, SourceThatAdmitsAndGoesQuietIsLostWithinTheSilence) {
  RawSource quiet([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendSegment(good_->shard, SegmentIndex(0));
    quiet.StayQuiet();
  });
  ReplicatorLimits limits = Patient();
  limits.silence = absl::Milliseconds(400);
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {At(quiet, *bad_)});
  ExpectComplete();
  const auto losses = reader_->observer.losses();
  ASSERT_THAT(losses, SizeIs(1));
  EXPECT_EQ(losses[0].failure, SourceFailure::kStalled);
  EXPECT_THAT(losses[0].detail, HasSubstr("silent for 0.4"));
  EXPECT_EQ(fill.status().sources[0].bytes, 65'536);
}

TEST_F(TcpFillTest, SourceThatStopsWithinASegmentIsLostAndTheSegmentFetchedWhole) {
  RawSource quiet([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    const RawHeader header = EncodeSegmentHeader({SegmentIndex(0), 65'536, 0, BufferGeneration(1)});
    connection.Send(std::string(reinterpret_cast<const char*>(header.data()), header.size()));
    connection.Send(std::string(30'000, 'z'));
    quiet.StayQuiet();
  });
  ReplicatorLimits limits = Patient();
  limits.silence = absl::Milliseconds(300);
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {At(quiet, *bad_)});
  ExpectComplete();
  EXPECT_EQ(fill.status().sources[0].bytes, 0);
}

// A source that flips a bit of the first copy of segment 2 and counts the copies.
class FlippingSource {
 public:
  explicit FlippingSource(const TestShard& shard)
      : raw([this, &shard](RawConnection& connection) {
          ServeShard(connection, shard, [this](SegmentIndex segment) {
            return segment == SegmentIndex(2) && ++copies == 1;
          });
        }) {}
  std::atomic<int> copies{0};  // of segment 2
  RawSource raw;
};

// The server assigns one source; when that is suspected it gives the spare holder instead.
TEST_F(TcpFillTest, BitFlippedOnTheWireIsFetchedAgainFromTheSpareHolderAndTheSourceSuspected) {
  FlippingSource flipping(good_->shard);
  ReplicatorLimits limits = Patient();
  limits.another_source_wait = kPatience;
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  reader_->observer.OnSuspicion(
      [this](BufferAddress) { reader_->fill->SetSources(kSecond, {good_->AsSource()}); });
  fill.SetSources(kFirst, {At(flipping.raw, *bad_)});
  ExpectComplete();
  const FillStatus status = fill.status();
  EXPECT_EQ(status.corrupt_segments, 1);
  EXPECT_EQ(flipping.copies, 1);
  ASSERT_THAT(status.sources, SizeIs(2));
  EXPECT_EQ(status.sources[0].corrupt_segments, 1);
  EXPECT_EQ(status.sources[1].corrupt_segments, 0);
  EXPECT_GE(status.sources[1].bytes, 65'536);
  EXPECT_THAT(reader_->observer.suspected(), ElementsAre(bad_->AsSource().buffer));
  EXPECT_THAT(reader_->observer.losses(), IsEmpty());
}

TEST_F(TcpFillTest, BitFlippedOnTheWireIsFetchedAgainFromTheOtherOfTwoSources) {
  FlippingSource flipping(good_->shard);
  ReplicatorLimits limits = Patient();
  limits.another_source_wait = kPatience;
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  reader_->observer.OnSuspicion(
      [this, both = std::vector<AssignedSource>{At(flipping.raw, *bad_), good_->AsSource()}](
          BufferAddress) { reader_->fill->SetSources(kSecond, both); });
  fill.SetSources(kFirst, {At(flipping.raw, *bad_)});
  ExpectComplete();
  EXPECT_EQ(fill.status().corrupt_segments, 1);
  EXPECT_EQ(flipping.copies, 1);
  EXPECT_EQ(fill.status().reroutes, 0);
}

// The server names the same source again: there is no other.
TEST_F(TcpFillTest, BitFlippedByTheOnlySourceIsFetchedFromItAgain) {
  FlippingSource flipping(good_->shard);
  ReplicatorLimits limits = Patient();
  limits.another_source_wait = kPatience;
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  reader_->observer.OnSuspicion([this, same = At(flipping.raw, *bad_)](BufferAddress) {
    reader_->fill->SetSources(kSecond, {same});
  });
  fill.SetSources(kFirst, {At(flipping.raw, *bad_)});
  ExpectComplete();
  EXPECT_EQ(fill.status().corrupt_segments, 1);
  EXPECT_EQ(fill.status().reread_bytes, 65'536);
  EXPECT_EQ(flipping.copies, 2);
  EXPECT_THAT(fill.status().sources, SizeIs(1));
}

TEST_F(TcpFillTest, SourceThatFlipsAgainAndAgainIsLostAsCorrupt) {
  RawSource flipping([&](RawConnection& connection) {
    ServeShard(connection, good_->shard, [](SegmentIndex segment) { return segment.value == 2; });
  });
  ReplicatorLimits limits = Patient();
  limits.another_source_wait = absl::ZeroDuration();  // nobody answers the suspicion
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {At(flipping, *bad_)});
  ExpectComplete();
  ASSERT_THAT(reader_->observer.losses(), SizeIs(1));
  EXPECT_EQ(reader_->observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_EQ(fill.status().corrupt_segments, 2);
}

TEST_F(TcpFillTest, WhatCameOfASegmentWhoseSourceClosesIsReadAgainAndCounted) {
  RawSource half([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendSegment(good_->shard, SegmentIndex(0));
    connection.SendPartOfSegment(good_->shard, SegmentIndex(1), 1'000);
    shutdown(connection.fd(), SHUT_WR);  // a close with questions unread would drop what was sent
    connection.AwaitEnd();
  });
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {At(half, *bad_)});
  ExpectComplete();
  EXPECT_EQ(fill.status().sources[0].bytes, 65'536);
  EXPECT_EQ(fill.status().reread_bytes, 1'000);
}

// ---- re-assignments

TEST_F(TcpFillTest, SegmentUnderWayIsTakenToItsEndFromASourceThatIsReplaced) {
  std::optional<Finish> finish;
  RawSource half([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendSegment(good_->shard, SegmentIndex(0));
    connection.SendPartOfSegment(good_->shard, SegmentIndex(1), 1'000);
    finish = connection.ReceiveA<Finish>();
    connection.SendRestOfSegment(good_->shard, SegmentIndex(1), 1'000);
    connection.Send(Encode(Close{"as the reader asked"}));
    connection.AwaitEnd();
  });
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  fill.SetSources(kFirst, {At(half, *bad_)});
  reader_->observer.AwaitFirstWrite();
  fill.SetSources(kSecond, {good_->AsSource()});
  ExpectComplete();
  EXPECT_TRUE(finish.has_value());
  EXPECT_EQ(fill.status().sources[0].bytes, 2 * 65'536);
  EXPECT_TRUE(fill.status().sources[0].replaced);
  EXPECT_EQ(fill.status().reread_bytes, 0);
  EXPECT_THAT(reader_->observer.losses(), IsEmpty());
}

TEST_F(TcpFillTest, ReplacedSourceThatGoesQuietInASegmentIsWaitedForNoLongerThanTheGracefulSwitch) {
  RawSource half([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendPartOfSegment(good_->shard, SegmentIndex(0), 1'000);
    half.StayQuiet();
  });
  ReplicatorLimits limits = Patient();
  limits.graceful_switch = absl::Milliseconds(100);
  Fill& fill = reader_->StartFill(limits, {}, good_->shard.Root());
  fill.SetSources(kFirst, {At(half, *bad_)});
  reader_->observer.AwaitFirstWrite();
  fill.SetSources(kSecond, {good_->AsSource()});
  ExpectComplete();
  EXPECT_LE(fill.status().reread_bytes, 1'000);
  EXPECT_THAT(reader_->observer.losses(), IsEmpty());
}

// Several connections, and a source slow enough to be in the middle of segments on each of them.
class TcpGracefulSwitchTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRate = 20'000'000;
  static TestShard::Spec Large() {
    return {.tensor_bytes = {10'000'000, 5'000}, .segment_bytes = 524'288};
  }
  static std::unique_ptr<TestNode> NewLargeNode(uint64_t worker, uint64_t uplink) {
    TransportLimits limits = PatientFillLimits();
    limits.uplink_bytes_per_second = uplink;
    auto transport = NewTcpTransport({.limits = limits});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return std::make_unique<TestNode>(*std::move(transport), WorkerId(worker), Large());
  }
  TcpGracefulSwitchTest() {
    leaving_->Publish(1);
    staying_->Publish(1);
  }
  Fill& FillFromTheOneThatLeaves() {
    ReplicatorLimits limits = Patient();
    limits.graceful_switch = kPatience;
    Fill& fill = reader_->StartFill(limits, {}, staying_->shard.Root());
    fill.SetSources(kFirst, {leaving_->AsSource()});
    reader_->observer.AwaitFirstWrite();
    return fill;
  }
  void ExpectNothingReadTwice(const Fill& fill) {
    reader_->observer.AwaitComplete();
    EXPECT_TRUE(reader_->shard.Equals(staying_->shard));
    const FillStatus status = fill.status();
    EXPECT_EQ(status.reread_bytes, 0);
    EXPECT_GT(status.sources[0].bytes, 0);
    EXPECT_LT(status.sources[0].bytes, status.bytes_held);
    leaving_->holder.AwaitReleased(1);
  }

  std::unique_ptr<TestNode> leaving_ = NewLargeNode(11, kRate);
  std::unique_ptr<TestNode> staying_ = NewLargeNode(12, 0);
  std::unique_ptr<TestNode> reader_ = NewLargeNode(10, 0);
};

TEST_F(TcpGracefulSwitchTest, ReaderThatIsGivenAnotherSourceReadsNoByteTwice) {
  Fill& fill = FillFromTheOneThatLeaves();
  fill.SetSources(kSecond, {staying_->AsSource()});
  ExpectNothingReadTwice(fill);
  EXPECT_THAT(reader_->observer.losses(), IsEmpty());
}

TEST_F(TcpGracefulSwitchTest, ReaderOfAHolderThatLeavesReadsNoByteTwice) {
  reader_->observer.OnLoss([this](const TestObserver::Loss&) {
    reader_->fill->SetSources(kSecond, {staying_->AsSource()});
  });
  Fill& fill = FillFromTheOneThatLeaves();
  leaving_->transport->FinishTransfer(leaving_->holder.admitted()[0]);
  ExpectNothingReadTwice(fill);
}

TEST_F(TcpFillTest, ExtraBytesAreThoseOfItsConnectionsAndFarLessThanTheShard) {
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  fill.SetSources(kFirst, {good_->AsSource()});
  ExpectComplete();
  EXPECT_GT(fill.status().peak_extra_bytes, 0);
  EXPECT_LT(fill.status().peak_extra_bytes, 32 << 10);
}

TEST_F(TcpFillTest, ExtraBytesGrowWithWhatASourceMakesTheReaderHold) {
  RawSource talkative([&](RawConnection& connection) {
    connection.Admit();
    connection.Send(Encode(Close{std::string(kMaxTextBytes, 'x')}));
    connection.AwaitEnd();
  });
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  ReplaceLostBy({});
  fill.SetSources(kFirst, {At(talkative, *bad_)});
  reader_->observer.AwaitLosses(1);
  EXPECT_GT(fill.status().peak_extra_bytes, kMaxTextBytes);
}

TEST_F(TcpFillTest, RootMismatchStartsOverFromAnotherSource) {
  bad_->Publish(666);
  Fill& fill = reader_->StartFill(Patient(), {}, good_->shard.Root());
  ReplaceLostBy({good_->AsSource()});
  fill.SetSources(kFirst, {bad_->AsSource()});
  ExpectComplete();
  EXPECT_EQ(reader_->observer.losses()[0].failure, SourceFailure::kCorrupt);
}

TEST_F(TcpFillTest, RefusedCapabilityIsReported) {
  AssignedSource source = good_->AsSource();
  source.capability.claims.assignment = AssignmentId(999);
  reader_->StartFill(Patient()).SetSources(kFirst, {source});
  reader_->observer.AwaitLosses(1);
  EXPECT_EQ(reader_->observer.losses()[0].failure, SourceFailure::kRefused);
  EXPECT_THAT(good_->holder.admitted(), IsEmpty());
}

TEST_F(TcpFillTest, StopWhileSegmentsLandWritesNothingAfterwards) {
  Fill& fill = reader_->StartFill(Patient());
  fill.SetSources(kFirst, {good_->AsSource()});
  reader_->observer.AwaitFirstWrite();
  reader_->StopFill();
  // The owner's memory again: what the fill still had under way must not land in it.
  reader_->shard.FillWith(5);
  good_->holder.AwaitReleased(1);
  good_->shard.FillWith(5);
  EXPECT_TRUE(reader_->shard.Equals(good_->shard));
  EXPECT_FALSE(reader_->observer.calls_after_stopped());
}

TEST_F(TcpFillTest, ResumedFillMovesOnlyWhatIsMissing) {
  reader_->StartFill(Patient()).SetSources(kFirst, {good_->AsSource()});
  reader_->observer.AwaitAllReceived();
  reader_->StopFill();
  SegmentSet held = SegmentSet::AllOf(good_->shard.segment_count());
  held.Remove({SegmentIndex(10), SegmentIndex(12)});
  TestObserver second;
  reader_->shard.store()->BeginFill(BufferGeneration(2), held);
  auto fill = Fill::Start({.store = reader_->shard.store(),
                           .resume = held,
                           .root = good_->shard.Root(),
                           .limits = Patient()},
                          {reader_->transport.get()}, &second);
  fill->SetSources(kSecond, {good_->AsSource()});
  second.AwaitComplete();
  EXPECT_EQ(fill->status().sources[0].bytes, 2 * 65'536);
  fill->Stop();
  second.AwaitStopped();
}

// A cap far below what the silence seems to allow: 330 ms a segment, shared by two readers.
TEST_F(TcpFillTest, SourceThrottledByItsOwnUplinkIsNotBlamed) {
  TransportLimits throttled = PatientFillLimits();
  throttled.uplink_bytes_per_second = 400'000;
  const TestShard::Spec spec{.tensor_bytes = {400'000}, .segment_bytes = 131'072};
  const auto node = [&](uint64_t worker, const TransportLimits& limits) {
    auto transport = NewTcpTransport({.limits = limits});
    return std::make_unique<TestNode>(*std::move(transport), WorkerId(worker), spec);
  };
  auto source = node(21, throttled), one = node(22, PatientFillLimits()),
       two = node(23, PatientFillLimits());
  source->Publish(1);
  ReplicatorLimits limits;
  limits.silence = absl::Milliseconds(400);
  for (TestNode* each : {one.get(), two.get()}) {
    each->StartFill(limits, {}, source->shard.Root()).SetSources(kFirst, {source->AsSource()});
  }
  for (TestNode* each : {one.get(), two.get()}) {
    each->observer.AwaitComplete();
    EXPECT_THAT(each->observer.losses(), IsEmpty());
    EXPECT_TRUE(each->shard.Equals(source->shard));
    each->StopFill();
  }
}

// Node 0 publishes, each other pulls from the one before it, and hop 2 is a stopped process: it
// admits and then says nothing. Only its reader may blame it: the others hear keep-alives.
TEST(TcpFillChainTest, ExactlyOneSourceIsBlamedWhenAHopInTheMiddleStops) {
  constexpr size_t kChain = 8;
  constexpr size_t kStopped = 2;
  std::vector<std::unique_ptr<TestNode>> nodes;
  for (size_t i = 0; i <= kChain; ++i) nodes.push_back(NewNode(10 + i));
  nodes[0]->Publish(1);
  RawSource stopped([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendSegment(nodes[0]->shard, SegmentIndex(0));
    stopped.StayQuiet();
  });
  ReplicatorLimits limits;
  limits.request_bytes = 4 * 65'536;
  limits.silence = absl::Milliseconds(400);
  for (size_t i = 1; i <= kChain; ++i) {
    if (i == kStopped) continue;
    nodes[i]->StartFill(limits, {}, nodes[0]->shard.Root());
    nodes[i]->observer.OnLoss([&, i, next = nodes[0]->AsSource()](const TestObserver::Loss&) {
      nodes[i]->fill->SetSources(kSecond, {next});
    });
    nodes[i]->fill->SetSources(
        kFirst, {i == kStopped + 1 ? At(stopped, *nodes[kStopped]) : nodes[i - 1]->AsSource()});
  }
  size_t blamed = 0;
  for (size_t i = 1; i <= kChain; ++i) {
    if (i == kStopped) continue;
    nodes[i]->observer.AwaitComplete();
    EXPECT_TRUE(nodes[i]->shard.Equals(nodes[0]->shard)) << i;
    blamed += nodes[i]->observer.losses().size();
  }
  EXPECT_EQ(blamed, 1);
  ASSERT_THAT(nodes[kStopped + 1]->observer.losses(), SizeIs(1));
  EXPECT_EQ(nodes[kStopped + 1]->observer.losses()[0].failure, SourceFailure::kStalled);
  for (auto& node : nodes) node->StopFill();
}

}  // namespace
}  // namespace th::stream
