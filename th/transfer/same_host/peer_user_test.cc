#include "th/transfer/same_host/peer_user.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::same_host {
namespace {

using ::testing::HasSubstr;

constexpr UserNamespace kHost{.overflow = 65534, .knows_all = true};
constexpr UserNamespace kContainer{.overflow = 65534, .knows_all = false};

TEST(KnowsAllUsersTest, OnlyTheWholeRangeIsAll) {
  EXPECT_TRUE(KnowsAllUsers("         0          0 4294967295\n"));
  EXPECT_TRUE(KnowsAllUsers(""));  // a kernel without user namespaces
  EXPECT_FALSE(KnowsAllUsers("         0       1000          1\n"));
  EXPECT_FALSE(KnowsAllUsers("0 1000 1\n1 100000 65536\n"));
  EXPECT_TRUE(KnowsAllUsers("0 100000 65536\n65536 0 4294901759\n"));
}

TEST(IsSameUserTest, UsersAreComparedByNumber) {
  EXPECT_TRUE(IsSameUser(1000, 1000, kHost));
  EXPECT_TRUE(IsSameUser(1000, 1000, kContainer));
  EXPECT_FALSE(IsSameUser(1000, 1001, kHost));
}

// In a container any user of the host is shown as that one.
TEST(IsSameUserTest, TheNumberThatStandsForUnknownOnesProvesNothingWhereThereAreSome) {
  EXPECT_TRUE(IsSameUser(65534, 65534, kHost));
  EXPECT_FALSE(IsSameUser(65534, 65534, kContainer));
  EXPECT_FALSE(IsSameUser(7, 7, {.overflow = 7, .knows_all = false}));
}

TEST(IsOwnUserTest, ThisProcessIsItsOwn) {
  const UserNamespace users = UserNamespace::OfThisProcess();
  EXPECT_EQ(IsOwnUser(geteuid()), users.knows_all || geteuid() != users.overflow);
  EXPECT_FALSE(IsOwnUser(geteuid() + 1));
}

TEST(DescribeUsersTest, SaysWhyTwoOfOneNumberAreNotTakenForOne) {
  EXPECT_EQ(DescribeUsers(7, 8), "the source runs as user 7, this process as user 8");
  EXPECT_THAT(DescribeUsers(65534, 65534), HasSubstr("every user that it does not know"));
}

}  // namespace
}  // namespace th::same_host
