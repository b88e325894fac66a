#include "th/command_line/stop_signals.h"

#include <csignal>
#include <optional>
#include <thread>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(StopSignalsTest, NothingIsRequestedBeforeASignal) {
  StopSignals stop(99);
  stop.HoldOff();
  EXPECT_FALSE(stop.requested());
  EXPECT_FALSE(stop.WaitFor(absl::ZeroDuration()));
}

TEST(StopSignalsTest, ASignalWakesTheWaiterAndIsRemembered) {
  StopSignals stop(99);
  stop.HoldOff();
  kill(getpid(), SIGTERM);
  stop.Wait();
  EXPECT_EQ(stop.signal(), SIGTERM);
}

const StopOptions kEverySignalIsAStop = {.one_stop = absl::ZeroDuration()};

// Until the listener has read what was sent, and has had time to end the process, were it to.
void AwaitTaken() {
  sigset_t pending;
  do {
    poll(nullptr, 0, 1);
    sigpending(&pending);
  } while (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
  poll(nullptr, 0, 50);
}

// How a child ends that is sent a signal once it runs `body`.
int StatusOfChild(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) body();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(StopSignalsTest, BeforeHoldOffTheFirstSignalEndsTheProcessWithTheGivenStatus) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99);
              kill(getpid(), SIGTERM);
              for (;;) pause();
            }),
            99);
}

TEST(StopSignalsTest, TheSecondSignalEndsTheProcessWithOneStatusWhicheverItIs) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, kEverySignalIsAStop);
              stop.HoldOff();
              kill(getpid(), SIGTERM);
              stop.Wait();
              kill(getpid(), SIGINT);
              for (;;) pause();
            }),
            kStatusOfSecondSignal);
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, kEverySignalIsAStop);
              stop.HoldOff();
              kill(getpid(), SIGINT);
              stop.Wait();
              kill(getpid(), SIGTERM);
              for (;;) pause();
            }),
            kStatusOfSecondSignal);
}

TEST(StopSignalsTest, SignalsThatComeTogetherAreOneStop) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, {.one_stop = absl::Hours(1)});
              stop.HoldOff();
              kill(getpid(), SIGTERM);
              stop.Wait();
              kill(getpid(), SIGTERM);
              AwaitTaken();
              _exit(7);
            }),
            7);
}

TEST(StopSignalsTest, LastWordsAreSaidBeforeASignalEndsTheProcessAtOnce) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, {.last_words = [] { _exit(3); }});
              kill(getpid(), SIGTERM);
              for (;;) pause();
            }),
            3);
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, {.last_words = [] { _exit(3); }, .one_stop = {}});
              stop.HoldOff();
              kill(getpid(), SIGTERM);
              stop.Wait();
              kill(getpid(), SIGTERM);
              for (;;) pause();
            }),
            3);
}

TEST(StopSignalsTest, TheSecondSignalWaitsForWhatMustNotBeBroken) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99, kEverySignalIsAStop);
              stop.HoldOff();
              kill(getpid(), SIGTERM);
              stop.Wait();
              {
                const StopSignals::Unbroken unbroken(&stop);
                for (int i = 0; i < 3; ++i) kill(getpid(), SIGINT);
                AwaitTaken();
              }
              _exit(7);
            }),
            7);
}

TEST(StopSignalsTest, OnceLetGoASignalEndsTheProcessWithTheGivenStatus) {
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99);
              stop.HoldOff();
              stop.StopHoldingOff();
              kill(getpid(), SIGTERM);
              for (;;) pause();
            }),
            99);
  EXPECT_EQ(StatusOfChild([] {
              StopSignals stop(99);
              stop.HoldOff();
              kill(getpid(), SIGTERM);
              stop.Wait();
              stop.StopHoldingOff();
              _exit(7);
            }),
            99);
}

TEST(PendingResultTest, GivesTheResultOfTheCallback) {
  StopSignals stop(99);
  stop.HoldOff();
  PendingResult<int> pending(&stop);
  std::thread worker([callback = pending.Callback()] { callback(42); });
  EXPECT_EQ(pending.Await(), std::optional<int>(42));
  worker.join();
}

TEST(PendingResultTest, GivesNothingWhenAStopComesFirst) {
  StopSignals stop(99);
  stop.HoldOff();
  PendingResult<int> pending(&stop);
  kill(getpid(), SIGINT);
  EXPECT_EQ(pending.Await(), std::nullopt);
  pending.Callback()(7);  // late: goes nowhere
}

TEST(PendingResultTest, CanInsistOnTheResultAfterAStop) {
  StopSignals stop(99);
  stop.HoldOff();
  kill(getpid(), SIGINT);
  stop.Wait();
  PendingResult<int> pending(&stop);
  std::thread worker([callback = pending.Callback()] { callback(1); });
  EXPECT_EQ(pending.AwaitResult(), 1);
  worker.join();
}

}  // namespace
}  // namespace th
