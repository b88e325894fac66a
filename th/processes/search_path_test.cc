#include "th/processes/search_path.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;

TEST(FindInPathTest, FindsAProgramOrSaysThatItIsNotInstalled) {
  EXPECT_THAT(FindInPath("sh", "/no/such:/bin"), IsOkAndHolds("/bin/sh"));
  EXPECT_THAT(FindInPath("no-such-program", "/bin:/usr/bin"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not installed")));
}

TEST(FindToolTest, FindsWhatIsInstalled) {
  EXPECT_THAT(FindTool("sh"), IsOkAndHolds(HasSubstr("/sh")));
  EXPECT_THAT(FindTool("no-such-program"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace th
