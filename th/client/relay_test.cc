// Relays, sources that leave, buffers that are taken back: several workers in one process.
#include "th/client/client.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::BackgroundUpdate;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Message;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

// ---- relays

TEST(RelayTest, AReaderIsASourceForTheNextOne) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker one = Worker::Make(server, "rollout-1");
  Worker two = Worker::Make(server, "rollout-2");
  trainer.shard.FillWith(4);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(one.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(5);  // the caller's again
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, two.buffer.Update(Latest()));
  ASSERT_TRUE(result.moved());
  ASSERT_EQ(result.sources.size(), 1u);
  EXPECT_EQ(result.sources[0].name, "rollout-1/0");
  EXPECT_TRUE(two.shard.HasContentOf(4));
}

// Its sums were the publisher's to make.
TEST(RelayTest, AReaderThatWasASourceIsTakenBackWithoutWaitingForSums) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker one = Worker::Make(server, "rollout-1");
  Worker two = Worker::Make(server, "rollout-2");
  trainer.shard.FillWith(4);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(one.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(two.buffer.Update(Latest()).status());
  const absl::Time give_up = MonotonicNow() + kPatience;  // its reader says so a moment later
  while (one.buffer.bytes_sent() == 0 && MonotonicNow() < give_up) std::this_thread::yield();
  ASSERT_GT(one.buffer.bytes_sent(), 0u);
  const absl::Time start = MonotonicNow();
  ASSERT_OK(one.buffer.Unpublish({.drain_timeout = kPatience}));
  EXPECT_LT(MonotonicNow() - start, kPatience / 2);
}

TEST(RelayTest, AReaderThatIsStillFillingIsASource) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker one = Worker::Make(server, "rollout-1", TestShard(kSlowBytes), kSlowUplink);
  Worker two = Worker::Make(server, "rollout-2", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(9);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate first(one);
  ASSERT_TRUE(first.under_way.WaitForNotificationWithTimeout(kPatience));
  BackgroundUpdate second(two);
  ASSERT_OK(second.Wait().status());
  ASSERT_OK(first.Wait().status());
  EXPECT_EQ(second.result->sources[0].name, "rollout-1/0");
  EXPECT_TRUE(one.shard.HasContentOf(9));
  EXPECT_TRUE(two.shard.HasContentOf(9));
  EXPECT_LE(trainer.buffer.bytes_sent(), trainer.buffer.bytes() * 3 / 2);
}

TEST(RelayTest, AReaderGoesOnFromAnotherSourceWhenItsOwnLeaves) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker spare = Worker::Make(server, "trainer-2", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(3);
  spare.shard.FillWith(3);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(spare.PublishAndWait(1));
  std::string source;
  UpdateOptions options;
  options.on_progress = [&](const UpdateProgress& progress) {
    if (source.empty()) source = progress.source;
  };
  BackgroundUpdate update(rollout, options);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  (source == "trainer/0" ? trainer : spare).client.reset();
  ASSERT_OK(update.Wait().status());
  EXPECT_GE(update.result->reroutes, 1u);
  EXPECT_GE(update.result->sources.size(), 2u);
  EXPECT_GT(update.result->rerouted_bytes, 0u);
  EXPECT_TRUE(rollout.shard.HasContentOf(3));
}

TEST(RelayTest, WhatAnUpdateIsReadOverIsListedWhileItIsUnderWay) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  trainer.shard.FillWith(3);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout);
  std::string listed_over;
  while (!update.done.HasBeenNotified() && listed_over.empty()) {
    ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
    for (const CatalogReplica& replica : catalog.models.at(0).versions.at(0).replicas) {
      if (replica.state == "filling") listed_over = replica.ranks.at(0).transports.ToString();
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(listed_over, "tcp");
  ASSERT_OK(update.Wait().status());
}

TEST(RelayTest, ABufferThatIsBeingUpdatedDoesNotFallAsleep) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(3);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(rollout.buffer.Sleep(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(rollout.buffer.asleep());
  ASSERT_OK(update.Wait().status());
  EXPECT_TRUE(rollout.shard.HasContentOf(3));
  EXPECT_OK(rollout.buffer.Sleep()) << "it holds a version, which it gives up";
  EXPECT_TRUE(rollout.buffer.asleep());
}

// ---- taking back

TEST(RelayTest, UnpublishLetsAReaderFinish) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(6);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  ASSERT_OK(trainer.buffer.Unpublish({.drain_timeout = kPatience}));
  trainer.shard.FillWith(7);  // as soon as it may be written
  ASSERT_OK(update.Wait().status());
  EXPECT_TRUE(rollout.shard.HasContentOf(6));
}

TEST(RelayTest, AReaderThatIsCutIsUndefinedUntilAGoodUpdate) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout, {.timeout = absl::Seconds(3)});
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  const absl::Time begin = MonotonicNow();
  ASSERT_OK(trainer.buffer.Unpublish({.drain_timeout = absl::Milliseconds(100)}));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(2));
  EXPECT_FALSE(update.Wait().ok());
  EXPECT_TRUE(rollout.buffer.undefined());
  EXPECT_THAT(Message(update.result.status()),
              AllOf(HasSubstr("rank=rollout/0"), HasSubstr("buffer undefined, do not serve")));
  EXPECT_THAT(rollout.buffer.Publish(5), StatusIs(absl::StatusCode::kFailedPrecondition));

  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(const UpdateResult healed, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(healed.moved());
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
}

TEST(RelayTest, AnUndefinedBufferIsLeftByReset) {
  TestServer server;
  TestShard moved(kSlowBytes);
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout, {.timeout = absl::Seconds(2)});
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  trainer.client.reset();
  ASSERT_FALSE(update.Wait().ok());
  ASSERT_TRUE(rollout.buffer.undefined());
  const absl::Status rebound = rollout.buffer.Rebind(moved.tensors);
  EXPECT_THAT(rebound, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Message(rebound), HasSubstr("reset it first"));
  EXPECT_TRUE(rollout.buffer.undefined());
  ASSERT_OK(rollout.buffer.Reset());
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_OK(rollout.buffer.Rebind(moved.tensors));
  EXPECT_OK(rollout.PublishAndWait(2));
}

TEST(RelayTest, ABufferThatIsDestroyedIsGoneForReaders) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  trainer.buffer = WeightBuffer();
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  // The server hears of it on a stream of its own.
  const absl::Time deadline = MonotonicNow() + kPatience;
  while (MonotonicNow() < deadline) {
    ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
    if (catalog.models[0].versions[0].replicas.empty()) break;
  }
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.not_available());
}

TEST(RelayTest, ABufferMayBeDestroyedWhileItFillsAndWhileItServes) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  const absl::Time begin = MonotonicNow();
  trainer.buffer = WeightBuffer();
  trainer.shard.FillWith(8);  // nobody reads it any more
  rollout.buffer = WeightBuffer();
  rollout.shard.FillWith(9);  // nobody writes it any more
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5));
  EXPECT_FALSE(update.Wait().ok());
  EXPECT_TRUE(rollout.shard.HasContentOf(9));
}

// The callback may free the memory. The buffer's own reader is let finish meanwhile, which takes a
// while.
TEST(RelayTest, NothingLandsInABufferOnceItsUpdateHasEnded) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker one = Worker::Make(server, "rollout-1", TestShard(kSlowBytes), kSlowUplink);
  Worker two = Worker::Make(server, "rollout-2", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(9);
  ASSERT_OK(trainer.PublishAndWait(1));
  const auto memory = [&one] {
    std::vector<std::vector<char>> copy;
    for (size_t i = 0; i < one.shard.tensors.size(); ++i) copy.push_back(one.shard.storage(i));
    return copy;
  };
  std::vector<std::vector<char>> when_done;
  absl::Notification under_way, done;
  UpdateOptions options;
  options.on_progress = [&](const UpdateProgress& progress) {
    if (progress.bytes_received > 0 && !under_way.HasBeenNotified()) under_way.Notify();
  };
  one.buffer.UpdateAsync(Latest(), options, [&](const absl::StatusOr<UpdateResult>& result) {
    EXPECT_THAT(result.status(), StatusIs(absl::StatusCode::kCancelled));
    when_done = memory();
    done.Notify();
  });
  ASSERT_TRUE(under_way.WaitForNotificationWithTimeout(kPatience));
  BackgroundUpdate second(two);
  ASSERT_TRUE(second.under_way.WaitForNotificationWithTimeout(kPatience));
  one.buffer = WeightBuffer();
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(when_done == memory()) << "something was written after the end";
  second.Wait();
}

}  // namespace
}  // namespace th
