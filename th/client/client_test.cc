// Publishing, updating, relaying, taking back: several workers in one process, over real sockets.
#include "th/client/client.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/clock.h"
#include "th/client/test_cluster.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::kPatience;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

VersionSelector Label(absl::string_view text) { return VersionLabel::Parse(text).value(); }

// One rank with one buffer. The order of the members is that of a caller's: buffers end first.
struct Worker {
  static Worker Make(const TestServer& server, std::string group, TestShard shard = TestShard(),
                     uint64_t uplink = 0) {
    ClientOptions options = Rank(server, std::move(group));
    options.uplink_bytes_per_second = uplink;
    return Make(options, std::move(shard));
  }
  static Worker Make(const ClientOptions& options, TestShard shard = TestShard(),
                     RegisterOptions registered = {}) {
    Worker worker{std::move(shard), nullptr, {}};
    auto client = Client::Join(options);
    EXPECT_OK(client.status());
    if (!client.ok()) return worker;
    worker.client = *std::move(client);
    auto buffer = worker.client->Register(worker.shard.tensors, registered);
    EXPECT_OK(buffer.status());
    if (buffer.ok()) worker.buffer = *std::move(buffer);
    return worker;
  }

  absl::Status PublishAndWait(int64_t step, PublishOptions options = {}) {
    TH_RETURN_IF_ERROR(buffer.Publish(step, std::move(options)));
    return buffer.AwaitPublished().status();
  }

  TestShard shard;
  std::unique_ptr<Client> client;
  WeightBuffer buffer;
};

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
  const absl::Time begin = SteadyNow();
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  const absl::Duration took = SteadyNow() - begin;
  ASSERT_EQ(result.sources.size(), 1u);
  EXPECT_EQ(result.sources[0].name, "trainer/0");
  EXPECT_EQ(result.sources[0].transport, "tcp");
  EXPECT_EQ(result.sources[0].peer, absl::StrCat("tcp ", trainer.client->data_endpoint()));
  EXPECT_EQ(result.sources[0].bytes, rollout.buffer.bytes());
  EXPECT_EQ(result.sources[0].failure, "");
  EXPECT_EQ(result.bytes_received, rollout.buffer.bytes());
  EXPECT_EQ(result.peak_extra_bytes, 0u);
  EXPECT_EQ(result.reroutes, 0u);
  EXPECT_GT(result.transfer, absl::ZeroDuration());
  EXPECT_LE(result.stall(), took);
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

TEST(ClientTest, PublishReturnsWithinAMillisecondWhateverTheSize) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard::Of(64, 1 << 20));
  absl::Duration fastest = absl::InfiniteDuration();  // the machine may be busy once or twice
  for (int64_t step = 1; step <= 5; ++step) {
    const absl::Time begin = SteadyNow();
    ASSERT_OK(trainer.buffer.Publish(step));
    fastest = std::min(fastest, SteadyNow() - begin);
    ASSERT_OK(trainer.buffer.AwaitPublished().status());
    ASSERT_OK(trainer.buffer.Unpublish());
  }
  EXPECT_LE(fastest, absl::Milliseconds(1));
}

TEST(ClientTest, APublicationIsSealedInTheBackground) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(20'000'000));
  ASSERT_OK(trainer.buffer.Publish(1));
  ASSERT_OK(trainer.buffer.AwaitSealed(kPatience));
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  bool sealed = false;  // the root is on its way, on a stream of its own
  for (const absl::Time deadline = SteadyNow() + kPatience; !sealed && SteadyNow() < deadline;) {
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

// ---- relays

TEST(ClientTest, AReaderIsASourceForTheNextOne) {
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

// Runs an update in the background and keeps its result.
class BackgroundUpdate {
 public:
  BackgroundUpdate(Worker& worker, UpdateOptions options = {}) {
    auto report = std::move(options.on_progress);
    options.on_progress = [this, report](const UpdateProgress& progress) {
      if (report) report(progress);
      if (progress.bytes_received > 0 && !under_way.HasBeenNotified()) under_way.Notify();
    };
    worker.buffer.UpdateAsync(Latest(), options, [this](absl::StatusOr<UpdateResult> updated) {
      result = std::move(updated);
      done.Notify();
    });
  }
  const absl::StatusOr<UpdateResult>& Wait() {
    if (!done.WaitForNotificationWithTimeout(kPatience)) {
      ADD_FAILURE() << "the update hangs";
      std::abort();  // it would write into what is gone
    }
    return result;
  }

  absl::Notification under_way;
  absl::Notification done;
  absl::StatusOr<UpdateResult> result = absl::UnknownError("not yet");
};

constexpr size_t kSlowBytes = 12'000'000;
constexpr uint64_t kSlowUplink = 8'000'000;  // one and a half seconds

TEST(ClientTest, AReaderThatIsStillFillingIsASource) {
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

TEST(ClientTest, AReaderGoesOnFromAnotherSourceWhenItsOwnLeaves) {
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

// ---- taking back

TEST(ClientTest, UnpublishLetsAReaderFinish) {
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

TEST(ClientTest, AReaderThatIsCutIsUndefinedUntilAGoodUpdate) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout, {.timeout = absl::Seconds(3)});
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  const absl::Time begin = SteadyNow();
  ASSERT_OK(trainer.buffer.Unpublish({.drain_timeout = absl::Milliseconds(100)}));
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(2));
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

TEST(ClientTest, AnUndefinedBufferIsLeftByReset) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout, {.timeout = absl::Seconds(2)});
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  trainer.client.reset();
  ASSERT_FALSE(update.Wait().ok());
  ASSERT_TRUE(rollout.buffer.undefined());
  ASSERT_OK(rollout.buffer.Reset());
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_OK(rollout.PublishAndWait(2));
}

TEST(ClientTest, ABufferThatIsDestroyedIsGoneForReaders) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer");
  Worker rollout = Worker::Make(server, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  trainer.buffer = WeightBuffer();
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  // The server hears of it on a stream of its own.
  const absl::Time deadline = SteadyNow() + kPatience;
  while (SteadyNow() < deadline) {
    ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
    if (catalog.models[0].versions[0].replicas.empty()) break;
  }
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(result.not_available());
}

TEST(ClientTest, ABufferMayBeDestroyedWhileItFillsAndWhileItServes) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Worker::Make(server, "rollout", TestShard(kSlowBytes), kSlowUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout);
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  const absl::Time begin = SteadyNow();
  trainer.buffer = WeightBuffer();
  trainer.shard.FillWith(8);  // nobody reads it any more
  rollout.buffer = WeightBuffer();
  rollout.shard.FillWith(9);  // nobody writes it any more
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(5));
  EXPECT_FALSE(update.Wait().ok());
  EXPECT_TRUE(rollout.shard.HasContentOf(9));
}

// ---- verbs in the wrong state

TEST(ClientTest, VerbsInTheWrongStateAreRefused) {
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

TEST(ClientTest, AnEmptyHandleRefusesAllCalls) {
  WeightBuffer buffer;
  EXPECT_THAT(buffer.Publish(1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Update(Latest()), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Unpublish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(buffer.Reset(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(buffer.bytes(), 0u);
  EXPECT_FALSE(buffer.undefined());
}

TEST(ClientTest, BadRequestsAreRefusedWithTheReason) {
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

TEST(ClientTest, ABuffersNameIsItsOwn) {
  TestServer server;
  Worker worker = Worker::Make(server, "trainer");
  TestShard other;
  EXPECT_THAT(worker.client->Register(other.tensors), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.client->Register(other.tensors, {.name = "draft"}), IsOk());
}

TEST(ClientTest, ABuffersNameIsFreeWhenTheBufferIsGone) {
  TestServer server;
  Worker worker = Worker::Make(server, "trainer");
  worker.buffer = WeightBuffer();
  EXPECT_THAT(worker.client->Register(worker.shard.tensors), IsOk());
}

TEST(ClientTest, BadTensorsAreRefusedByName) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  TestShard shard;
  shard.tensors[2].data = nullptr;
  const auto buffer = client->Register(shard.tensors);
  EXPECT_THAT(buffer, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Message(buffer.status()), HasSubstr("'norm'"));
}

TEST(ClientTest, AShardThatNobodyHoldsNamesTheFirstDifference) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(1000));
  Worker rollout = Worker::Make(server, "rollout", TestShard(2000));
  ASSERT_OK(trainer.PublishAndWait(1));
  const auto result = rollout.buffer.Update(Latest(), {.timeout = absl::Seconds(5)});
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(Message(result.status()), HasSubstr("embed"));
  EXPECT_FALSE(rollout.buffer.undefined());
}

TEST(ClientTest, OtherContentUnderAUsedLabelIsRefused) {
  TestServer server;
  Worker one = Worker::Make(server, "trainer-1");
  Worker two = Worker::Make(server, "trainer-2");
  one.shard.FillWith(1);
  two.shard.FillWith(2);
  ASSERT_OK(one.PublishAndWait(1));
  ASSERT_OK(one.buffer.AwaitSealed(kPatience));
  ASSERT_OK(two.buffer.Publish(1));
  (void)two.buffer.AwaitSealed(kPatience);
  const absl::Time deadline = SteadyNow() + kPatience;
  while (!two.buffer.version().label.empty() && SteadyNow() < deadline) std::this_thread::yield();
  EXPECT_THAT(Message(two.buffer.Unpublish()), HasSubstr("PUBLICATION_LOST"));
  EXPECT_OK(one.buffer.Unpublish());
}

// ---- rebind

TEST(ClientTest, ARebindChangesWhereTheBytesLie) {
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

TEST(ClientTest, ARebindToOtherTensorsIsRefusedByName) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(1000));
  TestShard other(2000);
  const absl::Status status = trainer.buffer.Rebind(other.tensors);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Message(status), HasSubstr("embed"));
}

// ---- asynchronous calls

TEST(ClientTest, ProgressRisesAndEndsBeforeTheResult) {
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

TEST(ClientTest, UnpublishMayBeAwaitedByACallback) {
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

TEST(ClientTest, ARefusedAsynchronousCallTellsItsCallbackToo) {
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

}  // namespace
}  // namespace th
