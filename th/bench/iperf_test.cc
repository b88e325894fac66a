#include "th/bench/iperf.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;

TEST(IperfTest, TakesWhatWasReceived) {
  EXPECT_THAT(GigabytesPerSecondOfIperf(R"({"end": {"sum_sent": {"bits_per_second": 9e9},
                                            "sum_received": {"bits_per_second": 8e9}}})"),
              IsOkAndHolds(1.0));
}

TEST(IperfTest, PassesItsErrorOn) {
  EXPECT_THAT(GigabytesPerSecondOfIperf(R"({"end": {}, "error": "unable to connect"})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unable to connect")));
}

TEST(IperfTest, RefusesAReportWithoutASpeed) {
  for (const char* text :
       {"", "nonsense", "[]", "{}", R"({"end": {"sum_received": {"bits_per_second": "fast"}}})"}) {
    EXPECT_THAT(GigabytesPerSecondOfIperf(text), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

}  // namespace
}  // namespace th
