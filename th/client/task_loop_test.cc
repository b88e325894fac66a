#include "th/client/task_loop.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace th {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(TaskLoopTest, RunsTasksInTheOrderOfTheirPosting) {
  std::vector<int> ran;
  {
    TaskLoop loop("th-test");
    for (int i = 0; i < 100; ++i) loop.Post([&ran, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
}

TEST(TaskLoopTest, TheDestructorRunsWhatIsPostedByTasksToo) {
  int ran = 0;
  {
    TaskLoop loop("th-test");
    loop.Post([&] { loop.Post([&] { ++ran; }); });
  }
  EXPECT_EQ(ran, 1);
}

TEST(TaskLoopTest, TimersFireInTheOrderOfTheirTimes) {
  TaskLoop loop("th-test");
  std::vector<int> fired;
  absl::Notification last;
  loop.PostAfter(absl::Milliseconds(20), [&] {
    fired.push_back(2);
    last.Notify();
  });
  loop.PostAfter(absl::Milliseconds(1), [&] { fired.push_back(1); });
  ASSERT_TRUE(last.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
}

TEST(TaskLoopTest, ACancelledTimerDoesNotFire) {
  TaskLoop loop("th-test");
  bool fired = false;
  absl::Notification later;
  // Within one task the timer cannot fire before it is cancelled.
  loop.Post([&] {
    loop.Cancel(loop.PostAfter(absl::ZeroDuration(), [&] { fired = true; }));
    loop.PostAfter(absl::Milliseconds(1), [&] { later.Notify(); });
  });
  ASSERT_TRUE(later.WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(fired);
}

TEST(TaskLoopTest, TheDestructorDropsTimersAndWhatTheyKeepAlive) {
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = kept;
  {
    TaskLoop loop("th-test");
    loop.PostAfter(absl::Hours(1), [kept = std::move(kept)] {});
  }
  EXPECT_TRUE(seen.expired());
}

TEST(TaskLoopTest, TheThreadIsNamedAndBlocksAllSignals) {
  std::array<char, 16> name{};
  sigset_t blocked;
  {
    TaskLoop loop("th-test");
    loop.Post([&] {
      pthread_getname_np(pthread_self(), name.data(), name.size());
      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    });
  }
  EXPECT_STREQ(name.data(), "th-test");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) {
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
}

TEST(TaskLoopTest, TheCallersOwnSignalMaskIsAsBefore) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  { TaskLoop loop("th-test"); }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST(TaskLoopTest, MayBeDestroyedByItsOwnTask) {
  const int before = TaskLoopThreadCount();
  auto loop = std::make_unique<TaskLoop>("th-test");
  absl::Notification destroyed;
  TaskLoop* raw = loop.get();
  raw->Post([&] {
    EXPECT_TRUE(raw->OnLoop());
    loop.reset();
    destroyed.Notify();
  });
  EXPECT_TRUE(destroyed.WaitForNotificationWithTimeout(kLong));
  while (TaskLoopThreadCount() > before) std::this_thread::yield();  // it ends by itself
}

TEST(TaskLoopTest, CountsItsThreads) {
  const int before = TaskLoopThreadCount();
  {
    TaskLoop one("th-one");
    TaskLoop two("th-two");
    EXPECT_EQ(TaskLoopThreadCount(), before + 2);
  }
  EXPECT_EQ(TaskLoopThreadCount(), before);
}

}  // namespace
}  // namespace th
