// A source whose memory could not be registered with its adapters: its reader takes another
// transport, and hears why. Over queue pairs within this process.
#include <memory>
#include <utility>

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

TEST(RefusedMemoryTest, IsNotServedThroughTheSocket) {
  ibverbs::FakeVerbs verbs;
  ibverbs::GidEntry gid;
  gid.gid[10] = gid.gid[11] = 0xff;
  gid.gid[12] = 10;
  gid.gid[15] = 1;
  gid.type = ibverbs::GidType::kRoceV2;
  verbs.devices = {{.name = "fake0", .gids = {gid}}};
  const auto transport_with = [&verbs](uint64_t max_registered_bytes) {
    auto transport = NewIbverbsTransport({.max_registered_bytes = max_registered_bytes,
                                          .limits = PatientFillLimits(),
                                          .gpus = [] { return nullptr; },
                                          .verbs = ibverbs::LoopbackVerbs(verbs)});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  };
  TestNode source(transport_with(/*max_registered_bytes=*/4096), WorkerId(11), TestShard::Spec());
  EXPECT_THAT(source.transport->Attach(source.shard.store()->regions()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  source.Publish(1);
  const auto reader = transport_with(kDefaultMaxRegisteredBytes);
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

}  // namespace
}  // namespace th::testing
