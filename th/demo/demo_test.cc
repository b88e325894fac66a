// The demo as a newcomer runs it, small: real processes, one killed, every key of its JSON object.
// As the program of tools/demo, and on other models as `th demo`.
#include <poll.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"
#include "testing/status_matchers.h"
#include "testing/under_sanitizer.h"
#include "th/memory/checkpoint_writer.h"
#include "th/processes/runfiles.h"

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
  const absl::StatusOr<std::string> program = FindProgram("th/demo/th_demo");
  EXPECT_OK(program);
  std::vector<std::string> arguments = {program.value_or("")};
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

struct Moment {
  int signal;
  std::string line;  // of the story; empty: as soon as there is a file
};

class InterruptedDemoTest : public ::testing::TestWithParam<Moment> {};

TEST_P(InterruptedDemoTest, LeavesNoProcessAndNoFolderBehind) {
  const auto& [signal, line] = GetParam();
  const std::string scratch = FreshFolder("scratch");
  std::vector<std::string> arguments = SmallDemo({});
  arguments.insert(arguments.begin(), {"/usr/bin/env", "TMPDIR=" + scratch});
  RunningProgram demo(arguments);
  if (line.empty()) {
    while (std::filesystem::is_empty(scratch) && !demo.process().HasEnded()) poll(nullptr, 0, 1);
  } else {
    demo.AwaitLine(line);
  }
  const std::vector<std::string> children = ChildrenOf(demo.process().pid());
  // The server, 4 trainer ranks, 4 groups of 2; fewer before the story begins.
  EXPECT_LE(children.size(), 13u);
  EXPECT_TRUE(line.empty() || children.size() == 13) << children.size();
  demo.process().Signal(signal);
  const ProgramRun run = demo.Finish();
  EXPECT_EQ(run.status, signal == SIGKILL ? -1 : 130) << run.errors;
  for (const std::string& child : children) {
    while (signal == SIGKILL && IsAlive(child)) poll(nullptr, 0, 5);  // the kernel ends them soon
    EXPECT_FALSE(IsAlive(child)) << child;
  }
  EXPECT_EQ(std::filesystem::is_empty(scratch), signal != SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(Moments, InterruptedDemoTest,
                         ::testing::Values(Moment{SIGINT, ""}, Moment{SIGTERM, ""},
                                           Moment{SIGINT, "is published"},
                                           Moment{SIGTERM, "is published"},
                                           Moment{SIGTERM, "readers' tensors have"},
                                           Moment{SIGKILL, "is published"}));

// ---- other models

TEST(DemoTest, PlaysOnTheModelItCarries) {
  const ProgramRun run = RunProgram({Th(), "demo", "--json", "--rollouts", "1", "--rate", "none"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  EXPECT_EQ(run.json()["verified"], true);
  EXPECT_EQ(run.json()["bytes_held_beyond_live"], 0);
  EXPECT_THAT(run.errors, HasSubstr("no uplink is capped"));
  EXPECT_THAT(run.errors, HasSubstr("model.safetensors"));
}

// The folder that MakeModelFolder makes, divided into two files with an index.
std::string MakeShardedFolder() {
  const std::string folder = FreshFolder("sharded");
  const std::vector<std::string> contents = {std::string(300'000, 'a'), std::string(200'000, 'b')};
  std::vector<CheckpointTensor> tensors;
  for (size_t i = 0; i < contents.size(); ++i) {
    const uint64_t bytes = contents[i].size();
    tensors.push_back({.spec = {.name = absl::StrCat("tensor.", i),
                                .dtype = DType::kU8,
                                .shape = {static_cast<int64_t>(bytes)},
                                .bytes = bytes},
                       .data = contents[i].data()});
  }
  EXPECT_OK(WriteCheckpoint(folder, tensors, {.max_file_bytes = 300'000}));
  EXPECT_TRUE(std::filesystem::exists(folder + "/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/model.safetensors.index.json"));
  return folder;
}

TEST(DemoTest, PlaysOnAFolderOfSeveralFiles) {
  const ProgramRun run = RunProgram({Th(), "demo", "--json", "--rollouts", "1", "--rate", "none",
                                     "--model", MakeShardedFolder()});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  EXPECT_EQ(run.json()["verified"], true);
}

TEST(DemoTest, PlaysOnAModelOfManyExperts) {
  const ProgramRun run = RunProgram({Th(), "demo", "--json", "--rollouts", "1", "--rate", "none",
                                     "--synthetic", "moe", "--bytes", "16MiB"});
  ASSERT_EQ(run.status, 0) << run.errors << run.output();
  EXPECT_EQ(run.json()["verified"], true);
}

// ---- what the demo would notice

TEST(SpoiltDemoTest, OneReaderWithOtherBytesIsABadVerdict) {
  const ProgramRun run =
      RunProgram(SmallDemo({"--json", "--rollouts", "1", "--sabotage", "scribble"}));
  EXPECT_EQ(run.status, 1) << run.errors << run.output();
  EXPECT_THAT(run.errors, HasSubstr("DIFFERENT: "));
  EXPECT_THAT(run.errors, HasSubstr("FAILED: "));
  EXPECT_EQ(run.json()["verified"], false);
  EXPECT_THAT(run.json()["faults"].dump(), HasSubstr("rollout-1/0 differs from the trainer's"));
}

TEST(SpoiltDemoTest, OneReaderWithASecondCopyIsABadVerdict) {
  if (testing::UnderSanitizer()) {
    GTEST_SKIP() << "a sanitizer's own memory hides the copy, and the demo does not judge it";
  }
  const ProgramRun run =
      RunProgram(SmallDemo({"--json", "--rollouts", "1", "--sabotage", "hoard"}));
  EXPECT_EQ(run.status, 1) << run.errors << run.output();
  EXPECT_EQ(run.json()["verified"], true);
  EXPECT_GE(run.json()["bytes_held_beyond_live"], 7 << 20);  // a shard is about 8 MiB
}

}  // namespace
}  // namespace th
