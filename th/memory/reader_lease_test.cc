#include "th/memory/reader_lease.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "gtest/gtest.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::th::testing::OpenDescriptors;
using ::th::testing::StatusIs;

TEST(ReaderLeaseTest, LastsAsLongAsItsHolder) {
  ASSERT_OK_AND_ASSIGN(const LeasePlace place, NewLeasePlace());
  EXPECT_FALSE(IsLeased(place.number));
  {
    ASSERT_OK_AND_ASSIGN(const auto lease, ReaderLease::Take(getpid(), place));
    EXPECT_TRUE(IsLeased(place.number));
  }
  EXPECT_FALSE(IsLeased(place.number));
}

TEST(ReaderLeaseTest, SeveralReadersHaveLeasesOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(const LeasePlace place, NewLeasePlace());
  ASSERT_OK_AND_ASSIGN(auto one, ReaderLease::Take(getpid(), place));
  ASSERT_OK_AND_ASSIGN(auto two, ReaderLease::Take(getpid(), place));
  one.reset();
  EXPECT_TRUE(IsLeased(place.number));
  two.reset();
  EXPECT_FALSE(IsLeased(place.number));
}

TEST(ReaderLeaseTest, NumbersDoNotTouchEachOther) {
  ASSERT_OK_AND_ASSIGN(const LeasePlace first, NewLeasePlace());
  ASSERT_OK_AND_ASSIGN(const LeasePlace second, NewLeasePlace());
  EXPECT_NE(first.number, second.number);
  ASSERT_OK_AND_ASSIGN(const auto lease, ReaderLease::Take(getpid(), second));
  EXPECT_FALSE(IsLeased(first.number));
  EXPECT_TRUE(IsLeased(second.number));
}

TEST(ReaderLeaseTest, EndsWithAKilledReader) {
  ASSERT_OK_AND_ASSIGN(const LeasePlace place, NewLeasePlace());
  const pid_t owner = getpid();
  int taken[2];
  ASSERT_EQ(pipe(taken), 0);
  const pid_t reader = fork();
  if (reader == 0) {
    const auto lease = ReaderLease::Take(owner, place);
    const char ok = lease.ok() ? 1 : 0;
    if (write(taken[1], &ok, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char ok = 0;
  ASSERT_EQ(read(taken[0], &ok, 1), 1);
  EXPECT_EQ(ok, 1);
  EXPECT_TRUE(IsLeased(place.number));
  kill(reader, SIGKILL);
  waitpid(reader, nullptr, 0);
  EXPECT_FALSE(IsLeased(place.number));
  close(taken[0]);
  close(taken[1]);
}

TEST(ReaderLeaseTest, RefusesAnotherFileThanTheOneNamed) {
  ASSERT_OK_AND_ASSIGN(LeasePlace place, NewLeasePlace());
  ++place.inode;
  EXPECT_THAT(ReaderLease::Take(getpid(), place).status(), StatusIs(absl::StatusCode::kNotFound));
  place.file_descriptor = 1'000'000;
  EXPECT_THAT(ReaderLease::Take(getpid(), place).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ReaderLeaseTest, LeaksNoDescriptor) {
  ASSERT_OK_AND_ASSIGN(const LeasePlace place, NewLeasePlace());
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) ASSERT_OK(ReaderLease::Take(getpid(), place).status());
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace th
