// The demo as a newcomer runs it, small: real processes, one killed, every key of its JSON object.
#include <poll.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/cli/program_run.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// 16 MiB in two shards at 4 MB/s: some 2 s a transfer, whatever else the machine does.
const std::vector<std::string> kSmall = {"demo",  "--synthetic", "llm",  "--bytes",
                                         "16MiB", "--rate",      "4MB/s"};

std::vector<std::string> SmallDemo(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {Th()};
  arguments.insert(arguments.end(), kSmall.begin(), kSmall.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(DemoTest, PlaysTheWholeSceneAndProvesEveryByte) {
  const ProgramRun run = RunProgram(SmallDemo({"--json", "--rollouts", "4"}));
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  const nlohmann::json report = run.json();
  ASSERT_TRUE(report.is_object()) << run.output();
  EXPECT_EQ(report["verified"], true);
  EXPECT_THAT(report["versions"], SizeIs(5));
  EXPECT_THAT(report["readers"], SizeIs(10));  // 4 groups and a late one, of 2 ranks
  EXPECT_EQ(report["recovered_from_kill"], true);
  EXPECT_GE(report["killed_at_fraction"], 0.2);
  EXPECT_LE(report["killed_at_fraction"], 0.8);
  EXPECT_GT(report["rerouted_bytes"], 0);
  EXPECT_GT(report["relayed_fraction"], 0.3);
  EXPECT_EQ(report["bytes_held_beyond_live"], 0);
  EXPECT_GT(report["stall_seconds"], 0);
  EXPECT_FALSE(report.contains("faults"));

  ASSERT_THAT(report["trainer_copies_sent"], SizeIs(5));
  for (const size_t undisturbed : {0, 2, 3, 4})
    EXPECT_LE(report["trainer_copies_sent"][undisturbed], 1.5);
  ASSERT_FALSE(report["late_joiner_sources"].empty());
  for (const auto& source : report["late_joiner_sources"]) {
    EXPECT_THAT(source.get<std::string>(), StartsWith("rollout-"));
  }
  ASSERT_FALSE(report["transfers"].empty());
  for (const auto& transfer : report["transfers"]) {
    EXPECT_EQ(transfer["transport"], "tcp");
    for (const char* key : {"reader", "source", "bytes", "seconds", "reroutes"}) {
      EXPECT_TRUE(transfer.contains(key)) << key;
    }
  }
}

TEST(DemoTest, TellsTheStoryWithoutControlCharactersInAPipe) {
  const ProgramRun run = RunProgram(SmallDemo(
      {"--rollouts", "2", "--trainer-ranks", "1", "--shards", "1", "--rollout-ranks", "1"}));
  EXPECT_EQ(run.status, 0) << run.errors << run.output();
  for (const char* part :
       {"capped at 4.00 MB/s", "is published", "is killed (SIGKILL)", "rejoins", "joins late",
        "rolls back to version 2", "RE-ROUTES", "copies sent by the trainer", "GOOD: "}) {
    EXPECT_THAT(run.output(), HasSubstr(part));
  }
  EXPECT_THAT(run.output(), Not(HasSubstr("\x1b")));
}

// The state of a process by its /proc entry: gone, or a zombie of somebody else.
bool IsAlive(const std::string& pid) { return std::filesystem::exists("/proc/" + pid + "/exe"); }

std::vector<std::string> ChildrenOf(pid_t pid) {
  std::vector<std::string> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "status");
    for (std::string line; std::getline(file, line);) {
      if (line == absl::StrCat("PPid:\t", pid)) children.push_back(entry.path().filename());
    }
  }
  return children;
}

class InterruptedDemoTest : public ::testing::TestWithParam<int> {};

TEST_P(InterruptedDemoTest, LeavesNoProcessBehind) {
  RunningProgram demo(SmallDemo({}));
  demo.AwaitLine("is published");
  const std::vector<std::string> children = ChildrenOf(demo.process().pid());
  EXPECT_THAT(children, SizeIs(13));  // the server, 4 trainer ranks, 4 groups of 2
  demo.process().Signal(GetParam());
  const ProgramRun run = demo.Finish();
  EXPECT_EQ(run.status, GetParam() == SIGKILL ? -1 : 130) << run.errors;
  for (const std::string& child : children) {
    while (GetParam() == SIGKILL && IsAlive(child))
      poll(nullptr, 0, 5);  // the kernel ends them soon
    EXPECT_FALSE(IsAlive(child)) << child;
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedDemoTest, ::testing::Values(SIGINT, SIGTERM, SIGKILL));

}  // namespace
}  // namespace th
