// Readers of one source that can be read over RDMA and TCP: one has RDMA, one has none, the memory
// of one could not be registered. Over queue pairs within this process.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/cost.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/ibverbs/fake_verbs.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/ibverbs/loopback_verbs.h"
#include "th/transfer/tcp/tcp_transport.h"

namespace th::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kTooLittle = 4096;  // that may be registered, of a shard that has more

class ReaderChoiceTest : public ::testing::Test {
 protected:
  ReaderChoiceTest() {
    ibverbs::GidEntry gid;
    gid.gid[10] = gid.gid[11] = 0xff;
    gid.gid[12] = 10;
    gid.gid[15] = 1;
    gid.type = ibverbs::GidType::kRoceV2;
    verbs_.devices = {{.name = "fake0", .gids = {gid}}, {.name = "fake1", .port = IBV_PORT_DOWN}};
    source_ = std::make_unique<TestNode>(NewRdma(), WorkerId(11), TestShard::Spec());
    source_memory_ = *source_->transport->Attach(source_->shard.store()->regions());
    source_tcp_ = NewTcp();
    source_tcp_->AddHolder(source_->worker, &source_->holder);
  }
  ~ReaderChoiceTest() override { source_tcp_->RemoveHolder(source_->worker); }

  std::unique_ptr<Transport> NewRdma(
      uint64_t max_registered_bytes = kDefaultMaxRegisteredBytes) const {
    auto transport = NewIbverbsTransport(
        {.max_registered_bytes = max_registered_bytes,
         .limits = PatientFillLimits(),
         .deadlines = {.probe = kPatience, .read = kPatience, .landing = kPatience},
         .counters = reads_,
         .gpus = [] { return nullptr; },
         .verbs = ibverbs::LoopbackVerbs(verbs_)});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  static std::unique_ptr<Transport> NewTcp() {
    auto transport = NewTcpTransport({.limits = PatientFillLimits()});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  AssignedSource Source() const {
    AssignedSource source = source_->AsSource();
    source.endpoints.push_back(source_tcp_->endpoints()[0]);
    return source;
  }

  // A process that fills a shard over `rdma`, if there is one, and TCP.
  struct Reader {
    explicit Reader(std::unique_ptr<Transport> own_rdma)
        : rdma(std::move(own_rdma)), tcp(NewTcp()), shard({}) {}
    ~Reader() { Stop(); }
    // As the client does with what could not be begun, and what has refused the memory.
    Fill& Start(const TestNode& source, bool strict_transport = false) {
      FillSpec spec;
      spec.store = shard.store();
      spec.root = source.shard.Root();
      spec.limits = PatientReplicatorLimits();
      spec.strict_transport = strict_transport;
      spec.transport_order = {kIbverbsTransport, kTcpTransport};
      std::vector<Transport*> transports = {tcp.get()};
      if (rdma == nullptr) {
        spec.unusable_transports[kIbverbsTransport] = HasNoDevice();
      } else {
        transports.insert(transports.begin(), rdma.get());
        auto attached = rdma->Attach(shard.store()->regions());
        if (attached.ok()) {
          memory = *std::move(attached);
        } else {
          spec.unusable_transports[kIbverbsTransport] = attached.status();
        }
      }
      shard.store()->BeginFill(BufferGeneration(1), {});
      fill = Fill::Start(std::move(spec), std::move(transports), &observer);
      return *fill;
    }
    static absl::Status HasNoDevice() {
      return absl::FailedPreconditionError("the kernel has no RDMA device");
    }
    void Stop() {
      if (fill == nullptr) return;
      fill->Stop();
      observer.AwaitStopped();
      fill.reset();
    }

    const std::unique_ptr<Transport> rdma, tcp;
    TestShard shard;
    std::unique_ptr<AttachedMemory> memory;
    TestObserver observer;
    std::shared_ptr<Fill> fill;
  };

  // The only source of a fill that is complete.
  static FillSourceReport TheSourceOf(const Reader& reader) {
    const FillStatus status = reader.fill->status();
    EXPECT_THAT(status.sources, SizeIs(1));
    return status.sources.empty() ? FillSourceReport() : status.sources[0];
  }
  // Where transports are strict.
  static std::string WhyTheSourceIsLost(Reader& reader) {
    reader.observer.AwaitLosses(1);
    EXPECT_THAT(reader.shard.store()->held().ranges(), IsEmpty());
    return reader.observer.losses().at(0).detail;
  }

  ibverbs::FakeVerbs verbs_;
  const std::shared_ptr<ibverbs::ReadCounters> reads_ = std::make_shared<ibverbs::ReadCounters>();
  std::unique_ptr<TestNode> source_;
  std::unique_ptr<AttachedMemory> source_memory_;
  std::unique_ptr<Transport> source_tcp_;
};

TEST_F(ReaderChoiceTest, WhatATransportDoesWithoutIsNamedWithTheReason) {
  EXPECT_THAT(source_->transport->left_out(), ElementsAre(HasSubstr("fake1: port 1 is down")));
  EXPECT_THAT(source_tcp_->left_out(), IsEmpty());
}

// Both are under way at once: neither has all before the source has.
TEST_F(ReaderChoiceTest, OneThatHasRdmaAndOneThatHasNoneReadOneSourceBesideEachOther) {
  constexpr uint64_t kFirst = 5;
  source_->PublishFirst(kFirst);
  Reader with(NewRdma()), without(nullptr);
  for (Reader* reader : {&with, &without}) {
    reader->Start(*source_).SetSources(AssignmentId(1), {Source()});
  }
  for (Reader* reader : {&with, &without}) AwaitHeld(*reader->shard.store(), kFirst);
  source_->Hold(kFirst, source_->shard.segment_count());
  for (Reader* reader : {&with, &without}) {
    reader->observer.AwaitComplete();
    EXPECT_TRUE(reader->shard.Equals(source_->shard));
    EXPECT_EQ(TheSourceOf(*reader).bytes, source_->shard.layout().bytes());
  }
  EXPECT_EQ(TheSourceOf(with).transport, kIbverbsTransport);
  EXPECT_THAT(TheSourceOf(with).passed_over, IsEmpty());
  EXPECT_EQ(TheSourceOf(without).transport, kTcpTransport);
  EXPECT_EQ(DescribePassedOver(TheSourceOf(without).passed_over),
            "ibverbs: the kernel has no RDMA device");
  EXPECT_EQ(with.tcp->counters().bytes_received, 0);
  EXPECT_EQ(without.tcp->counters().bytes_received, source_->shard.layout().bytes());
  with.Stop();
  without.Stop();
  source_->holder.AwaitReleased(2);
}

TEST_F(ReaderChoiceTest, OneWhoseMemoryIsRefusedReadsOverTheNextTransportWithTheReason) {
  source_->Publish(1);
  Reader reader(NewRdma(kTooLittle));
  reader.Start(*source_).SetSources(AssignmentId(1), {Source()});
  reader.observer.AwaitComplete();
  EXPECT_TRUE(reader.shard.Equals(source_->shard));
  EXPECT_EQ(TheSourceOf(reader).transport, kTcpTransport);
  EXPECT_THAT(DescribePassedOver(TheSourceOf(reader).passed_over),
              AllOf(HasSubstr("ibverbs: "), HasSubstr("limit of 4KiB of registered memory")));
  reader.Stop();
  EXPECT_EQ(reads_->bounced_bytes, 0);
}

TEST_F(ReaderChoiceTest, WhereTransportsAreStrictRefusedMemoryLosesTheSourceByName) {
  source_->Publish(1);
  Reader reader(NewRdma(kTooLittle));
  reader.Start(*source_, /*strict_transport=*/true).SetSources(AssignmentId(1), {Source()});
  EXPECT_THAT(WhyTheSourceIsLost(reader), AllOf(HasSubstr("over ibverbs or not at all"),
                                                HasSubstr("limit of 4KiB of registered memory")));
}

TEST_F(ReaderChoiceTest, WhereTransportsAreStrictOneWithoutRdmaLosesTheSourceByName) {
  source_->Publish(1);
  Reader reader(nullptr);
  reader.Start(*source_, /*strict_transport=*/true).SetSources(AssignmentId(1), {Source()});
  EXPECT_THAT(WhyTheSourceIsLost(reader), AllOf(HasSubstr("over ibverbs or not at all"),
                                                HasSubstr("the kernel has no RDMA device")));
}

}  // namespace
}  // namespace th::testing
