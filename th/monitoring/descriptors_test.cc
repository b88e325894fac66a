#include "th/monitoring/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

// Puts the soft limit back.
class DescriptorsTest : public ::testing::Test {
 protected:
  DescriptorsTest() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorsTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

  void Limit(rlim_t limit) const {
    const rlimit lower{limit, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }

  rlimit before_{};
};

TEST_F(DescriptorsTest, TheLimitIsRaisedToTheHardOne) {
  Limit(64);
  ASSERT_OK_AND_ASSIGN(const RaisedLimit raised, RaiseDescriptorLimit());
  EXPECT_EQ(raised.before, 64u);
  EXPECT_EQ(raised.now, before_.rlim_max);
  EXPECT_EQ(DescriptorLimit(), before_.rlim_max);
}

TEST_F(DescriptorsTest, OpenOnesAreCounted) {
  const uint64_t before = OpenDescriptors();
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(OpenDescriptors(), before + 1);
  close(fd);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DescriptorsTest, AQuarterOfALowLimitIsReserved) {
  EXPECT_EQ(ReservedDescriptors(64), 16u);
  EXPECT_EQ(ConnectionLimit(64), 48u);
  EXPECT_EQ(ReservedDescriptors(1u << 20), kReservedDescriptors);
}

TEST_F(DescriptorsTest, TheyAreShortOnceOnlyReservedOnesAreLeft) {
  Limit(64);
  std::vector<int> open_ones;
  while (!DescriptorsExhausted()) {
    ASSERT_LT(open_ones.size(), 64u);
    open_ones.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_GE(open_ones.back(), 0);
    EXPECT_FALSE(IsReserved(open_ones.back()));
  }
  open_ones.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(IsReserved(open_ones.back()));
  for (const int fd : open_ones) close(fd);
  EXPECT_FALSE(DescriptorsExhausted());
}

}  // namespace
}  // namespace th
