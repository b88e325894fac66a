#include "th/version/version.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::MatchesRegex;

TEST(VersionTest, NamesReleaseAndCommit) {
  EXPECT_THAT(
      BuildVersion(),
      MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+ \\(commit ([0-9a-f]+(-modified)?|unknown)\\)"));
}

TEST(VersionTest, ReleaseIsSemantic) {
  EXPECT_THAT(ReleaseVersion(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace th
