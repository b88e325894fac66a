#include "th/command_line/exit_status.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(ExitStatusTest, FollowsTheStatusOfTheCall) {
  const std::vector<std::pair<absl::Status, ExitStatus>> cases = {
      {absl::OkStatus(), ExitStatus::kOk},
      {absl::UnavailableError(""), ExitStatus::kUnreachable},
      {absl::NotFoundError(""), ExitStatus::kNotThere},
      {absl::CancelledError(""), ExitStatus::kInterrupted},
      {absl::DataLossError(""), ExitStatus::kFailed},
      {absl::InvalidArgumentError(""), ExitStatus::kFailed},
      {absl::DeadlineExceededError(""), ExitStatus::kFailed},
  };
  for (const auto& [status, exit] : cases) EXPECT_EQ(ExitStatusOf(status), exit) << status;
}

TEST(ExitStatusTest, AJoinThatTheFlagsSpoilIsAUsageError) {
  EXPECT_EQ(ExitStatusOfJoin(absl::InvalidArgumentError("")), ExitStatus::kUsage);
  EXPECT_EQ(ExitStatusOfJoin(absl::UnavailableError("")), ExitStatus::kUnreachable);
  EXPECT_EQ(ExitStatusOfJoin(absl::FailedPreconditionError("")), ExitStatus::kFailed);
}

TEST(ExitStatusTest, KeepsTheDocumentedNumbers) {
  EXPECT_EQ(static_cast<int>(ExitStatus::kFailed), 1);
  EXPECT_EQ(static_cast<int>(ExitStatus::kUsage), 2);
  EXPECT_EQ(static_cast<int>(ExitStatus::kUnreachable), 3);
  EXPECT_EQ(static_cast<int>(ExitStatus::kNotThere), 4);
  EXPECT_EQ(static_cast<int>(ExitStatus::kLocalFiles), 5);
  EXPECT_EQ(static_cast<int>(ExitStatus::kInterrupted), 130);
}

}  // namespace
}  // namespace th
