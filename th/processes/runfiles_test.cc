#include "th/processes/runfiles.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

TEST(RunfilesRootsTest, PrefersTheEnvironmentOverTheProgramsOwnFolder) {
  const std::map<std::string, std::string> variables = {{"RUNFILES_DIR", "/run"},
                                                        {"TEST_SRCDIR", ""}};
  const auto environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_THAT(RunfilesRoots("/bin/th", environment), ElementsAre("/run", "/bin/th.runfiles"));
}

TEST(RunfilesRootsTest, FallsBackToTheProgramsOwnFolder) {
  EXPECT_THAT(RunfilesRoots("/bin/th", [](const char*) -> const char* { return nullptr; }),
              ElementsAre("/bin/th.runfiles"));
}

TEST(FindRunfileTest, NamesWhereItLooked) {
  EXPECT_THAT(FindRunfile("tensorhub", "no/such/file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tensorhub/no/such/file")));
}

TEST(FindProgramTest, NamesTheFolderOfThisProgramToo) {
  EXPECT_THAT(FindProgram("th/server/no_such_program"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no_such_program")));
}

TEST(OwnPathTest, IsThisTest) { EXPECT_THAT(OwnPath(), HasSubstr("runfiles_test")); }

}  // namespace
}  // namespace th
