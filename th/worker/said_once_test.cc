#include "th/worker/said_once.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(SaidOnceTest, TheSameWarningIsNewOnceUntilItIsCleared) {
  SaidOnce said;
  EXPECT_TRUE(said.IsNew("no room; operation 3 event=1-6"));
  EXPECT_FALSE(said.IsNew("no room; operation 4 event=1-7"));
  EXPECT_TRUE(said.IsNew("no server"));
  EXPECT_TRUE(said.IsNew("no room; operation 5 event=1-9"));
  said.Clear();
  EXPECT_TRUE(said.IsNew("no room; operation 6 event=1-11"));
}

}  // namespace
}  // namespace th
