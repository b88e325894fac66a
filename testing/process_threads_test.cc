#include "testing/process_threads.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::testing {
namespace {

using ::testing::SizeIs;

// The kernel takes a thread off its list a moment after it has woken who joins it, so one look
// would see that rarely.
TEST(ProcessThreadsTest, AThreadThatWasJoinedIsNotListed) {
  ASSERT_THAT(ThreadsOfThisProcess(), SizeIs(1));
  for (int i = 0; i < 5'000; ++i) {
    std::thread([] {}).join();
    ASSERT_THAT(ThreadsOfThisProcess(), SizeIs(1)) << "after thread " << i;
  }
}

}  // namespace
}  // namespace th::testing
