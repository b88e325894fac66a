// Fills over cuda_ipc: bytes land where they belong on a GPU, without a slot; and fills that go on
// over another transport where the GPU's memory cannot be imported.
#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/transfer/cuda_ipc/cuda_ipc_transport.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/device_fill_test_bed.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr AssignmentId kFirst(1);

class CudaIpcFillTest : public DeviceFillTestBed {
 protected:
  CudaIpcFillTest() { fake_.AllowOwnImports(true); }
  ~CudaIpcFillTest() override {
    fake_.Fail("cuIpcOpenMemHandle", CUDA_SUCCESS, 0, 0);
    fake_.HoldStreams(false);
  }

  std::unique_ptr<TestNode> NewNode(uint64_t worker, Memory memory,
                                    ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves,
                                    const TransportLimits& limits = PatientFillLimits()) {
    return NewNode(worker, SpecIn(memory, checksum), limits);
  }
  std::unique_ptr<TestNode> NewNode(uint64_t worker, const TestShard::Spec& spec,
                                    const TransportLimits& limits) {
    auto transport = NewCudaIpcTransport({.driver = CudaTestDevice::DriverPath(),
                                          .limits = limits,
                                          .exports = {.release_timeout = kPatience},
                                          .imports = {.import_own = true},
                                          .counters = counters_});
    EXPECT_TRUE(transport.ok()) << transport.status();
    auto node = std::make_unique<TestNode>(*std::move(transport), WorkerId(worker), spec);
    Attach(*node);
    return node;
  }

  const std::shared_ptr<cuda_ipc::CopyCounters> counters_ =
      std::make_shared<cuda_ipc::CopyCounters>();
  // A process that has GPU memory reads over this transport, wherever the bytes go.
  TestShard anything_{{.tensor_bytes = {1}, .device = &device_}};
};

class EveryWayTest : public CudaIpcFillTest,
                     public ::testing::WithParamInterface<std::tuple<Memory, Memory>> {};

TEST_P(EveryWayTest, EachByteArrives) {
  const auto [from, into] = GetParam();
  for (const auto checksum : {ChecksumAlgorithm::kXxh3Leaves, ChecksumAlgorithm::kNone}) {
    const auto source = NewNode(11, from, checksum);
    const auto reader = NewNode(12, into, checksum);
    Attach(*reader->transport, anything_);
    ExpectEachByteArrives(*source, *reader, PatientReplicatorLimits());
    attached_.clear();
  }
  EXPECT_EQ(fake_.imports(), 0) << "what is detached is closed";
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EveryWayTest,
    ::testing::Combine(::testing::Values(Memory::kHost, Memory::kDevice, Memory::kMixed),
                       ::testing::Values(Memory::kHost, Memory::kDevice, Memory::kOtherDevice,
                                         Memory::kMixed)));

TEST_F(CudaIpcFillTest, ARelayHandsOnWhatHasNotAllArrived) {
  const auto source = NewNode(11, Memory::kDevice);
  const auto relay = NewNode(12, Memory::kDevice), reader = NewNode(13, Memory::kOtherDevice);
  ExpectRelayHandsOnWhatHasNotAllArrived(*source, *relay, *reader, PatientReplicatorLimits());
  EXPECT_EQ(counters_->same_device_bytes, source->shard.layout().bytes());
  EXPECT_EQ(counters_->peer_access_bytes, source->shard.layout().bytes());
}

// All that a GPU has kept waiting ends at once, and is answered at once, over one connection.
TEST_F(CudaIpcFillTest, AGpuThatPausesUnderThousandsOfSegmentsCostsNoSource) {
  TestShard::Spec spec;
  spec.tensor_bytes = {12 << 20};
  spec.segment_bytes = 4096;
  spec.device = &device_;
  TransportLimits limits = PatientFillLimits();
  limits.connections_per_pull = 1;
  const auto source = NewNode(11, spec, limits), reader = NewNode(12, spec, limits);
  source->Publish(1);
  source->shard.ChecksumAll();
  ReplicatorLimits eager = PatientReplicatorLimits();
  eager.requests_at_first = eager.device_requests_in_flight;
  const Digest root = source->shard.Root();
  fake_.HoldStreams(true);
  Fill& fill = reader->StartFill(eager, {}, root);
  fill.SetSources(kFirst, {source->AsSource()});
  fake_.AwaitHeld();
  fake_.HoldStreams(false);
  reader->observer.AwaitComplete();
  EXPECT_THAT(reader->observer.losses(), IsEmpty());
  EXPECT_TRUE(reader->shard.Equals(source->shard));
}

TEST_F(CudaIpcFillTest, ASegmentThatIsWrongIsRefused) {
  const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  source->shard.ChecksumAll();
  source->shard.Corrupt(SegmentIndex(4));
  reader->StartFill(PatientReplicatorLimits(), {}, source->shard.Root())
      .SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitLosses(1);
  EXPECT_EQ(reader->observer.losses()[0].failure, SourceFailure::kCorrupt);
  EXPECT_FALSE(reader->shard.store()->held().Contains(SegmentIndex(4)));
}

TEST_F(CudaIpcFillTest, AGpuThatTakesTooLongIsGivenUpAndNoSourceIsBlamed) {
  TransportLimits impatient = PatientFillLimits();
  impatient.own_copy_timeout = absl::Milliseconds(100);
  const auto source = NewNode(11, Memory::kDevice);
  const auto patient_reader = NewNode(12, Memory::kDevice);
  const auto reader = NewNode(13, Memory::kDevice, ChecksumAlgorithm::kXxh3Leaves, impatient);
  source->Publish(1);
  source->shard.ChecksumAll();
  ExpectThatOnlyImpatienceGivesTheGpuUp(*source, *patient_reader, *reader);
}

// The fill ends without it, its memory stays in use.
TEST_F(CudaIpcFillTest, WhatAGpuThatWasGivenUpStillWritesIsAwaitedByTheOwner) {
  TransportLimits impatient = PatientFillLimits();
  impatient.own_copy_timeout = absl::Milliseconds(100);
  for (const Memory into : {Memory::kDevice, Memory::kHost}) {
    const auto source = NewNode(11, Memory::kDevice);
    const auto reader = NewNode(12, into, ChecksumAlgorithm::kXxh3Leaves, impatient);
    Attach(*reader->transport, anything_);
    source->Publish(1);
    source->shard.ChecksumAll();
    const Digest root = source->shard.Root();
    fake_.HoldStreams(true);
    reader->StartFill(PatientReplicatorLimits(), {}, root).SetSources(kFirst, {source->AsSource()});
    EXPECT_THAT(reader->observer.AwaitFailed(), StatusIs(absl::StatusCode::kDeadlineExceeded));
    reader->StopFill();
    const auto in_use = StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr(absl::StrCat("GPU ", device_.pci_address())));
    SegmentStore& store = *reader->shard.store();
    EXPECT_THAT(store.AwaitDevices(absl::ZeroDuration()), in_use);
    store.Close(BufferGeneration(9));
    EXPECT_THAT(store.Rebind(std::vector<void*>(store.layout().storages().size())), in_use);
    fake_.HoldStreams(false);
    EXPECT_OK(store.AwaitDevices(kPatience));
    if (into == Memory::kHost) {
      const std::string zeros(store.layout().SegmentLength(SegmentIndex(0)), 0);
      EXPECT_EQ(reader->shard.BytesOf(SegmentIndex(0)), zeros) << "it is not written any more";
    }
    EXPECT_FALSE(reader->observer.calls_after_stopped());
    attached_.clear();
  }
}

// Readers of one process, each with a GPU of its own.
TEST_F(CudaIpcFillTest, AGpuThatHangsHoldsUpNoOther) {
  const auto source = NewNode(11, Memory::kHost);
  const auto reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  source->shard.ChecksumAll();
  TestShard other(SpecIn(Memory::kOtherDevice));
  Attach(*reader->transport, other);
  TestObserver observer;
  fake_.HoldStreamsOf(0, true);
  reader->StartFill(PatientReplicatorLimits(), {}, source->shard.Root())
      .SetSources(kFirst, {source->AsSource()});
  reader->observer.AwaitFirstWrite();
  fake_.AwaitHeld();
  other.store()->BeginFill(BufferGeneration(2), {});
  const auto beside = Fill::Start(
      {.store = other.store(), .root = source->shard.Root(), .limits = PatientReplicatorLimits()},
      {reader->transport.get()}, &observer);
  beside->SetSources(kFirst, {source->AsSource()});
  observer.AwaitComplete();
  EXPECT_TRUE(other.Equals(source->shard));
  EXPECT_FALSE(reader->observer.complete());
  observer.AwaitStopped();
  fake_.HoldStreams(false);
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
}

// Without them a reader whose copies take longer than its source may be silent would lose it.
TEST_F(CudaIpcFillTest, WhileCopiesAreUnderWayThereAreSignsOfLifeThatNoSourceSends) {
  TransportLimits silent = PatientFillLimits();
  silent.keep_alive = absl::Hours(1);
  const auto source = NewNode(11, Memory::kDevice, ChecksumAlgorithm::kXxh3Leaves, silent);
  const auto reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  source->shard.ChecksumAll();
  TestSink sink(&reader->shard);
  fake_.HoldStreams(true);
  const auto pull =
      reader->transport->Open(source->holder.Target(source->transport->endpoints()[0],
                                                    source->shard.store()->shared_layout()),
                              &sink);
  pull->Ask(reader->shard.all());
  sink.AwaitAlive(3);
  EXPECT_THAT(sink.segments(), IsEmpty());
  fake_.HoldStreams(false);
  sink.AwaitSegments(reader->shard.segment_count());
  pull->Close();
  sink.AwaitClosed();
}

// Imports that begin to fail in the middle: the source is not lost.
TEST_F(CudaIpcFillTest, AFillGoesOnOverAnotherTransportWhereMemoryCannotBeImported) {
  const auto source = NewNode(11, Memory::kDevice), reader = NewNode(12, Memory::kDevice);
  source->Publish(1);
  const auto new_tcp = [] {
    auto tcp = NewTcpTransport({.limits = PatientFillLimits()});
    EXPECT_TRUE(tcp.ok()) << tcp.status();
    return *std::move(tcp);
  };
  const auto source_tcp = new_tcp(), reader_tcp = new_tcp();
  source_tcp->AddHolder(source->worker, &source->holder);
  Attach(*source_tcp, source->shard);
  Attach(*reader_tcp, reader->shard);
  AssignedSource assigned = source->AsSource();
  assigned.endpoints.push_back(source_tcp->endpoints()[0]);
  fake_.Fail("cuIpcOpenMemHandle", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, /*skipped=*/1, 1000);
  const auto fill = Fill::Start({.store = reader->shard.store(),
                                 .root = source->shard.Root(),
                                 .limits = PatientReplicatorLimits()},
                                {reader->transport.get(), reader_tcp.get()}, &reader->observer);
  reader->shard.store()->BeginFill(BufferGeneration(1), {});
  fill->SetSources(kFirst, {assigned});
  reader->observer.AwaitComplete();
  EXPECT_TRUE(reader->shard.Equals(source->shard));
  EXPECT_THAT(reader->observer.losses(), IsEmpty());
  const FillStatus status = fill->status();
  ASSERT_EQ(status.sources.size(), 2);  // one for each endpoint that was read from
  EXPECT_THAT(status.sources[1].passed_over,
              ElementsAre(Field(&PassedOver::reason, HasSubstr("PEER_ACCESS_UNSUPPORTED"))));
  fill->Stop();
  reader->observer.AwaitStopped();
  source_tcp->RemoveHolder(source->worker);
}

}  // namespace
}  // namespace th::testing
