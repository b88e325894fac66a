#include "th/memory/cuda/use_count.h"

#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace th {
namespace {

TEST(UseCountTest, OnceRevokedNoneBeginsUntilItIsRestored) {
  UseCount uses;
  std::optional<UseCount::Use> use = uses.Begin();
  EXPECT_EQ(uses.Revoke(absl::ZeroDuration()), 1);
  EXPECT_FALSE(uses.Begin().has_value());
  use.reset();
  EXPECT_EQ(uses.Revoke(absl::ZeroDuration()), 0);
  uses.Restore();
  EXPECT_TRUE(uses.Begin().has_value());
}

TEST(UseCountTest, UsesOfOtherBytesAreNotAwaited) {
  UseCount uses;
  const std::optional<UseCount::Use> use = uses.Begin({10, 20});
  EXPECT_EQ(uses.Await({0, 10}, absl::ZeroDuration()), 0);
  EXPECT_EQ(uses.Await({20, 30}, absl::ZeroDuration()), 0);
  EXPECT_EQ(uses.Await({0, 11}, absl::ZeroDuration()), 1);
  EXPECT_EQ(uses.Await({19, 20}, absl::ZeroDuration()), 1);
}

}  // namespace
}  // namespace th
