#include "th/transfer/same_host/process_watch.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "gtest/gtest.h"

namespace th::same_host {
namespace {

// A process that waits to be killed.
pid_t StartProcess() {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  return child;
}

void AwaitEnd(pid_t child) {
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

TEST(ProcessWatchTest, ThisProcessLives) { EXPECT_FALSE(ProcessWatch(getpid()).HasEnded()); }

TEST(ProcessWatchTest, KilledProcessHasEnded) {
  const pid_t child = StartProcess();
  const ProcessWatch watch(child);
  EXPECT_EQ(watch.process(), child);
  EXPECT_FALSE(watch.HasEnded());
  kill(child, SIGKILL);
  AwaitEnd(child);
  EXPECT_TRUE(watch.HasEnded());
}

TEST(ProcessWatchTest, WithoutADescriptorTheNumberIsLookedAt) {
  const pid_t child = StartProcess();
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto watch = std::make_unique<ProcessWatch>(child);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(watch->HasEnded());
  kill(child, SIGKILL);
  AwaitEnd(child);
  EXPECT_TRUE(watch->HasEnded());
}

TEST(ProcessWatchTest, ProcessThatIsNotThereHasEnded) {
  const pid_t child = StartProcess();
  kill(child, SIGKILL);
  AwaitEnd(child);
  EXPECT_TRUE(ProcessWatch(child).HasEnded());
}

}  // namespace
}  // namespace th::same_host
