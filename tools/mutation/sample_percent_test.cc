#include "tools/mutation/sample_percent.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(SamplePercentTest, KeepsWhatIsInRange) { EXPECT_EQ(Percent(55), 55); }
TEST(SamplePercentTest, IsAtMostOneHundred) { EXPECT_EQ(Percent(101), 100); }

}  // namespace
}  // namespace th
