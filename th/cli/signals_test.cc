// How the commands and workers end when they are told to, at any moment.
#include <poll.h>
#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
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

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOk = 0, kInterrupted = 130;

// Until a process has a thread that listens for signals; false when it ends without.
bool AwaitCaughtSignals(pid_t pid) {
  for (;;) {
    std::error_code error;
    bool any = false;
    for (const auto& task : fs::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name == "th-signals") return true;
      any = any || !name.empty();
    }
    if (!any) return false;
    poll(nullptr, 0, 1);
  }
}

TEST_F(CommandsTest, APublisherThatNobodyReadsEndsSoonWhileTheServerIsAway) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  server_.Kill();
  ASSERT_TRUE(publisher->AwaitError("the server is away"));
  const absl::Time begin = MonotonicNow();
  publisher->process().Signal(SIGTERM);
  EXPECT_EQ(publisher->Finish().status, kOk);
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));  // --drain has 30
}

class SignalTest : public CommandsTest, public ::testing::WithParamInterface<int> {};

TEST_P(SignalTest, AWorkerDrainsAndLeaves) {
  const auto publisher = Publish(MakeModelFolder("model", 1), "step-1");
  publisher->process().Signal(GetParam());
  const ProgramRun run = publisher->Finish();
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("draining"));
  EXPECT_THAT(RunTh({"describe", "trainer"}).output(), Not(HasSubstr("trainer/0")));
}

TEST_P(SignalTest, APublisherLetsAReaderInFlightFinish) {
  const std::string model = MakeModelFolder("model", 1);
  const auto publisher =
      StartPublisher(model, "step-1", {"--rate", "200KB/s", "--transports", "tcp"});  // some 2 s
  publisher->AwaitLine("published");
  const std::string pulled = FreshFolder("pulled") + "/here";
  RunningProgram pull(Against({Th(), "pull", pulled}));
  ASSERT_TRUE(pull.AwaitError("from trainer/0"));
  publisher->process().Signal(GetParam());
  const ProgramRun reader = pull.Finish();
  EXPECT_EQ(reader.status, kOk) << reader.errors;
  EXPECT_EQ(RunProgram({Th(), "verify", model, pulled}).status, kOk);
  EXPECT_EQ(publisher->Finish().status, kOk);
}

TEST_P(SignalTest, APublisherEndsCleanlyAtAnyMoment) {
  const std::string model = MakeModelFolder("model", 1);
  // The second rank never comes: it waits for the group.
  const auto waiting =
      StartPublisher(model, "step-1", {"--ranks", "2", "--rank", "0", "--group", "half"});
  ASSERT_TRUE(waiting->AwaitError("hold"));
  waiting->process().Signal(GetParam());
  EXPECT_EQ(waiting->Finish().status, kOk);
  // Somewhere between its joining and its having sealed.
  const auto sealing = StartPublisher(model, "step-2");
  ASSERT_TRUE(sealing->AwaitError("hold"));
  sealing->process().Signal(GetParam());
  const ProgramRun run = sealing->Finish();
  EXPECT_EQ(run.status, kOk) << run.errors;
  EXPECT_THAT(RunTh({"describe", "trainer"}).output(), Not(HasSubstr("trainer/0")));
}

TEST_P(SignalTest, AnInterruptedPullLeavesNothingBehind) {
  const auto publisher = StartPublisher(MakeModelFolder("model", 1), "step-1",
                                        {"--rate", "50KB/s", "--transports", "tcp"});
  publisher->AwaitLine("published");
  const std::string parent = FreshFolder("interrupted");
  RunningProgram pull(Against({Th(), "pull", parent + "/here"}));
  ASSERT_TRUE(pull.AwaitError("from trainer/0"));
  pull.process().Signal(GetParam());
  const ProgramRun run = pull.Finish();
  EXPECT_EQ(run.status, kInterrupted) << run.errors;
  EXPECT_TRUE(fs::is_empty(parent));
}

// The server is stopped, so that the command waits for it.
TEST_P(SignalTest, ACommandThatWaitsForTheServerSaysThatItWasInterrupted) {
  server_.program().process().Signal(SIGSTOP);
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"list"},
                                                    {"describe"},
                                                    {"rollback", "1"},
                                                    {"pin", "1"},
                                                    {"release", "1"},
                                                    {"retain", "1"},
                                                    {"forget"},
                                                    {"top"},
                                                    {"events", "--follow"},
                                                    {"pull", FreshFolder("never")},
                                                    {"verify", MakeModelFolder("m", 1)}}) {
    std::vector<std::string> command = {Th()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), {"--connect-timeout", "60s", "--json"});
    RunningProgram waiting(Against(std::move(command)));
    ASSERT_TRUE(AwaitCaughtSignals(waiting.process().pid())) << arguments[0];
    waiting.process().Signal(GetParam());
    const ProgramRun run = waiting.Finish();
    EXPECT_EQ(run.status, kInterrupted) << arguments[0];
    ASSERT_TRUE(run.json().is_object()) << arguments[0] << ": " << run.output();
    EXPECT_EQ(run.json()["error"]["code"], "CANCELLED") << arguments[0];
  }
  server_.program().process().Signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGINT, SIGTERM));

}  // namespace
}  // namespace th
