// What a server remembers after a restart, and what it does when it cannot.
#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/memory_store.h"
#include "th/server/http_get.h"
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
