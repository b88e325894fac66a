// Versions that a group receives beside what it serves, and moves in later.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::AllCopiesGo;
using ::th::testing::BackgroundUpdate;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Label;
using ::th::testing::ListedCopies;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr uint64_t kRoom = uint64_t{64} << 20;

// Runs a call that takes a ResultCallback in the background and keeps its result.
class Background {
 public:
  explicit Background(const std::function<void(ResultCallback<UpdateResult>)>& start) {
    start([this](absl::StatusOr<UpdateResult> got) {
      result_ = std::move(got);
      done_.Notify();
    });
  }
  ~Background() { (void)Wait(); }
  const absl::StatusOr<UpdateResult>& Wait() {
    if (!done_.WaitForNotificationWithTimeout(kPatience)) {
      ADD_FAILURE() << "the call hangs";
      std::abort();  // it would write into what is gone
    }
    return result_;
  }

 private:
  absl::Notification done_;
  absl::StatusOr<UpdateResult> result_ = absl::UnknownError("not yet");
};

class StageAndApplyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto connected = Controller::Connect({server_.address(), "run", "model"});
    ASSERT_OK(connected.status());
    controller_ = *std::move(connected);
  }
  Worker Staging(std::string group, uint64_t room = kRoom, TestShard shard = TestShard(),
                 uint64_t uplink = 0) {
    ClientOptions options = Rank(server_, std::move(group));
    options.staging_limit_bytes = room;
    options.uplink_bytes_per_second = uplink;
    if (uplink > 0) options.transports = {"tcp"};  // which the cap holds back
    return Worker::Make(options, std::move(shard));
  }
  // Two ranks of "rollout" that hold version 1 of two ranks of "trainer", which publish version 2.
  void TwoRanksHoldOneOfTwo(uint64_t room_of_second) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trainers_.push_back(
          Worker::Make(Rank(server_, "trainer", rank, 2), TestShard(200'000 + rank)));
      ClientOptions options = Rank(server_, "rollout", rank, 2);
      options.staging_limit_bytes = rank == 0 ? kRoom : room_of_second;
      rollouts_.push_back(Worker::Make(options, TestShard(200'000 + rank)));
      trainers_.back().shard.FillWith(10 + rank);
    }
    OnAll(trainers_, [](Worker& worker) { return worker.PublishAndWait(1); });
    OnAll(rollouts_, [](Worker& worker) {
      return worker.buffer.Update(Latest(), {.in_place = true}).status();
    });
    OnAll(trainers_, [](Worker& worker) { return worker.buffer.Unpublish(); });
    for (uint32_t rank = 0; rank < 2; ++rank) trainers_[rank].shard.FillWith(20 + rank);
    OnAll(trainers_, [](Worker& worker) { return worker.PublishAndWait(2); });
  }
  static void OnAll(std::vector<Worker>& workers, const std::function<absl::Status(Worker&)>& act) {
    for (const absl::Status& status : StatusesOf(workers, act)) EXPECT_OK(status);
  }
  static std::vector<absl::Status> StatusesOf(std::vector<Worker>& workers,
                                              const std::function<absl::Status(Worker&)>& act) {
    std::vector<absl::Status> statuses(workers.size());
    std::vector<std::thread> threads;
    threads.reserve(workers.size());
    for (size_t i = 0; i < workers.size(); ++i) {
      threads.emplace_back([&, i] { statuses[i] = act(workers[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  static absl::Status StageLatest(Worker& worker) {
    TH_ASSIGN_OR_RETURN(const UpdateResult staged, worker.buffer.Stage(Latest()));
    return staged.moved() ? absl::OkStatus() : absl::InternalError("was not staged");
  }

  TestServer server_;
  std::unique_ptr<Controller> controller_;
  std::vector<Worker> trainers_, rollouts_;
};

TEST_F(StageAndApplyTest, AVersionIsStagedListedAndMovedIn) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  trainer.shard.FillWith(1);
  rollout.shard.FillWith(0);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult staged, rollout.buffer.Stage(Latest()));
  EXPECT_TRUE(staged.moved());
  EXPECT_EQ(staged.staged_bytes, rollout.buffer.bytes());
  EXPECT_GE(staged.peak_extra_bytes, rollout.buffer.bytes());
  EXPECT_EQ(staged.stall(), absl::ZeroDuration());
  EXPECT_GT(staged.seconds(), absl::ZeroDuration());
  EXPECT_EQ(rollout.buffer.staged().label.text(), "1");
  EXPECT_TRUE(rollout.shard.HasContentOf(0)) << "the buffer was not touched";
  ASSERT_THAT(ListedCopies(*controller_), SizeIs(1));
  EXPECT_EQ(ListedCopies(*controller_)[0].ranks[0].bytes_held, rollout.buffer.bytes());

  ASSERT_OK_AND_ASSIGN(const UpdateResult applied, rollout.buffer.Apply());
  EXPECT_TRUE(applied.moved());
  EXPECT_TRUE(rollout.shard.HasContentOf(1));
  EXPECT_EQ(rollout.buffer.version().label.text(), "1");
  EXPECT_EQ(rollout.buffer.staged().sequence, VersionSequence());
  EXPECT_GT(applied.stall(), absl::ZeroDuration());
  EXPECT_TRUE(AllCopiesGo(*controller_));
}

TEST_F(StageAndApplyTest, TheOldVersionIsServedMeanwhileAndThePauseIsTheLocalCopyAlone) {
  Worker trainer = Worker::Make(server_, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Staging("rollout", kRoom, TestShard(kSlowBytes), kSlowUplink);
  Worker late = Worker::Make(server_, "late", TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest(), {.in_place = true}).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));

  absl::Notification under_way;
  StageOptions options;
  options.on_progress = [&](const UpdateProgress& progress) {
    if (progress.bytes_received > 0 && !under_way.HasBeenNotified()) under_way.Notify();
  };
  Background stage([&](ResultCallback<UpdateResult> done) {
    rollout.buffer.StageAsync(Latest(), options, std::move(done));
  });
  ASSERT_TRUE(under_way.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(rollout.buffer.version().label.text(), "1");
  ASSERT_OK_AND_ASSIGN(const UpdateResult old, late.buffer.Update(Label("1")));
  ASSERT_TRUE(old.moved());
  EXPECT_EQ(old.sources[0].name, "rollout/0");
  EXPECT_TRUE(late.shard.HasContentOf(1));
  ASSERT_OK(stage.Wait().status());
  EXPECT_TRUE(rollout.shard.HasContentOf(1));

  const uint64_t sent_before = trainer.buffer.bytes_sent();
  ASSERT_OK_AND_ASSIGN(const UpdateResult applied, rollout.buffer.Apply());
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
  EXPECT_EQ(trainer.buffer.bytes_sent(), sent_before);
  ASSERT_THAT(applied.sources, SizeIs(1));
  EXPECT_EQ(applied.sources[0].name, "rollout/0");
  // Over the uplink's cap the bytes take one and a half seconds.
  EXPECT_LT(applied.stall(), stage.Wait()->seconds() / 3);
}

TEST_F(StageAndApplyTest, WhatTheBufferHoldsIsNotStagedAgain) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult moved, rollout.buffer.Update(Latest()));
  ASSERT_TRUE(moved.moved());
  ASSERT_OK_AND_ASSIGN(const UpdateResult again, rollout.buffer.Stage(Latest()));
  EXPECT_TRUE(again.already_there());
  EXPECT_EQ(again.staged_bytes, 0u);
  ASSERT_OK_AND_ASSIGN(const UpdateResult updated, rollout.buffer.Update(Latest()));
  EXPECT_TRUE(updated.already_there());
  ASSERT_OK_AND_ASSIGN(const UpdateResult none, rollout.buffer.Stage(Label("2")));
  EXPECT_TRUE(none.not_available());
}

TEST_F(StageAndApplyTest, WithoutALimitThereIsNothingToStageInto) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Worker::Make(server_, "rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_THAT(rollout.buffer.Stage(Latest()).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("rank=rollout/0"), HasSubstr("staging_limit_bytes"))));
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_THAT(rollout.buffer.Apply().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing is staged")));
}

// ---- update

TEST_F(StageAndApplyTest, UpdateStagesWhereALimitIsDeclaredAndSaysSo) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  trainer.shard.FillWith(3);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK_AND_ASSIGN(const UpdateResult staged, rollout.buffer.Update(Latest()));
  ASSERT_TRUE(staged.moved());
  EXPECT_EQ(staged.staged_bytes, rollout.buffer.bytes());
  EXPECT_GE(staged.peak_extra_bytes, rollout.buffer.bytes());
  EXPECT_EQ(staged.stall(), staged.seconds()) << "the caller waited for all of it";
  EXPECT_TRUE(rollout.shard.HasContentOf(3));
  EXPECT_TRUE(AllCopiesGo(*controller_));
  trainer.buffer = WeightBuffer();
  Worker plain = Worker::Make(server_, "plain");
  ASSERT_OK_AND_ASSIGN(const UpdateResult in_place, plain.buffer.Update(Latest()));
  EXPECT_TRUE(in_place.moved());
  EXPECT_EQ(in_place.staged_bytes, 0u);
  EXPECT_LT(in_place.peak_extra_bytes, plain.buffer.bytes());
}

TEST_F(StageAndApplyTest, AnUpdateThatFailsHalfWayLeavesTheBufferAsItWas) {
  Worker trainer = Worker::Make(server_, "trainer", TestShard(kSlowBytes), kSlowUplink);
  Worker rollout = Staging("rollout", kRoom, TestShard(kSlowBytes), kSlowUplink);
  rollout.shard.FillWith(5);
  ASSERT_OK(trainer.PublishAndWait(1));
  BackgroundUpdate update(rollout, {.timeout = absl::Seconds(2)});
  ASSERT_TRUE(update.under_way.WaitForNotificationWithTimeout(kPatience));
  trainer.client.reset();
  ASSERT_FALSE(update.Wait().ok());
  EXPECT_FALSE(rollout.buffer.undefined());
  EXPECT_TRUE(rollout.shard.HasContentOf(5));
  EXPECT_EQ(rollout.buffer.staged().sequence, VersionSequence());
}

// ---- groups

TEST_F(StageAndApplyTest, AllRanksStageAndMoveTogether) {
  TwoRanksHoldOneOfTwo(kRoom);
  OnAll(rollouts_, &StageLatest);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(rollouts_[rank].shard.HasContentOf(10 + rank)) << rank;
  }
  OnAll(rollouts_, [](Worker& worker) { return worker.buffer.Apply().status(); });
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(rollouts_[rank].shard.HasContentOf(20 + rank)) << rank;
  }
  EXPECT_TRUE(AllCopiesGo(*controller_));
}

TEST_F(StageAndApplyTest, ARankWithoutRoomFailsTheStageOfAllByName) {
  TwoRanksHoldOneOfTwo(/*room_of_second=*/1000);
  for (const absl::Status& status : StatusesOf(rollouts_, &StageLatest)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 AllOf(HasSubstr("rollout/1"), HasSubstr("staging_limit_bytes"),
                                       HasSubstr("buffer unchanged, still 1"))));
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(rollouts_[rank].shard.HasContentOf(10 + rank)) << rank;
    EXPECT_EQ(rollouts_[rank].buffer.version().label.text(), "1");
  }
}

TEST_F(StageAndApplyTest, NoBufferIsTouchedForARankThatDiesBeforeItApplies) {
  TwoRanksHoldOneOfTwo(kRoom);
  OnAll(rollouts_, &StageLatest);
  Worker& alive = rollouts_[0];
  Background apply([&](ResultCallback<UpdateResult> done) {
    alive.buffer.ApplyAsync({.timeout = absl::Seconds(2)}, std::move(done));
  });
  rollouts_[1].buffer = WeightBuffer();
  rollouts_[1].client.reset();
  EXPECT_THAT(testing::Message(apply.Wait().status()), HasSubstr("rollout/1"));
  EXPECT_FALSE(alive.buffer.undefined());
  EXPECT_TRUE(alive.shard.HasContentOf(10));
  EXPECT_EQ(alive.buffer.version().label.text(), "1");
}

// ---- between stage and apply

TEST_F(StageAndApplyTest, AVersionThatIsWithdrawnBeforeItIsAppliedIsAnError) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK(rollout.buffer.Stage(Latest()).status());
  ASSERT_OK(controller_->RollBack(Label("1")).status());
  const absl::Status applied = rollout.buffer.Apply().status();
  EXPECT_THAT(applied, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(testing::Message(applied), HasSubstr("rank=rollout/0"));
  EXPECT_TRUE(rollout.shard.HasContentOf(1));
  EXPECT_FALSE(rollout.buffer.undefined());
}

TEST_F(StageAndApplyTest, WhatIsDiscardedIsFreed) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout", /*room=*/400'000);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Stage(Latest()).status());
  rollout.buffer.DiscardStaged();
  EXPECT_EQ(rollout.buffer.staged().sequence, VersionSequence());
  EXPECT_TRUE(AllCopiesGo(*controller_));
  // The memory is free soon after the server has heard that the copy is gone.
  absl::Status staged = rollout.buffer.Stage(Latest()).status();
  for (const absl::Time end = absl::Now() + kPatience;
       absl::IsResourceExhausted(staged) && absl::Now() < end;) {
    staged = rollout.buffer.Stage(Latest()).status();
  }
  EXPECT_OK(staged) << "there is room for one";
}

TEST_F(StageAndApplyTest, WhatIsStagedOutlivesTheServer) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  trainer.shard.FillWith(6);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Stage(Latest()).status());
  server_.Stop();
  server_.Start();
  ASSERT_OK(rollout.buffer.Apply().status());
  EXPECT_TRUE(rollout.shard.HasContentOf(6));
}

TEST_F(StageAndApplyTest, AStagedCopyDoesNotKeepARetainedVersion) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Stage(Latest()).status());
  EXPECT_THAT(trainer.buffer.Unpublish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room to offload")));
  ASSERT_OK(rollout.buffer.Apply().status());
  EXPECT_OK(trainer.buffer.Unpublish()) << "the rollout holds it now";
}

TEST_F(StageAndApplyTest, ABufferThatIsDestroyedTakesWhatIsStagedAlong) {
  Worker trainer = Worker::Make(server_, "trainer");
  Worker rollout = Staging("rollout");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Stage(Latest()).status());
  rollout.buffer = WeightBuffer();
  EXPECT_TRUE(AllCopiesGo(*controller_));
}

}  // namespace
}  // namespace th
