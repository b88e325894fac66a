#include "th/processes/scratch_folder.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::StatusIs;

TEST(ScratchFolderTest, IsGoneAfterwardsWithAllThatIsInIt) {
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(const ScratchFolder folder, ScratchFolder::Make("th-test", ""));
    path = folder.path();
    EXPECT_THAT(path, HasSubstr("th-test-"));
    std::ofstream(path + "/file") << "x";
    EXPECT_TRUE(fs::exists(path + "/file"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(ScratchFolderTest, StaysWhenItIsToBeKept) {
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(ScratchFolder folder, ScratchFolder::Make("th-test", ""));
    path = folder.path();
    folder.Keep();
  }
  EXPECT_TRUE(fs::exists(path));
  const std::string named = path + "/a/b";
  { ASSERT_OK(ScratchFolder::Make("th-test", named)); }
  EXPECT_TRUE(fs::exists(named));
  fs::remove_all(path);
}

TEST(ScratchFolderTest, TwoOfOneNameAreTwo) {
  ASSERT_OK_AND_ASSIGN(const ScratchFolder first, ScratchFolder::Make("th-test", ""));
  ASSERT_OK_AND_ASSIGN(const ScratchFolder second, ScratchFolder::Make("th-test", ""));
  EXPECT_NE(first.path(), second.path());
}

TEST(ScratchFolderTest, NamesAFolderThatCannotBeMade) {
  EXPECT_THAT(ScratchFolder::Make("th-test", "/proc/no/such"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/proc/no/such")));
}

}  // namespace
}  // namespace th
