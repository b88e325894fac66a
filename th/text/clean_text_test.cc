#include "th/text/clean_text.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(CleanTextTest, NeverCutsACodePointInTwo) {
  EXPECT_EQ(CleanText("a\xc3\xa9", 2), "a");
  EXPECT_EQ(CleanText("a\xc3\xa9", 3), "a\xc3\xa9");
  EXPECT_EQ(CleanText("a\xff", 3), "a");
}

}  // namespace
}  // namespace th
