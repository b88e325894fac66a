#include "testing/status_matchers.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace th::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;

absl::StatusOr<int> Seven() { return 7; }
absl::StatusOr<int> Lost() { return absl::NotFoundError("no holder of version 7"); }

TEST(StatusMatchersTest, IsOkTellsOkFromError) {
  EXPECT_OK(absl::OkStatus());
  EXPECT_OK(Seven());
  EXPECT_THAT(Lost(), Not(IsOk()));
  EXPECT_THAT(absl::CancelledError(), Not(IsOk()));
}

TEST(StatusMatchersTest, IsOkAndHoldsLooksAtTheValue) {
  EXPECT_THAT(Seven(), IsOkAndHolds(7));
  EXPECT_THAT(Seven(), IsOkAndHolds(Gt(6)));
  EXPECT_THAT(Seven(), Not(IsOkAndHolds(8)));
  EXPECT_THAT(Lost(), Not(IsOkAndHolds(7)));
  EXPECT_THAT(absl::StatusOr<std::string>("label"), IsOkAndHolds("label"));
  EXPECT_THAT((absl::StatusOr<std::vector<int>>({1, 2})), IsOkAndHolds(ElementsAre(1, 2)));
}

TEST(StatusMatchersTest, IsOkAndHoldsBearsMoveOnlyValues) {
  absl::StatusOr<std::unique_ptr<int>> result = std::make_unique<int>(7);
  EXPECT_THAT(result, IsOkAndHolds(Pointee(7)));
}

TEST(StatusMatchersTest, StatusIsComparesCodeAndMessage) {
  EXPECT_THAT(Lost(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Lost(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 7")));
  EXPECT_THAT(Lost(), StatusIs(absl::StatusCode::kNotFound, "no holder of version 7"));
  EXPECT_THAT(Lost(), Not(StatusIs(absl::StatusCode::kNotFound, "other")));
  EXPECT_THAT(Lost(), Not(StatusIs(absl::StatusCode::kAborted)));
  EXPECT_THAT(absl::OkStatus(), StatusIs(absl::StatusCode::kOk));
}

TEST(StatusMatchersTest, AssignBindsTheValue) {
  ASSERT_OK_AND_ASSIGN(const int seven, Seven());
  EXPECT_EQ(seven, 7);
  int again = 0;
  ASSERT_OK_AND_ASSIGN(again, Seven());
  EXPECT_EQ(again, 7);
}

void AssignFromAnError() { ASSERT_OK_AND_ASSIGN([[maybe_unused]] int value, Lost()); }

TEST(StatusMatchersTest, AssignFailsWithExpressionAndStatus) {
  EXPECT_FATAL_FAILURE(AssignFromAnError(), "Lost() returned NOT_FOUND: no holder of version 7");
}

TEST(StatusMatchersTest, FailureShowsTheStatus) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(absl::AbortedError("rank 3 left")), "ABORTED: rank 3 left");
}

}  // namespace
}  // namespace th::testing
