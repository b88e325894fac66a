// A reader whose GPU is slow to flush and sum what its adapter has written there: the source is not
// blamed, and no other transfer waits. On the fake driver, over queue pairs within this process.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/device_fill_test_bed.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/ibverbs/loopback_verbs.h"

namespace th::testing {
namespace {

using ibverbs::FabricDeadlines;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr FabricDeadlines kPatient{.probe = kPatience, .read = kPatience, .landing = kPatience};

class SlowGpuTest : public DeviceFillTestBed {
 protected:
  SlowGpuTest() {
    ibverbs::GidEntry gid;
    gid.gid[10] = gid.gid[11] = 0xff;
    gid.gid[12] = 10;
    gid.gid[15] = 1;
    gid.type = ibverbs::GidType::kRoceV2;
    verbs_.devices = {{.name = "fake0", .gids = {gid}}};
  }
  ~SlowGpuTest() override {
    ibverbs::BreakLoopback(false);
    fake_.HoldStreams(false);
    attached_.clear();  // before the verbs that it is registered with
  }

  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits = PatientFillLimits(),
                                          const FabricDeadlines& deadlines = kPatient) {
    auto transport = NewIbverbsTransport({.limits = limits,
                                          .deadlines = deadlines,
                                          .gpus = [cuda = device_.cuda()] { return cuda; },
                                          .verbs = ibverbs::LoopbackVerbs(verbs_)});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  // Gives up soon what its GPU does not end.
  std::unique_ptr<Transport> NewHastyTransport() {
    FabricDeadlines deadlines = kPatient;
    deadlines.landing = absl::Milliseconds(50);
    return NewTransport(PatientFillLimits(), deadlines);
  }
  std::unique_ptr<TestNode> NewNode(uint64_t worker, TestDevice* device,
                                    std::unique_ptr<Transport> transport) {
    auto node = std::make_unique<TestNode>(std::move(transport), WorkerId(worker),
                                           TestShard::Spec{.device = device});
    Attach(*node);
    return node;
  }
  std::unique_ptr<TestNode> PublishedSource() { return PublishedSource(NewTransport()); }
  std::unique_ptr<TestNode> PublishedSource(std::unique_ptr<Transport> transport) {
    auto source = NewNode(11, /*device=*/nullptr, std::move(transport));
    source->Publish(1);
    source->shard.ChecksumAll();
    return source;
  }
  PullTarget Target(const TestNode& source) {
    return source.holder.Target(source.transport->endpoints()[0],
                                source.shard.store()->shared_layout());
  }
  // Pulls into `into` until the GPU is at what has landed first, and closes the pull.
  std::unique_ptr<Pull> PullUntilTheGpuIsAtItAndClose(Transport& reader, const TestNode& source,
                                                      const TestShard& into, TestSink* sink) {
    fake_.HoldStreams(true);
    const uint64_t before = fake_.flushes();
    auto pull = reader.Open(Target(source), sink);
    pull->Ask(into.all());
    AwaitTheGpu(before);
    pull->Close();
    return pull;
  }
  // It has begun to flush more than those.
  void AwaitTheGpu(uint64_t flushes_before) {
    const absl::Time end = absl::Now() + kPatience;
    while (fake_.flushes() == flushes_before && absl::Now() < end) std::this_thread::yield();
    EXPECT_GT(fake_.flushes(), flushes_before) << "nothing has landed on the GPU";
  }

  ibverbs::FakeVerbs verbs_;
};

TEST_F(SlowGpuTest, AGpuThatTakesTooLongIsGivenUpAndNoSourceIsBlamed) {
  TransportLimits impatient = PatientFillLimits();
  impatient.own_copy_timeout = absl::Milliseconds(100);
  const auto source = PublishedSource();
  const auto patient_reader = NewNode(12, &device_, NewTransport());
  const auto reader = NewNode(13, &device_, NewTransport(impatient));
  ExpectThatOnlyImpatienceGivesTheGpuUp(*source, *patient_reader, *reader);
}

// Without them a reader whose GPU takes longer than its source may be silent would lose the source.
TEST_F(SlowGpuTest, WhileTheGpuIsAtItThereAreSignsOfLifeThatNoSourceSends) {
  TransportLimits silent = PatientFillLimits();
  silent.keep_alive = absl::Hours(1);
  const auto source = PublishedSource(NewTransport(silent));
  const auto reader = NewTransport();
  const TestShard on_gpu({.device = &device_});
  Attach(*reader, on_gpu);
  TestSink sink(&on_gpu);
  fake_.HoldStreams(true);
  const auto pull = reader->Open(Target(*source), &sink);
  pull->Ask(on_gpu.all());
  sink.AwaitAlive(3);
  EXPECT_THAT(sink.segments(), IsEmpty());
  fake_.HoldStreams(false);
  sink.AwaitSegments(on_gpu.segment_count());
  pull->Close();
  sink.AwaitClosed();
}

TEST_F(SlowGpuTest, APullThatIsClosedMeanwhileHoldsUpNoOther) {
  TransportLimits one_thread = PatientFillLimits();
  one_thread.data_threads = 1;
  const auto source = PublishedSource();
  const auto reader = NewTransport(one_thread);
  const TestShard on_gpu({.device = &device_}), in_host({.device = nullptr});
  Attach(*reader, on_gpu);
  Attach(*reader, in_host);
  TestSink sink(&on_gpu), other_sink(&in_host);
  const auto pull = PullUntilTheGpuIsAtItAndClose(*reader, *source, on_gpu, &sink);
  const auto other = reader->Open(Target(*source), &other_sink);
  other->Ask(in_host.all());
  other_sink.AwaitSegments(in_host.segment_count());
  EXPECT_THAT(other_sink.segments(), Each(Pair(::testing::_, true)));
  EXPECT_TRUE(in_host.Equals(source->shard));
  EXPECT_FALSE(sink.closed()) << "the GPU still reads its memory";
  other->Close();
  other_sink.AwaitClosed();
  fake_.HoldStreams(false);
  sink.AwaitClosed();
}

// The fabric breaks while the GPU is at what has landed before. The source is not to blame: its
// fill goes on over another transport once the pull has ended, unless it gave the source up before.
TEST_F(SlowGpuTest, APullThatHasLostTheMemoryAndWaitsForTheGpuIsNotSilent) {
  const auto source = PublishedSource();
  const auto reader = NewTransport();
  const TestShard on_gpu({.device = &device_});
  Attach(*reader, on_gpu);
  TestSink sink(&on_gpu);
  fake_.HoldStreams(true);
  const uint64_t before = fake_.flushes();
  const auto pull = reader->Open(Target(*source), &sink);
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  AwaitTheGpu(before);
  ibverbs::BreakLoopback(true);
  pull->Ask({SegmentIndex(1), SegmentIndex(2)});
  source->holder.AwaitReleased(1);  // the source has nothing to say any more
  sink.AwaitAlive(sink.alive() + 2);
  EXPECT_FALSE(sink.closed());
  fake_.HoldStreams(false);
  EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kConnect);
  EXPECT_FALSE(sink.calls_after_closed());
}

// It may be so for ever. The adapter writes nothing any more, so the destination is its owner's.
TEST_F(SlowGpuTest, APullWhoseGpuDoesNotEndIsClosedAfterAWhileAndNothingLandsAfterwards) {
  const auto source = PublishedSource();
  auto reader = NewHastyTransport();
  const TestShard on_gpu({.device = &device_});
  Attach(*reader, on_gpu);
  TestSink sink(&on_gpu);
  const auto pull = PullUntilTheGpuIsAtItAndClose(*reader, *source, on_gpu, &sink);
  sink.AwaitClosed();
  EXPECT_TRUE(sink.closed());
  source->holder.AwaitReleased(1);
  fake_.HoldStreams(false);
  reader = nullptr;  // the GPU has ended before the memory is freed
  EXPECT_THAT(sink.segments(), IsEmpty());
  EXPECT_FALSE(sink.calls_after_closed());
}

// A transport that goes has no loop to come back on.
TEST_F(SlowGpuTest, ATransportThatGoesTellsOfTheEndAfterAWhileToo) {
  const auto source = PublishedSource();
  auto reader = NewHastyTransport();
  const TestShard on_gpu({.device = &device_});
  Attach(*reader, on_gpu);
  TestSink sink(&on_gpu);
  const auto pull = PullUntilTheGpuIsAtItAndClose(*reader, *source, on_gpu, &sink);
  std::thread ending([&] { reader = nullptr; });
  sink.AwaitClosed();
  EXPECT_TRUE(sink.closed());
  fake_.HoldStreams(false);  // the thread of the landings ends with the transport
  ending.join();
}

}  // namespace
}  // namespace th::testing
