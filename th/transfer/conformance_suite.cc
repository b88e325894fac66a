#include "th/transfer/conformance_suite.h"

#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"

namespace th::testing {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

namespace {

constexpr uint64_t kSeedAfterClose = 9;

// The shard belongs to its owner again from OnClosed on, who writes to it at once: a byte that the
// transport still lands shows.
class OverwritingSink : public TestSink {
 public:
  explicit OverwritingSink(TestShard* into) : TestSink(into), shard_(into) {}
  void OnClosed(SourceFailure failure, std::string detail) override {
    shard_->FillWith(kSeedAfterClose);
    TestSink::OnClosed(failure, std::move(detail));
  }

 private:
  TestShard* const shard_;
};

// Holds the data thread in the call of that number, counted from 1, until it is let go on. Signs of
// life are not counted: how many there are is a matter of time.
class SteppingSink : public OverwritingSink {
 public:
  // The transfer is complete once so many segments and sums have come.
  SteppingSink(TestShard* into, size_t held_call, size_t segments, size_t checksums)
      : OverwritingSink(into), held_call_(held_call), segments_(segments), checksums_(checksums) {}

  // False: the transfer was complete before that call.
  bool AwaitHeld() {
    absl::MutexLock lock(&mu_);
    const auto reached = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return calls_ >= held_call_ || (segments_ == 0 && checksums_ == 0);
    };
    AwaitOrFail(mu_, absl::Condition(&reached), "the call, or the end of the transfer");
    return calls_ >= held_call_;
  }
  void GoOn() { go_on_.Notify(); }

  void OnAdmitted(BufferGeneration generation, bool lists_checksums) override {
    OverwritingSink::OnAdmitted(generation, lists_checksums);
    Step(0, 0);
  }
  void OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) override {
    OverwritingSink::OnChecksums(first, checksums);
    Step(0, checksums.size());
  }
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override {
    const bool wanted = OverwritingSink::OnSegmentBegins(segment, iov);
    Step(0, 0);
    return wanted;
  }
  bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                              std::vector<iovec>* iov) override {
    const bool wanted = OverwritingSink::OnSegmentBeginsInPlace(segment, can_write, iov);
    Step(0, 0);
    return wanted;
  }
  void OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) override {
    OverwritingSink::OnSegment(segment, sent, computed);
    Step(1, 0);
  }

 private:
  void Step(size_t segments, size_t checksums) {
    {
      absl::MutexLock lock(&mu_);
      segments_ -= segments;
      checksums_ -= checksums;
      if (++calls_ != held_call_) return;
    }
    go_on_.WaitForNotification();
  }

  const size_t held_call_;
  absl::Notification go_on_;
  absl::Mutex mu_;
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  size_t segments_ ABSL_GUARDED_BY(mu_);  // that have not come
  size_t checksums_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<AttachedMemory> Attached(Transport& transport, const TestShard& shard) {
  auto attached = transport.Attach(shard.store()->regions());
  EXPECT_OK(attached.status());
  return *std::move(attached);
}

}  // namespace

TransportConformanceTest::TransportConformanceTest() {
  // Generous, for machines under load; tests of time-outs shorten what they test.
  limits_.connect_timeout = limits_.admission_timeout = limits_.admission_silence = kPatience;
  limits_.keep_alive = absl::Milliseconds(5);
  source_ = world_->NewTransport(limits_);
  reader_ = world_->NewTransport(limits_);
  AttachMemory();
  source_->AddHolder(kHolderWorker, &holder_);
  published_.FillWith(1);
  published_.store()->Publish(BufferGeneration(1));
}

TransportConformanceTest::~TransportConformanceTest() {
  // Both ends while sinks and holders are still there.
  reader_.reset();
  source_.reset();
}

void TransportConformanceTest::AttachMemory() {
  attached_.clear();
  attached_.push_back(Attached(*source_, published_));
  attached_.push_back(Attached(*reader_, received_));
}

std::unique_ptr<Pull> TransportConformanceTest::Open(PullSink* sink) {
  return reader_->Open(holder_.Target(SourceEndpoint(), received_.store()->shared_layout()), sink);
}

void TransportConformanceTest::SetMaxSegmentsQueued(uint32_t segments) {
  limits_.max_segments_queued = segments;
  reader_ = world_->NewTransport(limits_);
  source_ = world_->NewTransport(limits_);
  AttachMemory();
  source_->AddHolder(kHolderWorker, &holder_);
}

void TransportConformanceTest::ExpectArrives(const TestShard::Spec& spec) {
  TestShard published(spec), received(spec);
  const auto source_memory = Attached(*source_, published);
  const auto reader_memory = Attached(*reader_, received);
  TestHolder holder(published.store());
  TestSink sink(&received);
  holder.set_worker(WorkerId(77));
  source_->AddHolder(WorkerId(77), &holder);
  published.FillWith(5);
  published.store()->Publish(BufferGeneration(1));
  auto pull =
      reader_->Open(holder.Target(SourceEndpoint(), received.store()->shared_layout()), &sink);
  pull->Ask(published.all());
  sink.AwaitSegments(published.segment_count());
  EXPECT_TRUE(received.Equals(published));
  EXPECT_TRUE(received.GapsAreZero()) << "bytes landed beside the tensors";
  EXPECT_THAT(sink.segments(), Each(Pair(::testing::_, true)));
  pull->Close();
  sink.AwaitClosed();
  source_->RemoveHolder(WorkerId(77));
}

TEST_P(TransportConformanceTest, WholeShardArrivesWithThePublishersSums) {
  auto pull = Open(&sink_);
  EXPECT_EQ(sink_.AwaitAdmitted(), BufferGeneration(1));
  pull->Ask(published_.all());
  sink_.AwaitSegments(published_.segment_count());
  EXPECT_TRUE(received_.Equals(published_));
  EXPECT_THAT(sink_.segments(), Each(Pair(::testing::_, true)));
}

TEST_P(TransportConformanceTest, RequestBeforeTheAdmissionIsServed) {
  auto pull = Open(&sink_);
  pull->Ask({SegmentIndex(2), SegmentIndex(4)});
  sink_.AwaitSegments(2);
  EXPECT_THAT(sink_.segments(),
              ElementsAre(Pair(SegmentIndex(2), true), Pair(SegmentIndex(3), true)));
}

TEST_P(TransportConformanceTest, SegmentsOfARangeArriveInItsOrder) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(3), SegmentIndex(9)});
  sink_.AwaitSegments(6);
  const auto segments = sink_.segments();
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(segments[i].first, SegmentIndex(3 + i));
}

TEST_P(TransportConformanceTest, EmptyRangeIsNoRequest) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(3), SegmentIndex(3)});
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  sink_.AwaitSegments(1);
  EXPECT_THAT(sink_.segments(), ElementsAre(Pair(SegmentIndex(0), true)));
}

TEST_P(TransportConformanceTest, SegmentThatTheSinkDoesNotWantIsThrownAway) {
  sink_.Discard(SegmentIndex(1));
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(3)});
  sink_.AwaitSegments(2);
  EXPECT_THAT(sink_.segments(),
              ElementsAre(Pair(SegmentIndex(0), true), Pair(SegmentIndex(2), true)));
  EXPECT_EQ(received_.BytesOf(SegmentIndex(1)), std::string(65'536, '\0'));
  EXPECT_EQ(received_.BytesOf(SegmentIndex(2)), published_.BytesOf(SegmentIndex(2)));
}

TEST_P(TransportConformanceTest, SumsThatTheSourceMadeTravelUnchanged) {
  published_.ChecksumAll();             // the publisher's checksums
  published_.Corrupt(SegmentIndex(1));  // and then its memory goes bad
  auto pull = Open(&sink_);
  pull->Ask({SegmentIndex(0), SegmentIndex(3)});
  sink_.AwaitSegments(3);
  EXPECT_THAT(sink_.segments(),
              ElementsAre(Pair(SegmentIndex(0), true), Pair(SegmentIndex(1), false),
                          Pair(SegmentIndex(2), true)));
}

TEST_P(TransportConformanceTest, ShardWithoutChecksumsArrives) {
  ExpectArrives({.checksum = ChecksumAlgorithm::kNone});
}

// ---- cut-through

TEST_P(TransportConformanceTest, SegmentIsServedAsSoonAsItHasArrived) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(2)});
  published_.store()->MarkHeld(SegmentIndex(0), published_.ChecksumOf(SegmentIndex(0)));
  sink_.AwaitSegments(1);
  EXPECT_THAT(sink_.segments(), ElementsAre(Pair(SegmentIndex(0), true)));
  published_.store()->MarkHeld(SegmentIndex(1), published_.ChecksumOf(SegmentIndex(1)));
  sink_.AwaitSegments(2);
}

// Segments reach a relay in another order than they are asked of it, for one after it was itself
// given another source. Its readers need not wait for that.
TEST_P(TransportConformanceTest, WhatHasArrivedIsServedBeforeWhatHasNot) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  const auto arrives = [&](uint64_t i) {
    published_.store()->MarkHeld(SegmentIndex(i), published_.ChecksumOf(SegmentIndex(i)));
  };
  arrives(2);
  auto pull = Open(&sink_);
  pull->Ask({SegmentIndex(0), SegmentIndex(3)});
  sink_.AwaitSegments(1);
  arrives(4);
  pull->Ask({SegmentIndex(3), SegmentIndex(5)});
  sink_.AwaitSegments(2);
  for (const uint64_t last : {1, 0, 3}) {
    const size_t before = sink_.segments().size();
    arrives(last);
    sink_.AwaitSegments(before + 1);
  }
  std::vector<uint64_t> order;
  for (const auto& [segment, intact] : sink_.segments()) {
    EXPECT_TRUE(intact) << segment.value;
    order.push_back(segment.value);
  }
  EXPECT_THAT(order, ElementsAre(2, 4, 1, 0, 3));
}

TEST_P(TransportConformanceTest, SourceThatWaitsForItsUpstreamSaysThatItIsAlive) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  sink_.AwaitAlive(3);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_P(TransportConformanceTest, StoreThatClosesEndsAWaitingTransfer) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  sink_.AwaitAlive(1);
  published_.store()->Close(BufferGeneration(2));
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kClosed, HasSubstr("no longer")));
  holder_.AwaitReleased(1);
}

TEST_P(TransportConformanceTest, GenerationThatChangedIsNoticedBeforeBytesCount) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  published_.store()->Publish(BufferGeneration(2));
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kGenerationChanged);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

// ---- admission

TEST_P(TransportConformanceTest, WrongCapabilityIsRefusedWithTheHoldersWords) {
  PullTarget target = holder_.Target(SourceEndpoint(), received_.store()->shared_layout());
  target.capability.mac[0] ^= 1;
  auto pull = reader_->Open(target, &sink_);
  pull->Ask(published_.all());
  const auto [failure, detail] = sink_.AwaitClosed();
  EXPECT_EQ(failure, SourceFailure::kRefused);
  EXPECT_THAT(detail, HasSubstr("capability"));
  EXPECT_THAT(sink_.segments(), IsEmpty());
  EXPECT_EQ(source_->counters().transfers_refused, 1);
  EXPECT_EQ(source_->counters().bytes_sent, 0);
}

TEST_P(TransportConformanceTest, UnknownHolderIsRefused) {
  source_->RemoveHolder(kHolderWorker);
  auto pull = Open(&sink_);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kRefused);
}

TEST_P(TransportConformanceTest, OtherLayoutIsRefusedAndTheTransferReleased) {
  TestShard other(TestShard::Spec{.tensor_bytes = {4096}});
  auto pull =
      reader_->Open(holder_.Target(SourceEndpoint(), other.store()->shared_layout()), &sink_);
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kRefused, HasSubstr("layouts differ")));
  holder_.AwaitReleased(1);
  EXPECT_EQ(holder_.released(), holder_.admitted());
}

TEST_P(TransportConformanceTest, NobodyListeningIsAFailureToConnect) {
  auto pull = reader_->Open(
      holder_.Target(world_->DeadEndpoint(), received_.store()->shared_layout()), &sink_);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kConnect);
}

TEST_P(TransportConformanceTest, DecisionMayComeLaterFromAnotherThread) {
  holder_.HoldDecisions();
  auto pull = Open(&sink_);
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  holder_.AwaitUndecided(1);
  std::thread decider([&] { holder_.DecideAll(); });
  sink_.AwaitSegments(1);
  decider.join();
}

TEST_P(TransportConformanceTest, SourceThatNeverDecidesStallsAndALateAdmissionIsReleased) {
  TransportLimits limits = limits_;
  // Long enough for an emulated adapter to connect in.
  limits.admission_timeout = absl::Milliseconds(500);
  reader_ = world_->NewTransport(limits);
  holder_.HoldDecisions();
  auto pull = Open(&sink_);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kStalled);
  holder_.AwaitUndecided(1);
  holder_.DecideAll();
  holder_.AwaitReleased(1);
  EXPECT_EQ(holder_.released(), holder_.admitted());
}

// ---- the end

TEST_P(TransportConformanceTest, ReaderThatClosesHearsItAndItsSourceIsReleased) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Close();
  pull->Close();
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kClosed, "closed by the reader"));
  holder_.AwaitReleased(1);
  EXPECT_THAT(holder_.released(), SizeIs(1));
}

TEST_P(TransportConformanceTest, DestroyedPullIsClosed) {
  Open(&sink_).reset();
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
}

TEST_P(TransportConformanceTest, HolderCutsATransfer) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask(published_.all());
  source_->CutTransfer(holder_.admitted()[0]);
  holder_.AwaitReleased(1);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  EXPECT_EQ(holder_.released(), holder_.admitted());
}

TEST_P(TransportConformanceTest, FinishedTransferEndsAfterWholeSegmentsAndIsReleased) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask(published_.all());
  published_.store()->MarkHeld(SegmentIndex(0), published_.ChecksumOf(SegmentIndex(0)));
  sink_.AwaitSegments(1);
  source_->FinishTransfer(holder_.admitted()[0]);
  holder_.AwaitReleased(1);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  EXPECT_EQ(holder_.released(), holder_.admitted());
  EXPECT_THAT(sink_.segments(), ElementsAre(Pair(SegmentIndex(0), true)));
}

TEST_P(TransportConformanceTest, ReaderThatFinishesHearsTheEndAndItsSourceIsReleased) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask(published_.all());
  pull->Finish();
  pull->Finish();
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  holder_.AwaitReleased(1);
  EXPECT_FALSE(sink_.calls_after_closed());
}

TEST_P(TransportConformanceTest, RemovedHolderHearsOfItsLastReaderAndNothingAfter) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  source_->RemoveHolder(kHolderWorker);
  EXPECT_THAT(holder_.released(), SizeIs(1));
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  TestSink second(&received_);
  auto late = Open(&second);
  EXPECT_EQ(second.AwaitClosed().first, SourceFailure::kRefused);
  EXPECT_THAT(holder_.admitted(), SizeIs(1));
}

TEST_P(TransportConformanceTest, SourceTransportThatGoesClosesItsReaders) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  source_.reset();
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  EXPECT_THAT(holder_.released(), SizeIs(1));
  source_ = world_->NewTransport(limits_);
}

TEST_P(TransportConformanceTest, ReaderTransportThatGoesClosesItsPulls) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  reader_.reset();
  EXPECT_TRUE(sink_.closed());
  holder_.AwaitReleased(1);
  pull.reset();
}

TEST_P(TransportConformanceTest, NothingIsSaidAfterTheClose) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask(published_.all());
  pull->Close();
  sink_.AwaitClosed();
  reader_.reset();
  EXPECT_FALSE(sink_.calls_after_closed());
}

// Closed while segments are on their way, whatever the threads are at.
TEST_P(TransportConformanceTest, NoByteLandsAfterTheClose) {
  TestShard overwritten{TestShard::Spec{}};
  overwritten.FillWith(kSeedAfterClose);
  for (size_t begun = 1; begun < published_.segment_count(); begun += 3) {
    OverwritingSink sink(&received_);
    auto pull = Open(&sink);
    pull->Ask(published_.all());
    sink.AwaitBegun(begun);
    pull->Close();
    sink.AwaitClosed();
    holder_.AwaitReleased(holder_.admitted().size());
    EXPECT_TRUE(received_.Equals(overwritten)) << "closed once segment " << begun << " had begun";
  }
  reader_.reset();
  EXPECT_TRUE(received_.Equals(overwritten));
}

void TransportConformanceTest::ExpectEndsWellAtEachCall(size_t first_call,
                                                        const std::function<void(Pull&)>& end) {
  constexpr uint64_t kAsked = 4;
  published_.ChecksumAll();
  TestShard overwritten{TestShard::Spec{}};
  overwritten.FillWith(kSeedAfterClose);
  bool complete = false;
  for (size_t call = first_call; !complete; ++call) {
    ASSERT_LE(call, 40) << "more calls than a transfer of " << kAsked << " segments has";
    SCOPED_TRACE(call);
    SteppingSink sink(&received_, call, kAsked, published_.segment_count());
    auto pull = Open(&sink);
    pull->Ask({SegmentIndex(0), SegmentIndex(kAsked)});
    if (call > 0) {
      sink.AwaitAdmitted();
      pull->AskChecksums();
      complete = !sink.AwaitHeld();
    }
    end(*pull);
    sink.GoOn();
    EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kClosed);
    if (call > 0) holder_.AwaitReleased(holder_.admitted().size());
    EXPECT_TRUE(received_.Equals(overwritten)) << "bytes landed after the close";
    EXPECT_FALSE(sink.calls_after_closed());
  }
  ExpectArrives({});  // the transports are as they were
  reader_.reset();
  source_.reset();
  EXPECT_THAT(holder_.released(), UnorderedElementsAreArray(holder_.admitted()));
}

TEST_P(TransportConformanceTest, ReaderMayCloseInEachCallOfATransfer) {
  ExpectEndsWellAtEachCall(/*first_call=*/0, [](Pull& pull) { pull.Close(); });
}

TEST_P(TransportConformanceTest, HolderMayCutInEachCallOfATransfer) {
  ExpectEndsWellAtEachCall(/*first_call=*/1,
                           [this](Pull&) { source_->CutTransfer(holder_.admitted().back()); });
}

// ---- limits

TEST_P(TransportConformanceTest, AskingBeyondTheShardEndsThePull) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(published_.segment_count() + 1)});
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_P(TransportConformanceTest, MoreRequestsThanTheLimitEndThePull) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});  // so that none is answered
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  for (uint32_t i = 0; i < limits_.max_requests_queued + 2; ++i) {
    pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  }
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
}

TEST_P(TransportConformanceTest, MoreSegmentsThanTheLimitEndThePull) {
  SetMaxSegmentsQueued(4);
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});  // so that none is answered
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(3)});
  sink_.AwaitAlive(1);
  pull->Ask({SegmentIndex(3), SegmentIndex(5)});
  EXPECT_THAT(sink_.AwaitClosed(),
              Pair(SourceFailure::kClosed, HasSubstr("max_segments_queued is 4")));
}

TEST_P(TransportConformanceTest, AnsweredSegmentsMakeRoomForOthers) {
  SetMaxSegmentsQueued(4);
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  for (uint64_t begin = 0; begin < 12; begin += 4) {
    pull->Ask({SegmentIndex(begin), SegmentIndex(begin + 4)});
    sink_.AwaitSegments(begin + 4);
  }
  EXPECT_FALSE(sink_.closed());
}

// ---- the list of sums

TEST_P(TransportConformanceTest, TheListOfSumsComesWhenItIsAskedFor) {
  // The sums of host memory are taken when they are asked for.
  if (published_.device_side() != nullptr) published_.ChecksumAll();
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  EXPECT_TRUE(sink_.lists_checksums());
  pull->AskChecksums();
  EXPECT_EQ(RootOfChecksums(sink_.AwaitChecksums(published_.segment_count())), published_.Root());
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_P(TransportConformanceTest, TheListAndSegmentsComeBesideEachOther) {
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->AskChecksums();
  pull->Ask(published_.all());
  sink_.AwaitChecksums(published_.segment_count());
  sink_.AwaitSegments(published_.segment_count());
  EXPECT_TRUE(received_.Equals(published_));
}

TEST_P(TransportConformanceTest, SumsThatAreNotKnownYetFollowAndHoldUpNoSegment) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->AskChecksums();
  pull->Ask({SegmentIndex(1), SegmentIndex(2)});
  sink_.AwaitAlive(1);
  const SegmentChecksum second = published_.ChecksumOf(SegmentIndex(1));
  published_.store()->MarkHeld(SegmentIndex(1), second);
  sink_.AwaitSegments(1);
  published_.store()->SetListed(SegmentIndex(0), std::vector<SegmentChecksum>{7});
  EXPECT_THAT(sink_.AwaitChecksums(2), ElementsAre(7, second));
}

TEST_P(TransportConformanceTest, AClosedBufferEndsAPullThatAskedForSumsAlone) {
  published_.store()->Close(BufferGeneration(2));
  published_.store()->BeginFill(BufferGeneration(1), {});
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->AskChecksums();
  sink_.AwaitAlive(1);
  published_.store()->Close(BufferGeneration(2));
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
}

// ---- memory

TEST_P(TransportConformanceTest, ThousandsOfSmallTensorsOfOddSizesArrive) {
  TestShard::Spec spec{.tensor_bytes = {}};
  // Some segments have a thousand pieces, and some more than any list of places may name.
  for (uint64_t i = 0; i < 3'000; ++i) spec.tensor_bytes.push_back(i * 7 % 89);
  for (uint64_t i = 0; i < 20'000; ++i) spec.tensor_bytes.push_back(1 + i % 7);
  ExpectArrives(spec);
}

// As a model of many small tensors in the arena of torch's allocator: nothing is aligned, and
// beside each tensor lies what is not the transfer's.
TEST_P(TransportConformanceTest, SixtyThousandTinyTensorsWithOddGapsArrive) {
  TestShard::Spec spec{.tensor_bytes = {}, .segment_bytes = 262'144, .odd_gaps = true};
  for (uint64_t i = 0; i < 61'000; ++i) spec.tensor_bytes.push_back(1 + i * 7 % 149);
  ExpectArrives(spec);
}

TEST_P(TransportConformanceTest, TransfersLeaveNoDescriptorBehind) {
  const auto read_one = [&] {
    TestSink sink(&received_);
    auto pull = Open(&sink);
    pull->Ask({SegmentIndex(0), SegmentIndex(1)});
    sink.AwaitSegments(1);
    pull->Close();
    sink.AwaitClosed();
  };
  read_one();
  holder_.AwaitReleased(1);
  const size_t before = OpenDescriptors();
  const size_t transfers = world_->many_transfers();
  for (size_t i = 0; i < transfers; ++i) read_one();
  holder_.AwaitReleased(1 + transfers);
  EXPECT_LE(OpenDescriptors(), before);
}

// ---- several

TEST_P(TransportConformanceTest, SeveralReadersOfOneBufferAllGetIt) {
  constexpr int kReaders = 5;
  std::vector<std::unique_ptr<TestShard>> shards;
  std::vector<std::unique_ptr<TestSink>> sinks;
  std::vector<std::unique_ptr<Pull>> pulls;
  for (int i = 0; i < kReaders; ++i) {
    shards.push_back(std::make_unique<TestShard>(TestShard::Spec{}));
    sinks.push_back(std::make_unique<TestSink>(shards.back().get()));
    pulls.push_back(Open(sinks.back().get()));
    pulls.back()->Ask(published_.all());
  }
  for (int i = 0; i < kReaders; ++i) {
    sinks[i]->AwaitSegments(published_.segment_count());
    EXPECT_TRUE(shards[i]->Equals(published_));
    pulls[i]->Close();
  }
  for (int i = 0; i < kReaders; ++i) sinks[i]->AwaitClosed();
  holder_.AwaitReleased(kReaders);
}

TEST_P(TransportConformanceTest, CountersCountPayload) {
  auto pull = Open(&sink_);
  pull->Ask(published_.all());
  sink_.AwaitSegments(published_.segment_count());
  pull->Close();
  holder_.AwaitReleased(1);
  EXPECT_EQ(source_->counters().bytes_sent, published_.layout().bytes());
  EXPECT_EQ(reader_->counters().bytes_received, published_.layout().bytes());
  EXPECT_EQ(source_->counters().transfers_served, 1);
  EXPECT_THAT(holder_.bytes_reported(), Ge(1));
}

// ---- a reader that is held

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HeldReaderConformanceTest);

// As where a reader's process was stopped over the holder's unpublish, and wakes. Without checksums
// nothing but the transport stands between the reader and what the holder writes next.
TEST_P(HeldReaderConformanceTest, NothingThatTheHolderWritesOnceItsReaderIsReleasedIsAccepted) {
  const TestShard::Spec spec{.checksum = ChecksumAlgorithm::kNone};
  TestShard published(spec), before(spec), received(spec);
  TestHolder holder(published.store());
  GatedSink sink(&received);
  holder.set_worker(WorkerId(77));
  source_->AddHolder(WorkerId(77), &holder);
  published.FillWith(5);
  before.FillWith(5);
  published.store()->Publish(BufferGeneration(1));
  auto pull =
      reader_->Open(holder.Target(SourceEndpoint(), received.store()->shared_layout()), &sink);
  pull->Ask(published.all());
  sink.AwaitEntered();
  published.store()->Close(BufferGeneration(2));
  source_->CutTransfer(holder.admitted()[0]);
  holder.AwaitReleased(1);
  published.FillWith(6);
  sink.GoOn();
  sink.AwaitClosed();
  for (const auto& [segment, intact] : sink.segments()) {
    EXPECT_EQ(received.BytesOf(segment), before.BytesOf(segment)) << segment.value;
  }
  source_->RemoveHolder(WorkerId(77));
}

}  // namespace th::testing
