// Publications that are served from a copy, so that the caller writes its tensors at once.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::BackgroundUpdate;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

Worker Trainer(const TestServer& server, uint64_t room, TestShard shard = TestShard(),
               uint64_t uplink = 0) {
  ClientOptions options = Rank(server, "trainer");
  options.snapshot_limit_bytes = room;
  options.uplink_bytes_per_second = uplink;
  if (uplink > 0) options.transports = {"tcp"};  // which the cap holds back
  return Worker::Make(options, std::move(shard));
}

constexpr uint64_t kRoom = uint64_t{64} << 20;

TEST(SnapshotTest, TheTensorsAreWrittenAtOnceAndNoReaderNotices) {
  TestServer server;
  Worker trainer = Trainer(server, kRoom, TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.buffer.Publish(1, {.snapshot = Snapshot::kHost}));
  trainer.shard.FillWith(2);  // before the server has heard of it, and before it is summed
  ASSERT_OK_AND_ASSIGN(const PublishResult published, trainer.buffer.AwaitPublished());
  EXPECT_EQ(published.snapshot_bytes, trainer.buffer.bytes());
  EXPECT_GT(published.snapshot, absl::ZeroDuration());
  BackgroundUpdate update(rollout);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  trainer.shard.FillWith(3);  // while it is read
  ASSERT_OK(update.Wait().status());
  EXPECT_TRUE(rollout.shard.HasContentOf(1));
  EXPECT_TRUE(trainer.shard.HasContentOf(3));
  EXPECT_EQ(update.result->corrupt_segments, 0u);
}

TEST(SnapshotTest, EachPublicationHasTheContentOfItsMoment) {
  TestServer server;
  // Room for one copy: the memory of each is that of the one before.
  Worker trainer = Trainer(server, 310'000);
  Worker rollout = Worker::Make(server, "rollout");
  for (int step = 1; step <= 4; ++step) {
    trainer.shard.FillWith(step);
    ASSERT_OK(trainer.buffer.Publish(step, {.snapshot = Snapshot::kHost})) << step;
    trainer.shard.FillWith(100 + step);
    ASSERT_OK(trainer.buffer.AwaitPublished().status()) << step;
    EXPECT_EQ(trainer.buffer.snapshot_bytes(), trainer.buffer.bytes());
    ASSERT_OK(rollout.buffer.Update(Latest()).status()) << step;
    EXPECT_TRUE(rollout.shard.HasContentOf(step)) << step;
    ASSERT_OK(trainer.buffer.Unpublish()) << step;
    EXPECT_EQ(trainer.buffer.snapshot_bytes(), 0u) << step;
  }
}

TEST(SnapshotTest, TheNextPublicationInPlaceIsOfTheTensorsThemselves) {
  TestServer server;
  Worker trainer = Trainer(server, kRoom);
  Worker rollout = Worker::Make(server, "rollout");
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
}

TEST(SnapshotTest, WithoutRoomItFailsAndNothingIsPublished) {
  TestServer server;
  Worker trainer = Trainer(server, /*room=*/1000);
  EXPECT_THAT(trainer.buffer.Publish(1, {.snapshot = Snapshot::kHost}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("snapshot_limit_bytes")));
  EXPECT_EQ(trainer.buffer.version().sequence, VersionSequence());
  EXPECT_OK(trainer.PublishAndWait(1)) << "in place it goes on";
}

TEST(SnapshotTest, WithoutRoomItGoesOnInPlaceWhereThatWasAsked) {
  TestServer server;
  Worker trainer = Trainer(server, /*room=*/0);
  Worker rollout = Worker::Make(server, "rollout");
  trainer.shard.FillWith(4);
  ASSERT_OK(trainer.buffer.Publish(1, {.snapshot = Snapshot::kHost, .snapshot_or_in_place = true}));
  ASSERT_OK_AND_ASSIGN(const PublishResult published, trainer.buffer.AwaitPublished());
  EXPECT_EQ(published.snapshot_bytes, 0u);
  EXPECT_EQ(trainer.buffer.snapshot_bytes(), 0u);
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard.HasContentOf(4));
}

TEST(SnapshotTest, WhatIsRefusedLeavesTheTensorsBound) {
  TestServer server;
  Worker trainer = Trainer(server, kRoom);
  EXPECT_FALSE(trainer.buffer.Publish("", {.snapshot = Snapshot::kHost}).ok());
  EXPECT_THAT(trainer.buffer.Publish(1, {.attributes = {{"k", std::string(2 << 20, 'x')}},
                                         .snapshot = Snapshot::kHost}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(trainer.buffer.snapshot_bytes(), 0u);
  ASSERT_OK(trainer.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
  EXPECT_THAT(trainer.buffer.Publish(2, {.snapshot = Snapshot::kHost}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(trainer.buffer.snapshot_bytes(), trainer.buffer.bytes()) << "the first is served still";
}

TEST(SnapshotTest, AnUpdateWaitsForTheUnpublish) {
  TestServer server;
  Worker trainer = Trainer(server, kRoom);
  Worker other = Worker::Make(server, "other");
  ASSERT_OK(trainer.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
  other.shard.FillWith(2);
  ASSERT_OK(other.PublishAndWait(2));
  EXPECT_THAT(trainer.buffer.Update(Latest()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unpublish first")));
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(trainer.buffer.Update(Latest()).status());
  EXPECT_TRUE(trainer.shard.HasContentOf(2)) << "it lands in the tensors";
}

TEST(SnapshotTest, TheServerListsIt) {
  TestServer server;
  Worker trainer = Trainer(server, kRoom);
  ASSERT_OK(trainer.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
  EXPECT_EQ(catalog.models[0].versions[0].replicas[0].ranks[0].snapshot_bytes,
            trainer.buffer.bytes());
}

}  // namespace
}  // namespace th
