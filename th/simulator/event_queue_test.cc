#include "th/simulator/event_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace th {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(EventQueueTest, RunsInTheOrderOfTimeAndThenOfPosting) {
  EventQueue queue(kStart);
  std::string ran;
  queue.Post(absl::Seconds(2), [&] { ran += 'd'; });
  queue.Post(absl::Seconds(1), [&] { ran += 'b'; });
  queue.Post(absl::Seconds(1), [&] { ran += 'c'; });
  queue.Post(absl::ZeroDuration(), [&] { ran += 'a'; });
  while (queue.next() < absl::InfiniteFuture()) queue.RunNext();
  EXPECT_EQ(ran, "abcd");
  EXPECT_EQ(queue.now(), kStart + absl::Seconds(2));
}

TEST(EventQueueTest, AnEventMayPostOthersAndThePastIsNow) {
  EventQueue queue(kStart);
  absl::Time inner;
  queue.Post(absl::Seconds(1), [&] { queue.PostAt(kStart, [&] { inner = queue.now(); }); });
  queue.RunNext();
  ASSERT_EQ(queue.next(), kStart + absl::Seconds(1));
  queue.RunNext();
  EXPECT_EQ(inner, kStart + absl::Seconds(1));
}

TEST(EventQueueTest, TheClockIsNotMovedPastAnEventNorBack) {
  EventQueue queue(kStart);
  queue.Post(absl::Seconds(1), [] {});
  queue.AdvanceTo(kStart + absl::Seconds(5));
  EXPECT_EQ(queue.now(), kStart + absl::Seconds(1));
  queue.AdvanceTo(kStart);
  EXPECT_EQ(queue.now(), kStart + absl::Seconds(1));
}

}  // namespace
}  // namespace th
