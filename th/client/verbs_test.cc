// Verbs in the wrong state, bad requests, rebinding, asynchronous calls.
#include "th/client/client.h"

#include <sys/mman.h>

#include <string>
#include <thread>

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
using ::th::testing::IsOk;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Message;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

// ---- verbs in the wrong state

TEST(VerbsTest, VerbsInTheWrongStateAreRefused) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  EXPECT_THAT(trainer.buffer.Unpublish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(trainer.buffer.AwaitPublished(), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_THAT(trainer.buffer.Publish(2), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(trainer.buffer.Reset(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(trainer.buffer.Rebind(trainer.shard.tensors),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(trainer.buffer.Unpublish());
}

TEST(VerbsTest, AnEmptyHandleRefusesAllCalls) {
  WeightBuffer buffer;
  EXPECT_THAT(buffer.Publish(1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Update(Latest()), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Unpublish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Reset(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(buffer.bytes(), 0u);
  EXPECT_FALSE(buffer.undefined());
}

TEST(VerbsTest, BadRequestsAreRefusedWithTheReason) {
  TestServer server;
  Worker worker = Worker::Make(server, "trainer");
  EXPECT_THAT(worker.buffer.Publish("latest"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.buffer.Publish(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.buffer.Publish(-1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      worker.buffer.Publish(1, {.attributes = {{"big", std::string(kMaxAttributesBytes, 'x')}}}),
      StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.buffer.Publish(1, {.component = "lora/x"}),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(worker.buffer.Update(Latest(), {.form = "fp8"}),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(worker.buffer.Update(Latest(), {.timeout = absl::ZeroDuration()}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(worker.PublishAndWait(1));
}

TEST(VerbsTest, ABuffersNameIsItsOwn) {
  TestServer server;
  Worker worker = Worker::Make(server, "trainer");
  TestShard other;
  EXPECT_THAT(worker.client->Register(other.tensors), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.client->Register(other.tensors, {.name = "draft"}), IsOk());
}

TEST(VerbsTest, ABuffersNameIsFreeWhenTheBufferIsGone) {
  TestServer server;
  Worker worker = Worker::Make(server, "trainer");
  worker.buffer = WeightBuffer();
  EXPECT_THAT(worker.client->Register(worker.shard.tensors), IsOk());
}

TEST(VerbsTest, BadTensorsAreRefusedByName) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  TestShard shard;
  shard.tensors[2].data = nullptr;
  const auto buffer = client->Register(shard.tensors);
  EXPECT_THAT(buffer, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Message(buffer.status()), HasSubstr("'norm'"));
}

TEST(VerbsTest, AShardThatNobodyHoldsNamesTheFirstDifference) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(1000));
  Worker rollout = Worker::Make(server, "rollout", TestShard(2000));
  ASSERT_OK(trainer.PublishAndWait(1));
  const auto result = rollout.buffer.Update(Latest(), {.timeout = absl::Seconds(5)});
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(Message(result.status()), HasSubstr("embed"));
  EXPECT_FALSE(rollout.buffer.undefined());
}

TEST(VerbsTest, OtherContentUnderAUsedLabelIsRefused) {
  TestServer server;
  Worker one = Worker::Make(server, "trainer-1");
  Worker two = Worker::Make(server, "trainer-2");
  one.shard.FillWith(1);
  two.shard.FillWith(2);
  ASSERT_OK(one.PublishAndWait(1));
  ASSERT_OK(one.buffer.AwaitSealed(kPatience));
  ASSERT_OK(two.buffer.Publish(1));
  (void)two.buffer.AwaitSealed(kPatience);
  const absl::Time deadline = MonotonicNow() + kPatience;
  while (!two.buffer.version().label.empty() && MonotonicNow() < deadline)
    std::this_thread::yield();
  EXPECT_THAT(two.buffer.AwaitSealed(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("PUBLICATION_LOST")));
  EXPECT_THAT(Message(two.buffer.Unpublish()), HasSubstr("PUBLICATION_LOST"));
  EXPECT_OK(one.buffer.Unpublish());
}

// ---- rebind

TEST(VerbsTest, ARebindChangesWhereTheBytesLie) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  TestShard moved;
  moved.FillWith(4);
  ASSERT_OK(trainer.buffer.Rebind(moved.tensors));
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard.HasContentOf(4));
  ASSERT_OK(trainer.buffer.Unpublish());
  EXPECT_OK(trainer.buffer.Rebind(trainer.shard.tensors));
}

TEST(VerbsTest, ARebindToOtherTensorsIsRefusedByName) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(1000));
  TestShard other(2000);
  const absl::Status status = trainer.buffer.Rebind(other.tensors);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Message(status), HasSubstr("embed"));
}

// ---- asynchronous calls

TEST(VerbsTest, ProgressRisesAndEndsBeforeTheResult) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  auto last = std::make_unique<UpdateProgress>();
  int calls = 0;
  UpdateOptions options;
  options.on_progress = [&](const UpdateProgress& progress) {
    EXPECT_GE(progress.bytes_received, last->bytes_received);
    *last = progress;
    ++calls;
  };
  ASSERT_OK(rollout.buffer.Update(Latest(), options).status());
  EXPECT_GE(calls, 3);
  EXPECT_LE(calls, 200);
  EXPECT_EQ(last->version.label.text(), "1");
  EXPECT_EQ(last->bytes_total, rollout.buffer.bytes());
  EXPECT_EQ(last->transport, "tcp");
  last.reset();  // a late call would crash here
}

TEST(VerbsTest, UnpublishMayBeAwaitedByACallback) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  ASSERT_OK(trainer.PublishAndWait(1));
  absl::Notification done;
  absl::Status result = absl::UnknownError("not yet");
  trainer.buffer.UnpublishAsync({}, [&](absl::Status status) {
    result = status;
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_OK(result);
}

// ---- waiting for a version

TEST(VerbsTest, ARankWaitsForAVersionUntilItIsPublished) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  absl::StatusOr<VersionInfo> found = absl::UnknownError("not yet");
  std::thread waiter([&] { found = rollout.client->WaitFor(testing::Label("7"), kPatience); });
  EXPECT_OK(trainer.PublishAndWait(7));
  waiter.join();
  ASSERT_OK(found.status());
  EXPECT_EQ(found->label.text(), "7");
}

TEST(VerbsTest, AWaitInVainSaysWhy) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK(trainer.client->RollBack(testing::Label("1")).status());
  EXPECT_THAT(trainer.client->WaitFor(testing::Label("3"), absl::Milliseconds(50)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("is not published")));
  EXPECT_THAT(trainer.client->WaitFor(testing::Label("2"), absl::Milliseconds(50)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("withdrawn")));
}

TEST(VerbsTest, ARefusedAsynchronousCallTellsItsCallbackToo) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  absl::Notification done;
  absl::Status result;
  const std::thread::id caller = std::this_thread::get_id();
  trainer.buffer.UnpublishAsync({}, [&](absl::Status status) {
    EXPECT_NE(std::this_thread::get_id(), caller);
    result = status;
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// As a CUDA pointer is without the driver, and memory that was freed.
TEST(VerbsTest, MemoryThatCannotBeReadIsRefusedWithTheTensorsName) {
  constexpr size_t kPage = 4096;
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  void* const pages =
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  Tensor tensor;
  tensor.name = "layers.7.weight";
  tensor.dtype = DType::kU8;
  tensor.shape = {2 * kPage};
  tensor.data = pages;
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + kPage, kPage, PROT_NONE), 0);
  EXPECT_THAT(trainer.client->Register({tensor}, {.name = "other"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("layers.7.weight"), HasSubstr("PROT_NONE"))));
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + kPage, kPage, PROT_READ), 0);
  auto registered = trainer.client->Register({tensor}, {.name = "other"});
  EXPECT_OK(registered);
  ASSERT_EQ(munmap(static_cast<char*>(pages) + kPage, kPage), 0);
  EXPECT_THAT(registered->Rebind({tensor}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("layers.7.weight"), HasSubstr("nothing is mapped"))));
  registered = absl::CancelledError("the buffer goes before its memory");
  munmap(pages, kPage);
}

}  // namespace
}  // namespace th
