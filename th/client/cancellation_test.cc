#include "th/client/cancellation.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/cancel_hook.h"

namespace th {
namespace {

using ::th::testing::StatusIs;

constexpr absl::Duration kLong = absl::Minutes(5);

TEST(CancellationTest, AThreadWithoutAScopeIsCancelledByNone) {
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_FALSE(CallsAreCancelled());
  EXPECT_OK(CheckNotCancelled("nothing"));
}

TEST(CancellationTest, TheInnermostScopeCounts) {
  Cancellation outer, inner;
  outer.Cancel();
  const CancellationScope scope(&outer);
  EXPECT_THAT(CheckNotCancelled("nothing was done"),
              StatusIs(absl::StatusCode::kCancelled, "the caller cancelled it; nothing was done"));
  {
    const CancellationScope nested(&inner);
    EXPECT_FALSE(CallsAreCancelled());
    const CancellationScope none(nullptr);
    EXPECT_FALSE(CallsAreCancelled());
  }
  EXPECT_TRUE(CallsAreCancelled());
}

TEST(CancellationTest, AHookRunsOnceAndNotAfterItsEnd) {
  Cancellation cancellation;
  const CancellationScope scope(&cancellation);
  int ran = 0;
  {
    const CancelHook gone([&] { ran += 100; });
  }
  const CancelHook hook([&] { ++ran; });
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_EQ(ran, 1);
}

TEST(CancellationTest, AHookOfACancelledThreadRunsAtOnce) {
  Cancellation cancellation;
  cancellation.Cancel();
  const CancellationScope scope(&cancellation);
  bool ran = false;
  const CancelHook hook([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(SignalTest, AWaitIsEndedByTheCancellationOfItsThreadAlone) {
  Cancellation cancellation;
  Signal signal;
  absl::Notification waiting;
  bool signalled = true;
  std::thread waiter([&] {
    const CancellationScope scope(&cancellation);
    waiting.Notify();
    signalled = signal.WaitUnlessCancelled(kLong);
  });
  waiting.WaitForNotification();
  cancellation.Cancel();
  waiter.join();
  EXPECT_FALSE(signalled);
  EXPECT_FALSE(signal.WaitUnlessCancelled(absl::ZeroDuration())) << "nobody has notified";
}

TEST(SignalTest, WhatHappenedIsSeenByACancelledThreadToo) {
  Cancellation cancellation;
  cancellation.Cancel();
  const CancellationScope scope(&cancellation);
  Signal signal;
  signal.Notify();
  EXPECT_TRUE(signal.HasBeenNotified());
  EXPECT_TRUE(signal.Wait(kLong));
  EXPECT_TRUE(signal.WaitUnlessCancelled(kLong));
}

}  // namespace
}  // namespace th
