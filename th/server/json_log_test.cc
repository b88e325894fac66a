#include "th/server/json_log.h"

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace th {
namespace {

TEST(JsonLogTest, ALineIsAnObject) {
  const absl::Time at = absl::FromUnixMillis(1'700'000'000'125);
  EXPECT_EQ(
      JsonLogLine(at, "WARNING", "server.cc", 17, "said \"no\"\nand went"),
      "{\"time\":\"2023-11-14T22:13:20.125000Z\",\"level\":\"WARNING\",\"file\":\"server.cc\","
      "\"line\":17,\"message\":\"said \\\"no\\\"\\nand went\"}");
}

TEST(JsonLogTest, BytesThatAreNoTextAreReplaced) {
  const std::string line = JsonLogLine(absl::Now(), "INFO", "a.cc", 1, "\xff");
  EXPECT_EQ(nlohmann::json::parse(line)["message"], "\xef\xbf\xbd");
}

}  // namespace
}  // namespace th
