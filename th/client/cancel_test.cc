// Calls that are cancelled from another thread end as documented, and leave nothing behind.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Label;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

// Longer than any test may take: who is not cancelled fails by the test's own limit.
constexpr absl::Duration kForever = absl::Hours(1);
constexpr uint64_t kRoom = uint64_t{64} << 20;

// Runs a call on a thread of its own, under a cancellation.
class Cancellable {
 public:
  explicit Cancellable(std::function<absl::Status()> call)
      : thread_([this, call = std::move(call)] {
          const CancellationScope scope(&cancellation_);
          status_ = call();
        }) {}
  ~Cancellable() {
    if (thread_.joinable()) (void)Cancel();
  }
  // Cancels the call; its status then.
  absl::Status Cancel() {
    cancellation_.Cancel();
    thread_.join();
    return status_;
  }

 private:
  Cancellation cancellation_;
  absl::Status status_;
  std::thread thread_;
};

class CancelTest : public ::testing::Test {
 protected:
  Worker SlowTrainer() {
    Worker trainer = Worker::Make(server_, "trainer", TestShard(kSlowBytes), kSlowUplink);
    trainer.shard.FillWith(1);
    EXPECT_OK(trainer.PublishAndWait(1));
    return trainer;
  }
  Worker Rollout(uint64_t staging = 0) {
    ClientOptions options = Rank(server_, "rollout");
    options.staging_limit_bytes = staging;
    options.uplink_bytes_per_second = kSlowUplink;  // one data plane for all of the process
    options.transports = {"tcp"};
    Worker rollout = Worker::Make(options, TestShard(kSlowBytes));
    rollout.shard.FillWith(7);
    return rollout;
  }
  // Tells when bytes have come.
  std::function<void(const UpdateProgress&)> Watch() {
    return [this](const UpdateProgress& progress) {
      if (progress.bytes_received > 0 && !under_way_.HasBeenNotified()) under_way_.Notify();
    };
  }

  TestServer server_;
  absl::Notification under_way_;
};

TEST_F(CancelTest, AnUpdateThatHasWrittenLeavesTheBufferUndefinedAndCanBeMadeAgain) {
  const Worker trainer = SlowTrainer();
  Worker rollout = Rollout();
  Cancellable update([&] {
    return rollout.buffer.Update(Latest(), {.timeout = kForever, .on_progress = Watch()}).status();
  });
  under_way_.WaitForNotification();
  EXPECT_THAT(update.Cancel(), StatusIs(absl::StatusCode::kCancelled,
                                        ::testing::AllOf(HasSubstr("UPDATE_FAILED"),
                                                         HasSubstr("buffer undefined"))));
  EXPECT_TRUE(rollout.buffer.undefined());
  EXPECT_OK(rollout.client->membership());
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard.HasContentOf(1));
}

TEST_F(CancelTest, AnApplyThatWaitsForAnotherRankLeavesTheBufferAndWhatIsStaged) {
  Worker trainer = Worker::Make(server_, "trainer");
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  std::vector<Worker> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ClientOptions options = Rank(server_, "rollout", rank, 2);
    options.staging_limit_bytes = kRoom;
    ranks.push_back(Worker::Make(options));
    ranks.back().shard.FillWith(7);
  }
  absl::Notification staged;
  ranks[1].buffer.StageAsync(Latest(), {},
                             [&](const absl::StatusOr<UpdateResult>&) { staged.Notify(); });
  ASSERT_OK(ranks[0].buffer.Stage(Latest()).status());
  staged.WaitForNotification();
  Cancellable apply([&] { return ranks[0].buffer.Apply({.timeout = kForever}).status(); });
  EXPECT_THAT(apply.Cancel(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(ranks[0].buffer.undefined());
  EXPECT_TRUE(ranks[0].shard.HasContentOf(7));
  EXPECT_EQ(ranks[0].buffer.staged().label.text(), "1");
}

TEST_F(CancelTest, AStageLeavesNothingStaged) {
  const Worker trainer = SlowTrainer();
  Worker rollout = Rollout(kRoom);
  Cancellable stage([&] {
    return rollout.buffer.Stage(Latest(), {.timeout = kForever, .on_progress = Watch()}).status();
  });
  under_way_.WaitForNotification();
  EXPECT_THAT(stage.Cancel(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("nothing is staged")));
  EXPECT_EQ(rollout.buffer.staged().sequence, VersionSequence());
  EXPECT_TRUE(rollout.shard.HasContentOf(7));
}

TEST_F(CancelTest, AnUpdateThatIsStagedFirstLeavesTheBufferAsItWas) {
  const Worker trainer = SlowTrainer();
  Worker rollout = Rollout(kRoom);
  Cancellable update([&] {
    return rollout.buffer.Update(Latest(), {.timeout = kForever, .on_progress = Watch()}).status();
  });
  under_way_.WaitForNotification();
  EXPECT_THAT(update.Cancel(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_EQ(rollout.buffer.staged().sequence, VersionSequence());
  EXPECT_TRUE(rollout.shard.HasContentOf(7));
}

TEST_F(CancelTest, AReceiveSaysWhatWasTaken) {
  const Worker trainer = SlowTrainer();
  const Worker rollout = Rollout();
  Cancellable receive([&] {
    return rollout.client
        ->Receive(Latest(), {.limit_bytes = uint64_t{8} << 20, .timeout = kForever},
                  [&](const ReceivedSlice&) {
                    if (!under_way_.HasBeenNotified()) under_way_.Notify();
                    return absl::OkStatus();
                  })
        .status();
  });
  under_way_.WaitForNotification();
  EXPECT_THAT(receive.Cancel(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("were taken")));
}

TEST_F(CancelTest, OnlyTheWaitForAPublishEnds) {
  Worker rank = Worker::Make(Rank(server_, "trainer", 0, 2));
  Worker other = Worker::Make(Rank(server_, "trainer", 1, 2));
  ASSERT_OK(rank.buffer.Publish(1, {.timeout = kForever}));
  Cancellable wait([&] { return rank.buffer.AwaitPublished().status(); });
  EXPECT_THAT(wait.Cancel(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("goes on")));
  ASSERT_OK(other.PublishAndWait(1));
  EXPECT_OK(rank.buffer.AwaitPublished().status());
}

TEST_F(CancelTest, NothingIsPublishedOfASnapshot) {
  ClientOptions options = Rank(server_, "trainer");
  options.snapshot_limit_bytes = kRoom;
  Worker trainer = Worker::Make(options);
  Cancellation cancelled;
  cancelled.Cancel();
  {
    const CancellationScope scope(&cancelled);
    EXPECT_THAT(trainer.buffer.Publish(1, {.snapshot = Snapshot::kHost}),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("nothing was published")));
  }
  EXPECT_EQ(trainer.buffer.snapshot_bytes(), 0u);
  EXPECT_OK(trainer.PublishAndWait(1, {.snapshot = Snapshot::kHost}));
}

TEST_F(CancelTest, AWaitForAVersionEnds) {
  const Worker worker = Worker::Make(server_, "trainer");
  Cancellable wait([&] { return worker.client->WaitFor(Label("never"), kForever).status(); });
  EXPECT_THAT(wait.Cancel(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(CancelTest, AJoinAndAConnectionEndWithoutAServer) {
  ClientOptions options = Rank(server_, "trainer");
  options.join_timeout = kForever;
  server_.Stop();
  Cancellable join([&] { return Client::Join(options).status(); });
  EXPECT_THAT(join.Cancel(), StatusIs(absl::StatusCode::kCancelled));
  Cancellable connect([&] {
    return Controller::Connect({.server = options.server, .connect_timeout = kForever}).status();
  });
  EXPECT_THAT(connect.Cancel(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(CancelTest, AnUnpublishIsNotCancelled) {
  Worker trainer = Worker::Make(server_, "trainer");
  ASSERT_OK(trainer.PublishAndWait(1));
  Cancellation cancelled;
  cancelled.Cancel();
  const CancellationScope scope(&cancelled);
  EXPECT_OK(trainer.buffer.Unpublish());
  EXPECT_EQ(trainer.buffer.version().sequence, VersionSequence());
}

}  // namespace
}  // namespace th
