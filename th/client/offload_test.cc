// Retained versions outlive the unpublish of their last replica, in host memory of its ranks.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::AllCopiesGo;
using ::th::testing::BackgroundUpdate;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::ListedCopies;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr uint64_t kRoom = uint64_t{64} << 20;

class OffloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto connected = Controller::Connect({server_.address(), "run", "model"});
    ASSERT_OK(connected.status());
    controller_ = *std::move(connected);
  }
  Worker Roomy(std::string group, uint64_t room = kRoom, TestShard shard = TestShard(),
               uint64_t uplink = 0) {
    ClientOptions options = Rank(server_, std::move(group));
    options.offload_limit_bytes = room;
    options.uplink_bytes_per_second = uplink;
    if (uplink > 0) options.transports = {"tcp"};  // which the cap holds back
    return Worker::Make(options, std::move(shard));
  }

  TestServer server_;
  std::unique_ptr<Controller> controller_;
};

TEST_F(OffloadTest, ARetainedVersionOutlivesTheUnpublishOfItsLastReplica) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer");
  trainer.shard.FillWith(4);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(5);  // the caller's again
  ASSERT_THAT(ListedCopies(*controller_), SizeIs(1));
  EXPECT_EQ(ListedCopies(*controller_)[0].ranks[0].bytes_held, trainer.buffer.bytes());
  Worker late = Worker::Make(server_, "rollout");
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, late.buffer.Update(Latest()));
  ASSERT_TRUE(result.moved());
  EXPECT_TRUE(late.shard.HasContentOf(4));
  EXPECT_TRUE(AllCopiesGo(*controller_)) << "the rollout holds it now";
}

TEST_F(OffloadTest, AnUnpublishWithoutAServerKeepsACopyThatTheNextServerHearsOf) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer");
  trainer.shard.FillWith(4);
  ASSERT_OK(trainer.PublishAndWait(1));
  server_.Stop();
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(5);  // the caller's again
  server_.Start();
  Worker late = Worker::Make(server_, "rollout");
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, late.buffer.Update(Latest()));
  ASSERT_TRUE(result.moved());
  EXPECT_TRUE(late.shard.HasContentOf(4));
}

TEST_F(OffloadTest, TheNextVersionTakesThePlaceOfTheCopy) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer");
  for (int step = 1; step <= 3; ++step) {
    trainer.shard.FillWith(step);
    ASSERT_OK(trainer.PublishAndWait(step)) << step;
    ASSERT_OK(trainer.buffer.Unpublish()) << step;
  }
  const absl::Time deadline = absl::Now() + kPatience;
  while (ListedCopies(*controller_).size() > 1 && absl::Now() < deadline) {
  }
  ASSERT_THAT(ListedCopies(*controller_), SizeIs(1));
  Worker late = Worker::Make(server_, "rollout");
  ASSERT_OK(late.buffer.Update(Latest()).status());
  EXPECT_TRUE(late.shard.HasContentOf(3));
}

TEST_F(OffloadTest, AnUpdateInPlaceKeepsWhatWasHeldBefore) {
  ASSERT_OK(controller_->Retain(2));
  Worker trainer = Roomy("trainer");
  Worker rollout = Roomy("rollout");
  trainer.shard.FillWith(1);
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  ASSERT_OK(trainer.buffer.Unpublish());
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK(rollout.buffer.Update(Latest()).status());
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
  Worker late = Worker::Make(server_, "late");
  ASSERT_OK(late.buffer.Update(testing::Label("1")).status());
  EXPECT_TRUE(late.shard.HasContentOf(1));
}

TEST_F(OffloadTest, WithoutRoomTheBufferStaysPublishedUntilAnotherGroupHoldsTheVersion) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer", /*room=*/1000);
  trainer.shard.FillWith(6);
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_THAT(trainer.buffer.Unpublish(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank trainer/0 has no room to offload")));
  Worker late = Worker::Make(server_, "rollout");
  ASSERT_OK(late.buffer.Update(Latest()).status());
  EXPECT_TRUE(late.shard.HasContentOf(6));
  EXPECT_OK(trainer.buffer.Unpublish()) << "the rollout holds it now";
}

TEST_F(OffloadTest, WhoDropsItLosesTheVersion) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(trainer.buffer.Unpublish({.on_retention = OnRetention::kDrop}));
  Worker late = Worker::Make(server_, "rollout");
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, late.buffer.Update(Latest()));
  EXPECT_TRUE(result.not_available());
}

TEST_F(OffloadTest, NothingIsCopiedWithoutAPolicy) {
  Worker trainer = Roomy("trainer");
  ASSERT_OK(trainer.PublishAndWait(1));
  ASSERT_OK(trainer.buffer.Unpublish());
  EXPECT_THAT(ListedCopies(*controller_), SizeIs(0));
}

TEST_F(OffloadTest, AllRanksOfAGroupOffloadTogether) {
  ASSERT_OK(controller_->Retain(1));
  std::vector<Worker> trainers;
  std::vector<Worker> rollouts;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ClientOptions options = Rank(server_, "trainer", rank, 2);
    options.offload_limit_bytes = kRoom;
    trainers.push_back(Worker::Make(options, TestShard(200'000 + rank)));
    trainers.back().shard.FillWith(10 + rank);
    rollouts.push_back(Worker::Make(Rank(server_, "rollout", rank, 2), TestShard(200'000 + rank)));
  }
  const auto on_all = [](std::vector<Worker>& workers, auto act) {
    std::vector<std::thread> threads;
    threads.reserve(workers.size());
    for (Worker& worker : workers)
      threads.emplace_back([&act, &worker] { EXPECT_OK(act(worker)); });
    for (std::thread& thread : threads) thread.join();
  };
  on_all(trainers, [](Worker& worker) { return worker.PublishAndWait(1); });
  on_all(trainers, [](Worker& worker) { return worker.buffer.Unpublish(); });
  for (Worker& trainer : trainers) trainer.shard.FillWith(99);
  on_all(rollouts, [](Worker& worker) { return worker.buffer.Update(Latest()).status(); });
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(rollouts[rank].shard.HasContentOf(10 + rank)) << rank;
  }
}

TEST_F(OffloadTest, ACopyDoesNotCountAgainstTheUplinkCap) {
  ASSERT_OK(controller_->Retain(1));
  constexpr uint64_t kUplink = kSlowBytes / 30;  // over it the copy would take half a minute
  Worker trainer = Roomy("trainer", kRoom, TestShard(kSlowBytes), kUplink);
  ASSERT_OK(trainer.PublishAndWait(1));
  EXPECT_OK(trainer.buffer.Unpublish({.offload_timeout = absl::Seconds(10)}));
}

TEST_F(OffloadTest, SlowReadersDoNotHoldTheUnpublishBeyondItsDrainAndLoseNothing) {
  ASSERT_OK(controller_->Retain(1));
  Worker trainer = Roomy("trainer", kRoom, TestShard(kSlowBytes), kSlowUplink);
  trainer.shard.FillWith(7);
  ASSERT_OK(trainer.PublishAndWait(1));
  std::vector<Worker> rollouts;
  for (int i = 1; i <= 4; ++i) {
    rollouts.push_back(
        Worker::Make(server_, absl::StrCat("rollout-", i), TestShard(kSlowBytes), kSlowUplink));
  }
  std::vector<std::unique_ptr<BackgroundUpdate>> updates;
  for (Worker& rollout : rollouts) updates.push_back(std::make_unique<BackgroundUpdate>(rollout));
  ASSERT_TRUE(updates[0]->under_way.WaitForNotificationWithTimeout(kPatience));
  ASSERT_OK(trainer.buffer.Unpublish({.drain_timeout = absl::Milliseconds(200)}));
  trainer.shard.FillWith(8);
  for (auto& update : updates) ASSERT_OK(update->Wait().status());
  for (Worker& rollout : rollouts) EXPECT_TRUE(rollout.shard.HasContentOf(7));
}

}  // namespace
}  // namespace th
