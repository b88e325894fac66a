// Fills that hand on what they receive through a ring.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/transfer/fake_transport.h"
#include "th/transfer/fill_test_bed.h"

namespace th::testing {
namespace {

using ::testing::SizeIs;

constexpr AssignmentId kFirst(1), kSecond(2);
constexpr uint64_t kSegmentBytes = 16'384;

TestShard::Spec SomeShard() {
  return {.tensor_bytes = {700'000, 3, 0, 5'000, 262'144}, .segment_bytes = kSegmentBytes};
}

class StreamFillTest : public ::testing::Test {
 protected:
  StreamFillTest() {
    for (uint64_t i = 0; i < 3; ++i) {
      nodes_.push_back(std::make_unique<TestNode>(network_.NewTransport(limits_), WorkerId(10 + i),
                                                  SomeShard()));
    }
    a().Publish(1);
    b().Publish(1);
  }

  TestNode& reader() { return *nodes_[0]; }
  TestNode& a() { return *nodes_[1]; }
  TestNode& b() { return *nodes_[2]; }
  uint64_t segments() const { return nodes_[0]->shard.segment_count(); }

  Fill& Start(const SegmentSet& wanted, uint64_t slots) {
    memory_ = std::shared_ptr<char>(new char[slots * kSegmentBytes], std::default_delete<char[]>());
    ring_ = std::make_shared<SegmentRing>(reader().shard.store()->shared_layout(), wanted, slots,
                                          memory_);
    reader().shard.store()->BeginFill(BufferGeneration(1), SegmentSet());
    ReplicatorLimits patient = PatientReplicatorLimits();
    patient.request_bytes = 65'536;
    reader().fill = Fill::Start({.store = reader().shard.store(), .limits = patient, .ring = ring_},
                                {reader().transport.get()}, &reader().observer);
    return *reader().fill;
  }
  // The next segment, with the bytes that `publisher` published, is handed on.
  void HandOn(const TestNode& publisher) {
    const SegmentIndex segment = ring_->next();
    const char* bytes = ring_->Await(kPatience);
    ASSERT_NE(bytes, nullptr) << segment.value;
    const std::string expected = publisher.shard.BytesOf(segment);
    EXPECT_EQ(std::string(bytes, expected.size()), expected) << segment.value;
    ring_->HandOn();
  }

  TransportLimits limits_;
  FakeNetwork network_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
  std::shared_ptr<char> memory_;
  std::shared_ptr<SegmentRing> ring_;
};

TEST_F(StreamFillTest, AWholeShardPassesThroughThreeSlots) {
  Fill& fill = Start(SegmentSet::AllOf(segments()), 3);
  fill.SetRoot(a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  for (uint64_t i = 0; i < segments(); ++i) HandOn(a());
  EXPECT_EQ(reader().observer.AwaitComplete(), a().shard.Root());
  EXPECT_LE(ring_->peak_segments(), 3u);
  EXPECT_EQ(fill.status().reread_bytes, 0u);
}

TEST_F(StreamFillTest, OnlyWantedSegmentsCrossTheNetwork) {
  const SegmentSet wanted = SegmentSet::FromRanges(
      {{SegmentIndex(2), SegmentIndex(4)}, {SegmentIndex(20), SegmentIndex(21)}});
  Fill& fill = Start(wanted, 2);
  fill.SetRoot(a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  for (uint64_t i = 0; i < wanted.count(); ++i) HandOn(a());
  EXPECT_EQ(reader().observer.AwaitComplete(), Digest()) << "a part has no root";
  EXPECT_EQ(reader().transport->counters().bytes_received, wanted.count() * kSegmentBytes);
}

TEST_F(StreamFillTest, WithoutRoomNothingMoreIsAskedFor) {
  Fill& fill = Start(SegmentSet::AllOf(segments()), 2);
  fill.SetSources(kFirst, {a().AsSource()});
  ASSERT_NE(ring_->Await(kPatience), nullptr);
  HandOn(a());
  ASSERT_NE(ring_->Await(kPatience), nullptr);
  // One was handed on and two have room: whatever the source could send, no more than three came.
  EXPECT_LE(reader().transport->counters().bytes_received, 3 * kSegmentBytes);
  EXPECT_LE(fill.status().bytes_held, 3 * kSegmentBytes);
}

TEST_F(StreamFillTest, NothingIsServedOn) {
  Fill& fill = Start(SegmentSet::AllOf(segments()), segments());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitAllReceived();
  EXPECT_TRUE(reader().shard.store()->held().empty());
}

TEST_F(StreamFillTest, ALostSourceIsReplacedAndNothingThatWasHandedOnComesAgain) {
  Fill& fill = Start(SegmentSet::AllOf(segments()), 4);
  reader().observer.OnLoss(
      [&](const TestObserver::Loss&) { fill.SetSources(kSecond, {b().AsSource()}); });
  fill.SetRoot(a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  for (uint64_t i = 0; i < 10; ++i) HandOn(a());
  network_.Kill(a().address());
  for (uint64_t i = 10; i < segments(); ++i) HandOn(b());
  reader().observer.AwaitComplete();
  EXPECT_THAT(reader().observer.losses(), SizeIs(1));
  EXPECT_EQ(fill.status().bytes_held, a().shard.layout().bytes());
}

TEST_F(StreamFillTest, WrongBytesAreNeverHandedOn) {
  network_.CorruptNext(a().address(), SegmentIndex(5));
  Fill& fill = Start(SegmentSet::AllOf(segments()), 4);
  reader().observer.OnSuspicion([&](BufferAddress) { fill.SetSources(kSecond, {b().AsSource()}); });
  fill.SetRoot(a().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  for (uint64_t i = 0; i < segments(); ++i) HandOn(a());
  reader().observer.AwaitComplete();
  EXPECT_EQ(fill.status().corrupt_segments, 1u);
}

TEST_F(StreamFillTest, OfASourceWhoseListDisagreesWithTheRootNothingIsHandedOn) {
  Fill& fill = Start(SegmentSet::FromRanges({{SegmentIndex(2), SegmentIndex(4)}}), 4);
  b().Publish(2);
  fill.SetRoot(b().shard.Root());
  fill.SetSources(kFirst, {a().AsSource()});
  reader().observer.AwaitLosses(1);
  EXPECT_EQ(reader().observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_EQ(reader().transport->counters().bytes_received, 0);
  fill.SetSources(kSecond, {b().AsSource()});
  HandOn(b());
  HandOn(b());
  reader().observer.AwaitComplete();
}

TEST_F(StreamFillTest, WhatWasHandedOnBeforeThereWasARootFailsTheWhole) {
  Fill& fill = Start(SegmentSet::AllOf(segments()), 4);
  fill.SetSources(kFirst, {a().AsSource()});
  for (uint64_t i = 0; i < segments(); ++i) HandOn(a());
  reader().observer.AwaitAllReceived();
  b().Publish(2);
  fill.SetRoot(b().shard.Root());
  EXPECT_EQ(reader().observer.AwaitFailed().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(reader().observer.complete());
}

}  // namespace
}  // namespace th::testing
