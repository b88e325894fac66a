#include "th/status/status_macros.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

absl::StatusOr<std::unique_ptr<int>> Boxed(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> ChecksumOf(int a, int b) {
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, Boxed(a));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, Boxed(b));
  return *left + *right;
}

absl::StatusOr<std::string> After(absl::Status status) {
  TH_RETURN_IF_ERROR(status);
  return "reached";
}

TEST(StatusMacrosTest, AssignMovesTheValueOut) { EXPECT_THAT(ChecksumOf(1, 2), IsOkAndHolds(3)); }

TEST(StatusMacrosTest, AssignReturnsTheError) {
  EXPECT_THAT(ChecksumOf(1, -2), StatusIs(absl::StatusCode::kOutOfRange, "negative"));
}

TEST(StatusMacrosTest, ReturnIfErrorGoesOnWhenAllIsWell) {
  EXPECT_THAT(After(absl::OkStatus()), IsOkAndHolds("reached"));
}

TEST(StatusMacrosTest, ReturnIfErrorReturnsTheError) {
  EXPECT_THAT(After(absl::AbortedError("rank 3")), StatusIs(absl::StatusCode::kAborted, "rank 3"));
}

}  // namespace
}  // namespace th
