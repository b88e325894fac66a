// Fills out of and into GPU memory (of the fake driver) that the adapters read and write
// themselves, over two RDMA devices, as in the Soft-RoCE machine.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/transfer/device_fill_test_bed.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/ibverbs/reaching_verbs.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::testing {
namespace {

using ibverbs::GpuReach;
using ibverbs::ReadCounters;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr AssignmentId kFirst(1);

class IbverbsGpuTest : public DeviceFillTestBed {
 protected:
  ~IbverbsGpuTest() override {
    fake_.OrderWrites(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
    fake_.Fail("cuFlushGPUDirectRDMAWrites", CUDA_SUCCESS, 0, 0);
  }
  std::unique_ptr<Transport> NewTransport(const std::string& device, GpuReach reach) {
    auto transport = NewIbverbsTransport({.devices = {device},
                                          .limits = PatientFillLimits(),
                                          .deadlines = {.probe = kPatience, .read = kPatience},
                                          .counters = counters_,
                                          .gpus = [cuda = device_.cuda()] { return cuda; },
                                          .verbs = ibverbs::ReachingVerbs(reach)});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  std::unique_ptr<TestNode> NewNode(uint64_t worker, Memory memory,
                                    ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves,
                                    GpuReach reach = GpuReach::kDmaBuf) {
    return std::make_unique<TestNode>(NewTransport(worker % 2 == 0 ? "rxe0" : "rxe1", reach),
                                      WorkerId(worker), SpecIn(memory, checksum));
  }

  const std::shared_ptr<ReadCounters> counters_ = std::make_shared<ReadCounters>();
};

class EveryWayTest : public IbverbsGpuTest,
                     public ::testing::WithParamInterface<std::tuple<Memory, Memory>> {};

TEST_P(EveryWayTest, EachByteArrivesAndWhatGoesToAGpuGoesThereStraight) {
  const auto [from, into] = GetParam();
  for (const auto checksum : {ChecksumAlgorithm::kXxh3Leaves, ChecksumAlgorithm::kNone}) {
    const uint64_t before = counters_->gpu_bytes, flushes = fake_.flushes();
    const auto source = NewNode(11, from, checksum), reader = NewNode(12, into, checksum);
    Attach(*source);
    Attach(*reader);
    ExpectEachByteArrives(*source, *reader, PatientReplicatorLimits());
    const uint64_t straight = counters_->gpu_bytes - before;
    if (into == Memory::kDevice || into == Memory::kOtherDevice) {
      EXPECT_EQ(straight, source->shard.layout().bytes());
      EXPECT_GT(fake_.flushes(), flushes);
    } else if (into == Memory::kHost) {
      EXPECT_EQ(straight, 0);
    } else {
      EXPECT_GT(straight, 0) << "segments that lie on the GPU alone";
      EXPECT_LT(straight, source->shard.layout().bytes());
    }
    if (into != Memory::kMixed) {
      EXPECT_EQ(counters_->bounced_bytes, 0);
    }
    attached_.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EveryWayTest,
    ::testing::Combine(::testing::Values(Memory::kHost, Memory::kDevice, Memory::kMixed),
                       ::testing::Values(Memory::kHost, Memory::kDevice, Memory::kOtherDevice,
                                         Memory::kMixed)));

TEST_F(IbverbsGpuTest, AttachSaysWhichWay) {
  const auto node = NewNode(12, Memory::kDevice);
  Attach(*node);
  EXPECT_EQ(attached_[0]->how(), "memory of GPU 0000:01:00.0 registered by DMA-BUF with rxe0");
  const auto peermem = NewTransport("rxe1", GpuReach::kPeermem);
  Attach(*peermem, node->shard);
  EXPECT_EQ(attached_[1]->how(), "memory of GPU 0000:01:00.0 registered by peermem with rxe1");
  const auto host = NewNode(13, Memory::kHost);
  Attach(*host);
  EXPECT_EQ(attached_[2]->how(), "");
}

// The kernel's Soft-RoCE has no DMA-BUF, and no page lies behind a device address.
TEST_F(IbverbsGpuTest, WhereTheKernelKnowsNeitherWayAttachSaysWhyAndTheFillGoesOnOverTcp) {
  const auto source = NewNode(11, Memory::kDevice, ChecksumAlgorithm::kXxh3Leaves, GpuReach::kNone);
  const auto reader = NewNode(12, Memory::kDevice, ChecksumAlgorithm::kXxh3Leaves, GpuReach::kNone);
  const auto refused = reader->transport->Attach(reader->shard.store()->regions());
  ASSERT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("GPU 0000:01:00.0 is staged: rxe0 by DMA-BUF: "),
                                      HasSubstr("; by peermem: "))));
  EXPECT_LE(refused.status().message().size(), kMaxPassedOverReasonBytes) << refused.status();
  auto source_tcp = NewTcpTransport({.limits = PatientFillLimits()});
  auto reader_tcp = NewTcpTransport({.limits = PatientFillLimits()});
  ASSERT_OK(source_tcp.status());
  ASSERT_OK(reader_tcp.status());
  (*source_tcp)->AddHolder(source->worker, &source->holder);
  source->Publish(1);
  AssignedSource assigned = source->AsSource();
  assigned.endpoints.push_back((*source_tcp)->endpoints()[0]);
  FillSpec spec;
  spec.store = reader->shard.store();
  spec.limits = PatientReplicatorLimits();
  spec.root = source->shard.Root();
  // As the client does with what a transport has refused.
  spec.unusable_transports = {{kIbverbsTransport, refused.status()}};
  reader->shard.store()->BeginFill(BufferGeneration(1), {});
  const auto fill =
      Fill::Start(spec, {reader->transport.get(), reader_tcp->get()}, &reader->observer);
  fill->SetSources(kFirst, {assigned});
  reader->observer.AwaitComplete();
  const FillStatus status = fill->status();
  fill->Stop();
  reader->observer.AwaitStopped();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  ASSERT_EQ(status.sources.size(), 1);
  EXPECT_THAT(DescribePassedOver(status.sources[0].passed_over), HasSubstr("is staged: rxe0"));
  (*source_tcp)->RemoveHolder(source->worker);
}

// A source whose adapter cannot reach its memory says so, rather than send it through the host.
TEST_F(IbverbsGpuTest, ASourceWhoseMemoryIsStagedIsReadOverTheNextTransport) {
  const auto source = NewNode(11, Memory::kDevice, ChecksumAlgorithm::kXxh3Leaves, GpuReach::kNone);
  const auto reader = NewNode(12, Memory::kDevice);
  Attach(*reader);
  EXPECT_FALSE(source->transport->Attach(source->shard.store()->regions()).ok());
  source->Publish(1);
  reader->StartFill(PatientReplicatorLimits(), {}, source->shard.Root())
      .SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitLosses(1);
  EXPECT_EQ(reader->observer.losses()[0].failure, SourceFailure::kConnect);
  EXPECT_THAT(reader->observer.losses()[0].detail, HasSubstr("is staged: rxe1 by DMA-BUF"));
}

// Memory of GPUs that no transport was told of works too, at the price of slots.
TEST_F(IbverbsGpuTest, MemoryThatIsNotAttachedIsStaged) {
  // Another buffer's is attached, so that the adapter does write to GPUs.
  const TestShard other({.tensor_bytes = {1000}, .device = &device_});
  for (const bool attach_source : {true, false}) {
    const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
    if (attach_source) Attach(*source);
    Attach(*source->transport, other);
    Attach(*reader->transport, other);
    ExpectEachByteArrives(*source, *reader, PatientReplicatorLimits());
    EXPECT_EQ(counters_->gpu_bytes, 0);
    attached_.clear();
  }
}

TEST_F(IbverbsGpuTest, ASegmentThatIsWrongIsRefused) {
  const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
  Attach(*source);
  Attach(*reader);
  source->Publish(1);
  source->shard.ChecksumAll();
  source->shard.Corrupt(SegmentIndex(4));
  reader->StartFill(PatientReplicatorLimits(), {}, source->shard.Root())
      .SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitLosses(1);
  EXPECT_EQ(reader->observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_FALSE(reader->shard.store()->held().Contains(SegmentIndex(4)));
}

TEST_F(IbverbsGpuTest, ARelayHandsOnWhatHasNotAllArrived) {
  const auto source = NewNode(11, Memory::kDevice);
  const auto relay = NewNode(12, Memory::kDevice), reader = NewNode(13, Memory::kOtherDevice);
  for (TestNode* node : {source.get(), relay.get(), reader.get()}) Attach(*node);
  ExpectRelayHandsOnWhatHasNotAllArrived(*source, *relay, *reader, PatientReplicatorLimits());
  EXPECT_EQ(counters_->gpu_bytes, 2 * source->shard.layout().bytes());
}

// Without it kernels of the reader could read what was there before.
TEST_F(IbverbsGpuTest, NoSegmentCountsWithoutAFlush) {
  const auto source = NewNode(11, Memory::kDevice, ChecksumAlgorithm::kNone);
  const auto reader = NewNode(12, Memory::kDevice, ChecksumAlgorithm::kNone);
  Attach(*source);
  Attach(*reader);
  source->Publish(1);
  fake_.Fail("cuFlushGPUDirectRDMAWrites", CUDA_ERROR_UNKNOWN, 0, 1'000'000);
  reader->StartFill(PatientReplicatorLimits()).SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitLosses(1);
  EXPECT_THAT(reader->observer.losses()[0].detail, HasSubstr("flush"));
  EXPECT_EQ(reader->shard.store()->held().count(), 0);
}

// A mapping that another has taken the place of, as when an engine has slept.
TEST_F(IbverbsGpuTest, ADestinationThatWasFreedIsRefused) {
  const auto source = NewNode(11, Memory::kDevice);
  const auto reader = NewNode(12, Memory::kDevice);
  Attach(*source);
  Attach(*reader);
  source->Publish(1);
  for (const MemoryRegion& region : reader->shard.store()->regions()) {
    if (region.kind == MemoryKind::kDevice) device_.Free(region.address);
  }
  reader->StartFill(PatientReplicatorLimits(), {}, source->shard.Root())
      .SetSources(kFirst, {source->AsSource()});
  EXPECT_THAT(reader->observer.AwaitFailed(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("registered")));
  EXPECT_EQ(reader->shard.store()->held().count(), 0);
}

}  // namespace
}  // namespace th::testing
