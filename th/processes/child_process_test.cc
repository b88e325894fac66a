#include "th/processes/child_process.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::unique_ptr<ChildProcess> StartShell(const std::string& script, const std::string& log = "") {
  auto child = ChildProcess::Start(
      {.name = "child", .arguments = {"/bin/sh", "-c", script}, .log_path = log});
  EXPECT_OK(child);
  return *std::move(child);
}

// The next lines, however long they take.
std::vector<std::string> AwaitLines(ChildProcess& child) {
  while (child.output_fd() >= 0) {
    pollfd waited{.fd = child.output_fd(), .events = POLLIN, .revents = 0};
    poll(&waited, 1, -1);
    std::vector<std::string> lines = child.ReadLines();
    if (!lines.empty()) return lines;
  }
  return {};
}

TEST(ChildProcessTest, ConversesInLines) {
  auto child = StartShell("while read line; do echo \"heard $line\"; done");
  ASSERT_OK(child->WriteLine("one"));
  EXPECT_THAT(AwaitLines(*child), ElementsAre("heard one"));
  ASSERT_OK(child->WriteLine("two"));
  EXPECT_THAT(AwaitLines(*child), ElementsAre("heard two"));
  child->CloseInput();
  EXPECT_THAT(AwaitLines(*child), IsEmpty());
  EXPECT_OK(child->AwaitEnd(kPatience));
  EXPECT_EQ(child->exit_status(), 0);
}

TEST(ChildProcessTest, KeepsAnUnfinishedLineUntilItsEndComes) {
  auto child = StartShell("printf 'half '; read go; echo whole");
  pollfd waited{.fd = child->output_fd(), .events = POLLIN, .revents = 0};
  poll(&waited, 1, -1);
  EXPECT_THAT(child->ReadLines(), IsEmpty());
  ASSERT_OK(child->WriteLine("go"));
  EXPECT_THAT(AwaitLines(*child), ElementsAre("half whole"));
}

TEST(ChildProcessTest, TakesALongLineInOnePiece) {
  auto child = StartShell("head -c 300000 /dev/zero | tr '\\0' x; echo");
  const std::vector<std::string> lines = AwaitLines(*child);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], SizeIs(300000));
}

TEST(ChildProcessTest, SaysHowTheChildEnded) {
  auto failing = StartShell("exit 3");
  ASSERT_OK(failing->AwaitEnd(kPatience));
  EXPECT_EQ(failing->Condition(), "ended with status 3");
  EXPECT_EQ(failing->exit_status(), 3);

  auto killed = StartShell("read forever");
  EXPECT_EQ(killed->Condition(), "is running");
  killed->Signal(SIGKILL);
  ASSERT_OK(killed->AwaitEnd(kPatience));
  EXPECT_EQ(killed->Condition(), "was killed by signal 9");
  EXPECT_EQ(killed->exit_status(), -1);
}

TEST(ChildProcessTest, WritingToAChildThatHasGoneIsAnError) {
  auto child = StartShell("exit 0");
  ASSERT_OK(child->AwaitEnd(kPatience));
  EXPECT_THAT(child->WriteLine("hello"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("child ended with status 0")));
}

TEST(ChildProcessTest, AProgramThatCannotBeExecutedEndsWith127) {
  ASSERT_OK_AND_ASSIGN(auto child,
                       ChildProcess::Start({.name = "nothing", .arguments = {"/no/such/program"}}));
  ASSERT_OK(child->AwaitEnd(kPatience));
  EXPECT_EQ(child->exit_status(), 127);
}

TEST(ChildProcessTest, AwaitEndGivesUpAtItsDeadline) {
  auto child = StartShell("read forever");
  EXPECT_THAT(child->AwaitEnd(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(ChildProcessTest, TheDestructorLeavesNoProcessBehind) {
  auto child = StartShell("trap '' TERM; read forever");
  const pid_t pid = child->pid();
  EXPECT_EQ(kill(pid, 0), 0);
  child.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ChildProcessTest, GivesTheChildAnEmptySignalMaskAndAGroupOfItsOwn) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  auto child = StartShell("read forever");
  sigprocmask(SIG_SETMASK, &before, nullptr);
  child->Signal(SIGTERM);
  ASSERT_OK(child->AwaitEnd(kPatience));
  EXPECT_EQ(child->Condition(), "was killed by signal 15");
  auto grouped = StartShell("ps -o pgid= -p $$ >/dev/null 2>&1; echo started; read forever");
  AwaitLines(*grouped);
  EXPECT_EQ(getpgid(grouped->pid()), grouped->pid());
}

TEST(ChildProcessTest, PutsTheChildsErrorsInItsLog) {
  const std::string log = ::testing::TempDir() + "/child.log";
  unlink(log.c_str());
  auto child = StartShell("echo complaint >&2", log);
  ASSERT_OK(child->AwaitEnd(kPatience));
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_EQ(text.str(), "complaint\n");
}

TEST(ChildProcessTest, RefusesALogThatCannotBeWritten) {
  EXPECT_THAT(ChildProcess::Start(
                  {.name = "c", .arguments = {"/bin/true"}, .log_path = "/no/such/folder/log"}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/no/such/folder/log")));
}

}  // namespace
}  // namespace th
