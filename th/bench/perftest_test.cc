#include "th/bench/perftest.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;

TEST(PerftestTest, TakesTheAverageRate) {
  EXPECT_THAT(
      GigabytesPerSecondOfPerftest(
          "---------------------------------------------------------\n"
          " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
          " 1048576    32             220.50             200.00               0.000191\n"
          "---------------------------------------------------------\n"),
      IsOkAndHolds(DoubleNear(0.2097152, 1e-9)));
}

TEST(PerftestTest, RefusesAReportWithoutARate) {
  for (const char* text : {"", "Couldn't connect to 127.0.0.1:18515",
                           " 1048576    32             220.50             nothing",
                           " 1048576    32             0.00               0.00    0.0",
                           " 65536      32             220.50             200.00  0.1"}) {
    EXPECT_THAT(GigabytesPerSecondOfPerftest(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ib_read_bw")))
        << text;
  }
}

// The value that follows a flag.
std::string After(const std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == flag) return arguments[i + 1];
  }
  return "none";
}

TEST(PerftestTest, EachEndHasItsDeviceAndBothTheSameShape) {
  const RdmaPath path{.source = {.device = "mlx5_0", .port = 1, .gid_index = 3},
                      .reader = {.device = "mlx5_1", .port = 2, .gid_index = 5},
                      .connections = 2};
  const PerftestArguments arguments = ArgumentsOfPerftest("/bin/x", path, 1 << 28, 4711);
  EXPECT_EQ(arguments.server.front(), "/bin/x");
  EXPECT_EQ(After(arguments.server, "--ib-dev"), "mlx5_0");
  EXPECT_EQ(After(arguments.server, "--gid-index"), "3");
  EXPECT_EQ(After(arguments.client, "--ib-dev"), "mlx5_1");
  EXPECT_EQ(After(arguments.client, "--ib-port"), "2");
  EXPECT_EQ(After(arguments.client, "--gid-index"), "5");
  EXPECT_EQ(arguments.client.back(), "127.0.0.1");
  for (const auto& end : {arguments.server, arguments.client}) {
    EXPECT_EQ(After(end, "--iters"), "128") << "each of the two queue pairs has half of 256 MiB";
    EXPECT_EQ(After(end, "--qp"), "2");
    EXPECT_EQ(After(end, "--port"), "4711");
    EXPECT_EQ(After(end, "--size"), "1048576");
  }
  EXPECT_EQ(After(ArgumentsOfPerftest("x", path, 1, 1).client, "--iters"), "5");
}

TEST(PerftestTest, RefusesToMeasureNothing) {
  EXPECT_THAT(MeasurePerftest({}, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace th
