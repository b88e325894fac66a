// Buffers of one process whose memory overlaps: what one of them has registered ends when it is
// detached, whatever the transfers of the other do then. Over queue pairs within this process.
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/ibverbs/loopback_verbs.h"

namespace th::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class OverlappingMemoryTest : public ::testing::Test {
 protected:
  OverlappingMemoryTest() {
    ibverbs::GidEntry gid;
    gid.gid[10] = gid.gid[11] = 0xff;
    gid.gid[12] = 10;
    gid.gid[15] = 1;
    gid.type = ibverbs::GidType::kRoceV2;
    verbs_.devices = {{.name = "fake0", .gids = {gid}}};
  }
  std::unique_ptr<Transport> NewTransport() {
    auto transport = NewIbverbsTransport({.limits = PatientFillLimits(),
                                          .counters = counters_,
                                          .gpus = [] { return nullptr; },
                                          .verbs = ibverbs::LoopbackVerbs(verbs_)});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  static std::unique_ptr<AttachedMemory> Attach(Transport& transport,
                                                const std::vector<MemoryRegion>& regions) {
    auto attached = transport.Attach(regions);
    EXPECT_OK(attached.status());
    return *std::move(attached);
  }
  static std::vector<MemoryRegion> RegionsOf(const TestShard& shard, SegmentIndex segment) {
    return shard.store()->PiecesOf(segment);
  }

  ibverbs::FakeVerbs verbs_;
  const std::shared_ptr<ibverbs::ReadCounters> counters_ =
      std::make_shared<ibverbs::ReadCounters>();
};

TEST_F(OverlappingMemoryTest, AReaderIsNotGivenTheKeyOfAnotherBuffer) {
  constexpr SegmentIndex kSegment(1);
  TestNode source(NewTransport(), WorkerId(11), TestShard::Spec());
  const auto own = Attach(*source.transport, source.shard.store()->regions());
  // Closer to the segment than the source's own.
  auto of_other = Attach(*source.transport, RegionsOf(source.shard, kSegment));
  source.Publish(1);
  const auto reader = NewTransport();
  const TestShard into({});
  GatedSink sink(&into);
  const auto pull = reader->Open(
      source.holder.Target(source.transport->endpoints()[0], source.shard.store()->shared_layout()),
      &sink);
  sink.AwaitAdmitted();
  pull->Ask({kSegment, kSegment.Next()});
  sink.AwaitEntered();  // it has been told of the segment's place
  of_other = nullptr;
  sink.GoOn();
  sink.AwaitSegments(1);
  EXPECT_THAT(sink.segments(), ElementsAre(Pair(kSegment, true)));
  EXPECT_FALSE(sink.closed());
  pull->Close();
  sink.AwaitClosed();
}

// Its owner may withdraw it under a READ.
TEST_F(OverlappingMemoryTest, NothingLandsByTheRegistrationOfAnotherBuffer) {
  TestNode source(NewTransport(), WorkerId(11), TestShard::Spec());
  TestNode reader(NewTransport(), WorkerId(12), TestShard::Spec());
  const auto of_source = Attach(*source.transport, source.shard.store()->regions());
  std::vector<MemoryRegion> regions = reader.shard.store()->regions();
  regions.pop_back();  // the control block: this is another buffer's, of the same tensors
  const auto of_other = Attach(*reader.transport, regions);
  source.Publish(1);
  Fill& fill = reader.StartFill(PatientReplicatorLimits(), {}, source.shard.Root());
  fill.SetSources(AssignmentId(1), {source.AsSource()});
  reader.observer.AwaitComplete();
  EXPECT_TRUE(reader.shard.Equals(source.shard));
  EXPECT_EQ(counters_->bounced_bytes.load(), reader.shard.layout().bytes());
}

}  // namespace
}  // namespace th::testing
