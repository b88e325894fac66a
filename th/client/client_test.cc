// Publishing and updating: several workers in one process, over real sockets.
#include "th/client/client.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::StartsWith;
using ::th::testing::kPatience;
using ::th::testing::Label;
using ::th::testing::Rank;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

// ---- publish and update

TEST(ClientTest, AnUpdateMovesTheBytesThatWerePublished) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  trainer.shard.FillWith(7);
  ASSERT_OK(trainer.PublishAndWait(57, {.attributes = {{"optimizer", "step 570"}}}));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.moved());
  EXPECT_TRUE(rollout.shard.Equals(trainer.shard));
  EXPECT_EQ(result.version().label.text(), "57");
  EXPECT_EQ(result.version().attributes, (Attributes{{"optimizer", "step 570"}}));
  EXPECT_EQ(rollout.buffer.version(), result.version());
  EXPECT_FALSE(rollout.buffer.undefined());
}

TEST(ClientTest, AResultSaysFromWhomTheBytesCameAndWhereTheTimeWent) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  const absl::Time begin = MonotonicNow();
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  const absl::Duration took = MonotonicNow() - begin;
  ASSERT_EQ(result.sources.size(), 1u);
  EXPECT_EQ(result.sources[0].name, "trainer/0");
  EXPECT_EQ(result.sources[0].transport, "same_host");
  EXPECT_THAT(result.sources[0].peer, StartsWith("same_host "));
  EXPECT_EQ(result.sources[0].passed_over, "");
  EXPECT_EQ(result.sources[0].bytes, rollout.buffer.bytes());
  EXPECT_EQ(result.sources[0].failure, "");
  EXPECT_EQ(result.bytes_received, rollout.buffer.bytes());
  // Requests and frames; no second copy of the weights.
  EXPECT_GT(result.peak_extra_bytes, 0u);
  EXPECT_LT(result.peak_extra_bytes, rollout.buffer.bytes() / 2);
  EXPECT_EQ(result.reroutes, 0u);
  EXPECT_GT(result.transfer, absl::ZeroDuration());
  EXPECT_LE(result.stall(), took);
  // The reader's last word of what has landed comes after the update has ended.
  ASSERT_OK(trainer.buffer.Unpublish());
  EXPECT_EQ(trainer.buffer.bytes_sent(), rollout.buffer.bytes());
}

TEST(ClientTest, EachVersionReplacesTheOneBefore) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  VersionSequence last;
  for (int64_t step = 1; step <= 3; ++step) {
    trainer.shard.FillWith(step);
    ASSERT_OK(trainer.PublishAndWait(step));
    ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
    EXPECT_TRUE(result.moved());
    EXPECT_GT(result.version().sequence, last);
    last = result.version().sequence;
    EXPECT_TRUE(rollout.shard.HasContentOf(step)) << step;
    ASSERT_OK(trainer.buffer.Unpublish());
  }
}

// Only the segments that the changed tensor touches move. The tensor begins and ends within a
// segment, so up to two segments' worth of its neighbours comes along.
TEST(ClientTest, OfAVersionThatDiffersInOneTensorOnlyThatTensorMoves) {
  constexpr size_t kTensors = 100, kTensorBytes = 1'000'000;
  const RegisterOptions segments{.segment_bytes = 16'384};
  TestServer server;
  Worker trainer =
      Worker::Make(Rank(server, "trainer"), TestShard::Of(kTensors, kTensorBytes), segments);
  Worker rollout =
      Worker::Make(Rank(server, "rollout"), TestShard::Of(kTensors, kTensorBytes), segments);
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult first, rollout.buffer.Update(Latest()));
  EXPECT_EQ(first.bytes_received, kTensors * kTensorBytes);
  EXPECT_EQ(first.bytes_unchanged, 0u);
  ASSERT_OK(trainer.buffer.Unpublish());
  char* const changed = static_cast<char*>(trainer.shard.tensors[42].data);
  for (size_t at = 0; at < kTensorBytes; ++at) changed[at] ^= 1;
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(const UpdateResult second, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(second.moved());
  EXPECT_TRUE(rollout.shard.Equals(trainer.shard));
  EXPECT_LE(second.bytes_received, kTensorBytes * 105 / 100);
  EXPECT_EQ(second.bytes_received + second.bytes_unchanged, kTensors * kTensorBytes);
}

TEST(ClientTest, AVersionOfTheSameBytesMovesWithoutAny) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(const UpdateResult second, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(second.moved());
  EXPECT_EQ(second.bytes_received, 0u);
  EXPECT_EQ(second.bytes_unchanged, rollout.buffer.bytes());
  // It serves what it holds under the new version.
  ASSERT_OK(trainer.buffer.Unpublish());
  Worker other = Worker::Make(server, "other");
  ASSERT_OK_AND_ASSIGN(const UpdateResult third, other.buffer.Update(Latest()));
  EXPECT_EQ(third.version(), second.version());
  EXPECT_TRUE(other.shard.Equals(rollout.shard));
}

// A buffer that its owner may have written since is received whole, whatever its earlier sums say.
TEST(ClientTest, ABufferThatWasWritableIsFilledWhole) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK(rollout.buffer.Unpublish());
  rollout.shard.FillWith(9);
  ASSERT_OK_AND_ASSIGN(const UpdateResult again, rollout.buffer.Update(Latest()));
  EXPECT_EQ(again.bytes_unchanged, 0u);
  EXPECT_TRUE(rollout.shard.Equals(trainer.shard));
}

TEST(ClientTest, WithNothingPublishedAnUpdateIsNotAvailableAndTouchesNothing) {
  TestServer server;
  Worker rollout = Worker::Make(server, "rollout");
  rollout.shard.FillWith(3);
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.not_available());
  EXPECT_EQ(result.reason, NotAvailableReason::kNotPublished);
  EXPECT_TRUE(rollout.shard.HasContentOf(3));
}

TEST(ClientTest, AnUnknownLabelIsNotAvailable) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Label("step-9")));
  EXPECT_TRUE(result.not_available());
  EXPECT_EQ(result.reason, NotAvailableReason::kNotPublished);
}

TEST(ClientTest, WhoHasTheVersionAlreadyIsToldSo) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK_AND_ASSIGN(const UpdateResult again, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(again.already_there());
  EXPECT_EQ(again.bytes_received, 0u);
}

TEST(ClientTest, AVersionOlderThanTheFloorIsNotTaken) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const PublishResult published, trainer.buffer.AwaitPublished());
  UpdateOptions options;
  options.floor = VersionSequence(published.version.sequence.value + 1);
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest(), options));
  EXPECT_TRUE(result.not_available());
  EXPECT_EQ(result.reason, NotAvailableReason::kBehindFloor);
}

class PublishTimeTest : public ::testing::TestWithParam<size_t> {};

TEST_P(PublishTimeTest, PublishReturnsWithinAMillisecondWhateverTheSize) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard::Of(64, GetParam()));
  absl::Duration fastest = absl::InfiniteDuration();  // the machine may be busy once or twice
  for (int64_t step = 1; step <= 5; ++step) {
    const absl::Time begin = MonotonicNow();
    ASSERT_OK(trainer.buffer.Publish(step));
    fastest = std::min(fastest, MonotonicNow() - begin);
    ASSERT_OK(trainer.buffer.AwaitPublished().status());
    ASSERT_OK(trainer.buffer.Unpublish());
  }
  EXPECT_LE(fastest, absl::Milliseconds(1));
}

INSTANTIATE_TEST_SUITE_P(BytesOfEachTensor, PublishTimeTest,
                         ::testing::Values(size_t{1} << 16, size_t{1} << 20, size_t{1} << 22));

TEST(ClientTest, APublicationIsSealedInTheBackground) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(20'000'000));
  ASSERT_OK(trainer.buffer.Publish(1));
  ASSERT_OK(trainer.buffer.AwaitSealed(kPatience));
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  bool sealed = false;  // the root is on its way, on a stream of its own
  for (const absl::Time deadline = MonotonicNow() + kPatience;
       !sealed && MonotonicNow() < deadline;) {
    ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
    sealed = catalog.models.at(0).versions.at(0).sealed;
  }
  EXPECT_TRUE(sealed);
}

TEST(ClientTest, WithoutChecksumsBytesMoveAllTheSame) {
  TestServer server;
  RegisterOptions unchecked;
  unchecked.checksums = false;
  Worker trainer = Worker::Make(Rank(server, "trainer"), TestShard(), unchecked);
  Worker rollout = Worker::Make(Rank(server, "rollout"), TestShard(), unchecked);
  trainer.shard.FillWith(5);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.moved());
  EXPECT_TRUE(rollout.shard.HasContentOf(5));
}

TEST(ClientTest, AliasesMoveOnce) {
  TestServer server;
  const auto tied = [] {
    TestShard shard;
    Tensor head = shard.tensors[0];
    head.name = "lm_head";
    shard.tensors.push_back(head);
    return shard;
  };
  Worker trainer = Worker::Make(server, "trainer", tied());
  Worker rollout = Worker::Make(server, "rollout", tied());
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_EQ(result.bytes_received, 300'000u + 66 + 4 + 5005);
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
}

TEST(ClientTest, AShardOfNothingButEmptyTensorsMoves) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard::Of(3, 0));
  Worker rollout = Worker::Make(server, "rollout", TestShard::Of(3, 0));
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.moved());
  EXPECT_EQ(result.bytes_received, 0u);
}

TEST(ClientTest, SixtyOneThousandTensorsTakeLittleControlTraffic) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard::Of(61'000, 24));
  Worker rollout = Worker::Make(server, "rollout", TestShard::Of(61'000, 24));
  for (int64_t step = 1; step <= 3; ++step) {
    const uint64_t publisher_before = trainer.client->control_bytes();
    const uint64_t reader_before = rollout.client->control_bytes();
    trainer.shard.FillWith(step);
    ASSERT_OK(trainer.PublishAndWait(step));
    ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
    EXPECT_TRUE(result.moved());
    EXPECT_TRUE(rollout.shard.HasContentOf(step));
    ASSERT_OK(trainer.buffer.Unpublish());
    EXPECT_LE(trainer.client->control_bytes() - publisher_before, 64u << 10) << step;
    EXPECT_LE(rollout.client->control_bytes() - reader_before, 64u << 10) << step;
  }
}

TEST(ClientTest, ALayoutCrossesOncePerDigest) {
  TestServer server;
  Worker first = Worker::Make(server, "trainer", TestShard::Of(2'000, 8));
  const uint64_t with_layout = first.client->control_bytes();
  Worker second = Worker::Make(server, "rollout", TestShard::Of(2'000, 8));
  EXPECT_GT(with_layout, 20'000u);
  EXPECT_LT(second.client->control_bytes(), 4'000u);
}

}  // namespace
}  // namespace th
