// Publishers whose ranks are processes of their own: one is killed, stopped, replaced or never
// comes.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "th/cli/commands_fixture.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kOk = 0, kFailed = 1;

// A publisher of two ranks, a process each.
class TwoProcessesTest : public CommandsTest {
 protected:
  std::unique_ptr<RunningProgram> Start(const std::string& rank,
                                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--ranks", "2", "--rank", rank};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartPublisher(model_, "step-1", arguments);
  }
  // Starts both, and waits until they have published.
  void StartBoth(const std::vector<std::string>& more_of_first = {},
                 const std::vector<std::string>& more_of_second = {}) {
    first_ = Start("0", more_of_first);
    second_ = Start("1", more_of_second);
    first_->AwaitLine("published");
    second_->AwaitLine("published");
  }
  void KillSecond() {
    second_->process().Signal(SIGKILL);
    (void)second_->Finish();
  }

  const std::string model_ = MakeModelFolder("model", 1);
  std::unique_ptr<RunningProgram> first_, second_;
};

TEST_F(TwoProcessesTest, RanksMayBePlayedByDifferentProcesses) {
  StartBoth();
  EXPECT_EQ(RunTh({"verify", model_}).status, kOk);
}

TEST_F(CommandsTest, ARankThatIsKilledAndStartedAgainHasTheOthersPublishAgain) {
  constexpr int kRanks = 4, kTimes = 10;
  const std::string model = MakeModelFolder("model", 1);
  const auto start = [&](int rank) {
    return StartPublisher(
        model, "step-1",
        {"--ranks", absl::StrCat(kRanks), "--shards", "2", "--rank", absl::StrCat(rank)});
  };
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(start(rank));
  for (const auto& rank : ranks) rank->AwaitLine("published");
  for (int time = 0; time < kTimes; ++time) {
    const int killed = time * 3 % kRanks;
    ranks[killed]->process().Signal(SIGKILL);
    (void)ranks[killed]->Finish();
    const absl::Time began = MonotonicNow();
    ranks[killed] = start(killed);
    for (const auto& rank : ranks) EXPECT_THAT(rank->AwaitLine("published"), HasSubstr("step-1"));
    EXPECT_LT(MonotonicNow() - began, absl::Seconds(5)) << "the " << time << "th time";
    EXPECT_EQ(RunTh({"verify", model}).status, kOk);
  }
  EXPECT_THAT(RunTh({"events"}).output(), HasSubstr("publication lost"));
}

TEST_F(TwoProcessesTest, APublisherPublishesAgainWhenARankWasStoppedAloneAndStarted) {
  const std::vector<std::string> short_drain = {"--drain", "100ms"};
  StartBoth({}, short_drain);
  second_->process().Signal(SIGTERM);
  EXPECT_EQ(second_->Finish().status, kOk);
  second_ = Start("1", short_drain);
  EXPECT_THAT(second_->AwaitLine("published"), HasSubstr("step-1"));
  EXPECT_THAT(first_->AwaitLine("published"), HasSubstr("step-1"));
}

TEST_F(TwoProcessesTest, TheOthersEndAfterTheirTimeoutWhenARankStoppedAloneStaysAway) {
  StartBoth({"--timeout", "5s"}, {"--drain", "100ms"});
  second_->process().Signal(SIGTERM);
  EXPECT_EQ(second_->Finish().status, kOk);
  const ProgramRun ended = first_->Finish();
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.errors, HasSubstr("publishing step-1 again"));
  EXPECT_THAT(ended.errors, AllOf(HasSubstr("ran out of time"), HasSubstr("trainer/1")));
}

TEST_F(TwoProcessesTest, WithExitOnLossTheOthersEndWhenARankIsReplaced) {
  StartBoth({"--exit-on-loss"});
  KillSecond();
  second_ = Start("1");
  const ProgramRun ended = first_->Finish();
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.errors, HasSubstr("rank trainer/1 is gone: it was replaced by a new process"));
}

TEST_F(TwoProcessesTest, WithExitOnLossTheOthersEndWhenARankIsGoneForGood) {
  StartBoth({"--exit-on-loss"});
  KillSecond();
  const ProgramRun ended = first_->Finish();
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.errors, HasSubstr("rank trainer/1 is gone: its lease has ended"));
}

TEST_F(CommandsTest, ARankThatNeverComesIsNamed) {
  const ProgramRun run = StartPublisher(MakeModelFolder("model", 1), "step-1",
                                        {"--ranks", "2", "--rank", "0", "--timeout", "500ms"})
                             ->Finish();
  EXPECT_EQ(run.status, kFailed) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("trainer/1"));
}

}  // namespace
}  // namespace th
