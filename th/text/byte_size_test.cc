#include "th/text/byte_size.h"

#include "gtest/gtest.h"

namespace th {
namespace {

constexpr uint64_t kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;

TEST(ByteSizeTextTest, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(ByteSizeText(0), "0B");
  EXPECT_EQ(ByteSizeText(1000), "1000B");
  EXPECT_EQ(ByteSizeText(kKi), "1KiB");
  EXPECT_EQ(ByteSizeText(16 * kMi), "16MiB");
  EXPECT_EQ(ByteSizeText(3 * kGi / 2), "1.5GiB");
  EXPECT_EQ(ByteSizeText(kGi + 1), "1.0GiB");
  EXPECT_EQ(ByteSizeText(8 * kTi), "8TiB");
}

TEST(ByteSizeTextTest, AValueToGiveLosesNothing) {
  EXPECT_EQ(ExactByteSizeText(1000), "1000B");
  EXPECT_EQ(ExactByteSizeText(400'072), "400072B");
  EXPECT_EQ(ExactByteSizeText(16 * kMi), "16MiB");
  EXPECT_EQ(ExactByteSizeText(3 * kGi / 2), "1536MiB");
  EXPECT_EQ(ExactByteSizeText(0), "0B");
  EXPECT_EQ(ExactByteSizeText(kGi + 1), "1073741825B");
}

}  // namespace
}  // namespace th
