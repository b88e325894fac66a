#include "th/cli/pulling.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StatusIs;

TEST(ReaderOptionsTest, TheGroupIsNamedAfterTheCommandAndProcess) {
  ASSERT_OK_AND_ASSIGN(const ClientOptions attach, ReaderOptions({.command = "attach"}));
  ASSERT_OK_AND_ASSIGN(const ClientOptions pull, ReaderOptions({}));
  EXPECT_THAT(attach.group, StartsWith("attach-"));
  EXPECT_THAT(pull.group, StartsWith("pull-"));
  EXPECT_TRUE(attach.spot) << "it ends once it has read";
}

TEST(ReaderOptionsTest, AGroupThatIsGivenStands) {
  ASSERT_OK_AND_ASSIGN(const ClientOptions options,
                       ReaderOptions({.member = {.group = "mine"}, .command = "attach"}));
  EXPECT_EQ(options.group, "mine");
}

TEST(ReaderOptionsTest, FlagsThatDoNothingTogetherAreRefused) {
  EXPECT_THAT(
      ReaderOptions({.member = {.uplink_bytes_per_second = 1, .transports = {"same_host"}}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--rate has no effect")));
}

}  // namespace
}  // namespace th
