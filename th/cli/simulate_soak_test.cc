// The soak's account of what its processes report, with a program that stands in for `th`.
#include "th/cli/simulate_soak.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SoakTest : public ::testing::Test {
 protected:
  // A program that answers each batch with what `body` prints; $6 is the first seed, $4 how many.
  std::string Program(const std::string& body) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/stand-in");
    std::ofstream(path) << "#!/bin/sh\ncount=$4; first=$6\n" << body << "\n";
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    return path;
  }
  // One batch a process, unless it takes longer.
  absl::StatusOr<SoakResult> Run(const std::string& body, uint32_t processes = 2) {
    return Soak({.program = Program(body),
                 .folder = ::testing::TempDir(),
                 .duration = absl::Nanoseconds(1),
                 .first_seed = 1'000,
                 .processes = processes,
                 .batch = 10,
                 .print_line = [this](const std::string& line) { reported_.push_back(line); },
                 .stopped =
                     [this](absl::Duration pause) {
                       return stopped_.WaitForNotificationWithTimeout(stop_ ? absl::ZeroDuration()
                                                                            : pause) ||
                              stop_;
                     }});
  }
  std::string reported() const { return absl::StrJoin(reported_, "\n"); }

  bool stop_ = false;
  absl::Notification stopped_;  // never: only waited for
  std::vector<std::string> reported_;
};

constexpr char kGood[] = R"(echo "{\"seeds\": $count, \"failed_seeds\": 0, \"failures\": []}")";
constexpr char kBad[] =
    R"(echo "{\"seeds\": $count, \"failed_seeds\": 1, \"failures\": [{\"command\": \"run $first\",
\"violated\": [\"a lie\"], \"shortest_command\": \"run less\", \"faults\": [\"a cut\"]}]}" | tr -d '\n'; echo)";

TEST_F(SoakTest, EveryProcessHasItsOwnSeeds) {
  ASSERT_OK_AND_ASSIGN(const SoakResult result, Run(kGood));
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.seeds, 20u);
  EXPECT_EQ(result.first_seed, 1'000u);
  EXPECT_EQ(result.next_seed, 1'020u);
  EXPECT_FALSE(result.interrupted);
  EXPECT_THAT(TextOf(result), HasSubstr("GOOD: 20 fresh seeds from 1000 on"));
}

TEST_F(SoakTest, AFailureIsToldWithItsFewestFaults) {
  ASSERT_OK_AND_ASSIGN(const SoakResult result, Run(kBad));
  EXPECT_FALSE(result.good());
  EXPECT_EQ(result.failed_seeds, 2u);
  EXPECT_THAT(result.failures, SizeIs(2));
  EXPECT_THAT(reported(), HasSubstr("run 1000\nviolates what must hold:\n  a lie\n"
                                    "these faults are enough (run less):\n  a cut"));
  EXPECT_EQ(ToJson(result).at("failed_seeds"), 2);
}

TEST_F(SoakTest, AProcessThatCrashesIsAFailureOfItsSeeds) {
  ASSERT_OK_AND_ASSIGN(const SoakResult result, Run("kill -SEGV $$", /*processes=*/1));
  EXPECT_FALSE(result.good());
  EXPECT_EQ(result.seeds, 0u);
  EXPECT_THAT(result.crashes,
              ElementsAre(HasSubstr("seeds 1000 to 1009: their process was killed by signal 11")));
}

TEST_F(SoakTest, AReportThatIsNoneIsACrash) {
  ASSERT_OK_AND_ASSIGN(const SoakResult result, Run("echo nonsense", /*processes=*/1));
  EXPECT_THAT(result.crashes, SizeIs(1));
}

TEST_F(SoakTest, AStopEndsItAtOnce) {
  stop_ = true;
  ASSERT_OK_AND_ASSIGN(const SoakResult result, Run("exec cat /dev/zero"));
  EXPECT_TRUE(result.interrupted);
  EXPECT_THAT(result.failures, IsEmpty());
}

}  // namespace
}  // namespace th
