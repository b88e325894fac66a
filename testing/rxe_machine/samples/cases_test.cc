// A GoogleTest whose cases come to different results: how they are counted is what its user tests.
#include <gtest/gtest.h>

namespace {

TEST(CasesTest, Passes) {}
TEST(CasesTest, Fails) { FAIL() << "as it should"; }
TEST(CasesTest, IsSkipped) { GTEST_SKIP() << "as it should be"; }

}  // namespace
