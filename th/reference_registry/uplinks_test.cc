#include "th/registry_state/uplinks.h"

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "th/protocol/lease.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry_harness.h"
#include "th/registry_state/registry_types.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"
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
  hub_.Advance(SuspectAfter(kDefaultLease) + absl::Milliseconds(1));
  for (TestRank* rank : {&trainer_, &readers_[0], &readers_[1], &readers_[3], &readers_[4]}) {
    rank->Say(Heartbeat{});
  }
  EXPECT_EQ(NextSourceOfTheLast(SourceFailure::kRefused), readers_[1].address());
}

// ---- who takes how much of a worker's uplink

constexpr uint64_t kSegmentBytes = 1'000;

// One shard, its holders and the edges between them.
class OutstandingBytesTest : public ::testing::Test {
 protected:
  registry::Worker& AddWorker() {
    registry::Worker& worker = workers_.emplace_back();
    worker.id = WorkerId(workers_.size());
    worker.connection = ConnectionId(workers_.size());
    worker.last_heard = now_;
    return worker;
  }
  // A buffer of `worker` that has so many segments and fills from `sources`.
  registry::Buffer& AddHolder(registry::Worker& worker, uint64_t segments,
                              std::vector<BufferAddress> sources = {}) {
    const BufferId id(worker.buffers.size() + 1);
    registry::Buffer& buffer = worker.buffers[id];
    buffer.address = {worker.id, id};
    buffer.worker = &worker;
    buffer.bytes = kSegments * kSegmentBytes;
    buffer.segment_count = kSegments;
    buffer.shard = &shard_;
    buffer.content.emplace();
    buffer.content->complete = segments == kSegments;
    buffer.content->segments = SegmentSet::AllOf(segments);
    if (!sources.empty()) buffer.fill = std::make_unique<registry::Fill>();
    for (const BufferAddress& source : sources) shard_.readers_of[source].insert(buffer.address);
    buffer.sources = std::move(sources);
    shard_.holders.emplace(buffer.address, &buffer);
    return buffer;
  }
  uint64_t OutstandingOf(const registry::Worker& worker) { return OutstandingFor(reader_, worker); }
  uint64_t OutstandingFor(const registry::Worker& reader, const registry::Worker& worker) {
    registry::Buffer asks;
    asks.worker = const_cast<registry::Worker*>(&reader);
    return registry::OutstandingBytes({.state = state_, .effects = effects_, .now = now_}, worker,
                                      asks);
  }

  const absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  registry::RegistryState state_;
  RegistryEffects effects_;
  registry::Shard shard_;
  registry::Worker reader_;
  std::list<registry::Worker> workers_;  // whose buffers point at them
};

TEST_F(OutstandingBytesTest, AReaderWithTwoSourcesIsHalfTheLoadOfEach) {
  registry::Worker& first = AddWorker();
  registry::Worker& second = AddWorker();
  const BufferAddress one = AddHolder(first, kSegments).address;
  const BufferAddress other = AddHolder(second, kSegments).address;
  AddHolder(AddWorker(), kSegments / 4, {one, other});
  EXPECT_EQ(OutstandingOf(first), kSegments * 3 / 4 * kSegmentBytes / 2);
  EXPECT_EQ(OutstandingOf(second), OutstandingOf(first));
  AddHolder(AddWorker(), kSegments / 2, {one});
  EXPECT_EQ(OutstandingOf(first) - OutstandingOf(second), kSegments / 2 * kSegmentBytes);
}

TEST_F(OutstandingBytesTest, AReaderOnTheHoldersOwnWorkerUsesNoUplink) {
  registry::Worker& holder = AddWorker();
  const BufferAddress source = AddHolder(holder, kSegments).address;
  AddHolder(holder, 0, {source});
  EXPECT_EQ(OutstandingOf(holder), 0u);
  AddHolder(AddWorker(), 0, {source});
  EXPECT_EQ(OutstandingOf(holder), kSegments * kSegmentBytes);
}

TEST_F(OutstandingBytesTest, ReadersOfAllItsBuffersAddUp) {
  registry::Worker& holder = AddWorker();
  const BufferAddress whole = AddHolder(holder, kSegments).address;
  const BufferAddress filling = AddHolder(holder, 1, {whole}).address;
  AddHolder(AddWorker(), kSegments / 2, {whole});
  AddHolder(AddWorker(), kSegments / 4, {filling});
  EXPECT_EQ(OutstandingOf(holder), kSegments * 5 / 4 * kSegmentBytes);
}

}  // namespace
}  // namespace th
