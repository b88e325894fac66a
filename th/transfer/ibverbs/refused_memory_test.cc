// A source whose memory could not be registered with its adapters, or is gone since: its reader
// takes another transport, and hears why. Over queue pairs within this process.
#include <sys/mman.h>

#include <cstdint>
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

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBytes = uint64_t{1} << 20;

ibverbs::FakeRdmaDevice OneDevice() {
  ibverbs::GidEntry gid;
  gid.gid[10] = gid.gid[11] = 0xff;
  gid.gid[12] = 10;
  gid.gid[15] = 1;
  gid.type = ibverbs::GidType::kRoceV2;
  return {.name = "fake0", .gids = {gid}};
}

std::unique_ptr<Transport> TransportWith(const ibverbs::FakeVerbs& verbs,
                                         uint64_t max_registered_bytes) {
  auto transport = NewIbverbsTransport({.max_registered_bytes = max_registered_bytes,
                                        .limits = PatientFillLimits(),
                                        .gpus = [] { return nullptr; },
                                        .verbs = ibverbs::LoopbackVerbs(verbs)});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

TEST(RefusedMemoryTest, IsNotServedThroughTheSocket) {
  ibverbs::FakeVerbs verbs;
  verbs.devices = {OneDevice()};
  TestNode source(TransportWith(verbs, /*max_registered_bytes=*/4096), WorkerId(11),
                  TestShard::Spec());
  EXPECT_THAT(source.transport->Attach(source.shard.store()->regions()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  source.Publish(1);
  const auto reader = TransportWith(verbs, kDefaultMaxRegisteredBytes);
  const TestShard into({});
  TestSink sink(&into);
  auto pull = reader->Open(
      source.holder.Target(source.transport->endpoints()[0], source.shard.store()->shared_layout()),
      &sink);
  pull->Ask(into.all());
  const auto [failure, why] = sink.AwaitClosed();
  EXPECT_EQ(failure, SourceFailure::kConnect);
  EXPECT_THAT(why, HasSubstr("exceeds the limit of 4KiB of registered memory"));
  EXPECT_THAT(sink.segments(), IsEmpty());
}

// The adapter would go on reading the pages that it was given.
TEST(RefusedMemoryTest, MemoryThatWasUnmappedSinceItWasRegisteredIsNotServed) {
  ibverbs::FakeVerbs verbs;
  verbs.devices = {OneDevice()};
  const auto transport = TransportWith(verbs, kDefaultMaxRegisteredBytes);
  const TestShard like({.tensor_bytes = {kBytes}}), into({.tensor_bytes = {kBytes}});
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto store =
      std::make_shared<SegmentStore>(like.store()->shared_layout(), std::vector<void*>{memory});
  TestHolder holder(store);
  transport->AddHolder(kHolderWorker, &holder);
  ASSERT_OK_AND_ASSIGN(const auto attached, transport->Attach(store->regions()));
  store->Publish(BufferGeneration(1));
  const PullTarget target = holder.Target(transport->endpoints()[0], like.store()->shared_layout());
  {
    TestSink before(&into);
    const auto pull = transport->Open(target, &before);
    pull->Ask(into.all());
    before.AwaitSegments(into.segment_count());
    pull->Close();
    before.AwaitClosed();
  }
  holder.AwaitReleased(1);
  ASSERT_EQ(munmap(memory, kBytes), 0);
  TestSink after(&into);
  const auto pull = transport->Open(target, &after);
  const auto [failure, why] = after.AwaitClosed();
  EXPECT_EQ(failure, SourceFailure::kConnect);
  EXPECT_THAT(why, HasSubstr("was unmapped while it was registered"));
  transport->RemoveHolder(kHolderWorker);
}

}  // namespace
}  // namespace th::testing
