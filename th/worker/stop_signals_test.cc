#include "th/worker/stop_signals.h"

#include <csignal>
#include <optional>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(StopSignalsTest, NothingIsRequestedBeforeASignal) {
  StopSignals stop;
  EXPECT_FALSE(stop.requested());
  EXPECT_FALSE(stop.WaitFor(absl::ZeroDuration()));
}

TEST(StopSignalsTest, ASignalWakesTheWaiterAndIsRemembered) {
  StopSignals stop;
  kill(getpid(), SIGTERM);
  stop.Wait();
  EXPECT_EQ(stop.signal(), SIGTERM);
}

TEST(StopSignalsTest, TheSecondSignalEndsTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    StopSignals stop;
    kill(getpid(), SIGTERM);
    stop.Wait();
    kill(getpid(), SIGINT);
    for (;;) pause();
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(PendingResultTest, GivesTheResultOfTheCallback) {
  StopSignals stop;
  PendingResult<int> pending(&stop);
  std::thread worker([callback = pending.Callback()] { callback(42); });
  EXPECT_EQ(pending.Await(), std::optional<int>(42));
  worker.join();
}

TEST(PendingResultTest, GivesNothingWhenAStopComesFirst) {
  StopSignals stop;
  PendingResult<int> pending(&stop);
  kill(getpid(), SIGINT);
  EXPECT_EQ(pending.Await(), std::nullopt);
  pending.Callback()(7);  // late: goes nowhere
}

TEST(PendingResultTest, CanInsistOnTheResultAfterAStop) {
  StopSignals stop;
  kill(getpid(), SIGINT);
  stop.Wait();
  PendingResult<int> pending(&stop);
  std::thread worker([callback = pending.Callback()] { callback(1); });
  EXPECT_EQ(pending.AwaitResult(), 1);
  worker.join();
}

}  // namespace
}  // namespace th
