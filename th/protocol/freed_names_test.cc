#include "th/protocol/freed_names.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace th {
namespace {

TEST(FreedNamesTest, HasWhatWasAddedUntilItIsCleared) {
  FreedNames freed;
  EXPECT_FALSE(freed.Contains("weights"));
  freed.Add("weights");
  freed.Add("weights");
  EXPECT_TRUE(freed.Contains("weights"));
  EXPECT_FALSE(freed.Contains("adapter"));
  EXPECT_EQ(freed.kept(), 1u);
  freed.Clear();
  EXPECT_FALSE(freed.Contains("weights"));
}

TEST(FreedNamesTest, TakesEveryNameForFreedOnceThereAreTooMany) {
  FreedNames freed;
  for (size_t i = 0; i < kMaxFreedNames; ++i) freed.Add(absl::StrCat("w", i));
  EXPECT_FALSE(freed.Contains("weights"));
  EXPECT_EQ(freed.kept(), kMaxFreedNames);
  freed.Add("one more");
  EXPECT_TRUE(freed.Contains("weights"));
  EXPECT_TRUE(freed.Contains("w7"));
  freed.Add("another");
  EXPECT_TRUE(freed.Contains("weights"));
  EXPECT_LE(freed.kept(), kMaxFreedNames);
  freed.Clear();
  EXPECT_FALSE(freed.Contains("w7"));
}

}  // namespace
}  // namespace th
