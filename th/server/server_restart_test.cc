// A server remembers its state after a restart, or says why it cannot.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/memory_store.h"
#include "th/monitoring/http_get.h"
#include "th/server/scripted_worker.h"
#include "th/server/server_fixture.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::StatusIs;

TEST_F(ServerTest, ARestartRaisesEpochAndSequence) {
  Start();
  VersionSequence before;
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK(trainer.JoinAndRegister("trainer"));
    ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-1"));
    before = version.sequence;
  }
  server_.reset();
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK_AND_ASSIGN(const Joined joined, trainer.JoinAndRegister("trainer"));
  EXPECT_EQ(joined.epoch, Epoch(2));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, trainer.Publish(1, "step-2"));
  EXPECT_GT(version.sequence, before);
  EXPECT_EQ(version.sequence.epoch(), Epoch(2));
}

TEST_F(ServerTest, ARestartRemembersTheHighWaterMark) {
  Start();
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK(trainer.JoinAndRegister("trainer"));
    ASSERT_OK(trainer.Publish(1, "step-1"));
  }
  server_.reset();
  Start();
  ScriptedWorker rollout(server_->address());
  ASSERT_OK(rollout.JoinAndRegister("rollout"));
  rollout.Send(StartOperation{.key = {BufferId(1), OperationNumber(1)},
                              .kind = OperationKind::kUpdate,
                              .timeout = absl::Seconds(10)});
  ASSERT_OK_AND_ASSIGN(const OperationFinished finished, rollout.Expect<OperationFinished>());
  EXPECT_EQ(finished.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(finished.not_available, NotAvailableReason::kLost);
}

TEST_F(ServerTest, ARestartRemembersRetention) {
  Start();
  ASSERT_OK_AND_ASSIGN(const CommandFinished finished, Command({"key-1", SetRetention{7}}));
  ASSERT_OK(finished.status);
  server_.reset();
  Start();
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<Catalog> catalog = List();
    return catalog.ok() && catalog->models.size() == 1 && catalog->models[0].keep_latest == 7;
  }));
}

// As a session comes back: again and again, with what it was told last.
class LostStateTest : public ServerTest {
 protected:
  std::optional<Joined> ComesBack(const Joined& before) {
    std::optional<Joined> joined;
    Eventually([&] {
      ScriptedWorker worker(server_->address());
      JoinRequest join = TestJoin("trainer");
      join.resume = ResumeClaim{.worker = before.worker,
                                .epoch = before.epoch,
                                .group_generation = before.group_generation,
                                .lineage = before.lineage,
                                .cluster = before.cluster,
                                .epoch_id = before.epoch_id,
                                .secret = before.secret};
      worker.Send(join);
      const absl::StatusOr<Joined> answer = worker.Expect<Joined>();
      if (answer.ok()) joined = *answer;
      return answer.ok();
    });
    return joined;
  }
  void Restart() {
    server_.reset();
    Start();
  }
};

TEST_F(LostStateTest, AnOlderStateLearnsAWorkersEpochDurably) {
  const std::string backup = state_dir_ + "-backup";
  Start();
  server_.reset();
  std::filesystem::copy(state_dir_, backup);
  for (int i = 0; i < 3; ++i) Restart();
  Joined before;
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK_AND_ASSIGN(before, trainer.Join("trainer"));
  }
  server_.reset();
  std::filesystem::remove_all(state_dir_);
  std::filesystem::rename(backup, state_dir_);
  Start();
  ASSERT_LT(server_->epoch(), before.epoch);
  const std::optional<Joined> after = ComesBack(before);
  ASSERT_TRUE(after.has_value());
  EXPECT_GT(after->epoch, before.epoch);
  EXPECT_EQ(after->cluster, before.cluster);
  Restart();
  EXPECT_GT(server_->epoch(), after->epoch);
}

TEST_F(LostStateTest, AnEmptyStateTakesAWorkerBackUnderAnIdOfItsOwn) {
  Start();
  Joined before;
  {
    ScriptedWorker trainer(server_->address());
    ASSERT_OK_AND_ASSIGN(before, trainer.Join("trainer"));
  }
  server_.reset();
  std::filesystem::remove_all(state_dir_);
  Start();
  const std::optional<Joined> after = ComesBack(before);
  ASSERT_TRUE(after.has_value());
  EXPECT_NE(after->worker, before.worker);
  EXPECT_NE(after->cluster, before.cluster);
  EXPECT_FALSE(after->secret == before.secret);
}

TEST_F(ServerTest, AStateThatCannotBeWrittenStopsTheServerBeforeItAnswers) {
  auto owned = std::make_unique<MemoryStore>(OpenedState{.epoch = Epoch(1)});
  MemoryStore* store = owned.get();
  store->FailWith(absl::ResourceExhaustedError("No space left on device"));
  StartWith(std::move(owned));
  ScriptedWorker trainer(server_->address());
  const absl::Status registered = trainer.JoinAndRegister("trainer").status();
  if (registered.ok()) {
    EXPECT_FALSE(trainer.Publish(1, "step-1").ok());
  }
  EXPECT_THAT(server_->WaitForFailure(kTestDeadline),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No space left")));
  EXPECT_THAT(HttpGet(server_->http_address(), "/healthz"), StartsWith("HTTP/1.1 503"));
  ScriptedWorker late(server_->address());
  late.Send(TestJoin("late"));
  ASSERT_OK_AND_ASSIGN(const Refused refused, late.Expect<Refused>());
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace th
