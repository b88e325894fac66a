#include "th/wire/grpc_status.h"

#include <string>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/wire/limits.h"

namespace th {
namespace {

using ::th::testing::StatusIs;

class EveryCodeTest : public ::testing::TestWithParam<int> {};

TEST_P(EveryCodeTest, SurvivesBothWays) {
  const absl::Status status(static_cast<absl::StatusCode>(GetParam()),
                            GetParam() == 0 ? "" : "why");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
}

INSTANTIATE_TEST_SUITE_P(Codes, EveryCodeTest, ::testing::Range(0, 17));

TEST(GrpcStatusTest, ALongMessageIsCutToWhatTrailingMetadataCarry) {
  const absl::Status status = absl::InternalError(std::string(100'000, 'x'));
  EXPECT_EQ(ToGrpcStatus(status).error_message().size(), kMaxGrpcStatusMessageBytes);
}

TEST(GrpcStatusTest, ACodeFromTheFutureIsUnknown) {
  EXPECT_THAT(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(31), "new")),
              StatusIs(absl::StatusCode::kUnknown, "new"));
}

}  // namespace
}  // namespace th
