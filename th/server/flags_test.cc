#include "th/server/flags.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

ParsedFlags Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tensorhub_server");
  return ParseServerFlags(static_cast<int>(arguments.size()), arguments.data(), "1.2.3");
}

TEST(ServerFlagsTest, NothingNeedsToBeGiven) {
  const ParsedFlags parsed = Parse({});
  EXPECT_FALSE(parsed.exit.has_value());
  EXPECT_EQ(parsed.flags.listen, "127.0.0.1:7077");
  EXPECT_EQ(parsed.flags.http, "");
  EXPECT_EQ(parsed.flags.state_dir, "./tensorhub-state");
}

TEST(ServerFlagsTest, EveryFlagIsTaken) {
  const ParsedFlags parsed = Parse(
      {"--listen=0.0.0.0:0", "--http", "127.0.0.1:0", "--state-dir=/s", "--port-file=/p", "--json",
       "--lease=7s", "--suspect-after=2s", "--recovery-window=250ms", "--max-sources=3",
       "--max-readers-per-source=9", "--log-level=warning", "--log-json", "--forget-after=48h"});
  EXPECT_FALSE(parsed.exit.has_value());
  EXPECT_EQ(parsed.flags.listen, "0.0.0.0:0");
  EXPECT_EQ(parsed.flags.http, "127.0.0.1:0");
  EXPECT_EQ(parsed.flags.state_dir, "/s");
  EXPECT_EQ(parsed.flags.port_file, "/p");
  EXPECT_TRUE(parsed.flags.json);
  EXPECT_EQ(parsed.flags.log_level, 1);
  EXPECT_TRUE(parsed.flags.log_json);
  EXPECT_EQ(parsed.flags.limits.lease, absl::Seconds(7));
  EXPECT_EQ(parsed.flags.limits.suspect_after, absl::Seconds(2));
  EXPECT_EQ(parsed.flags.limits.recovery_window, absl::Milliseconds(250));
  EXPECT_EQ(parsed.flags.limits.forget_after, absl::Hours(48));
  EXPECT_EQ(parsed.flags.limits.scheduler.max_sources, 3u);
  EXPECT_EQ(parsed.flags.limits.scheduler.max_readers_per_source, 9u);
  EXPECT_EQ(parsed.flags.limits.scheduler.policy, SchedulerPolicy::kNearest);
}

TEST(ServerFlagsTest, AnEmptyValueIsAUsageErrorOfAnyFlag) {
  for (const char* flag : {"--listen", "--http", "--state-dir", "--port-file", "--max-sources"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({flag, ""}).exit, ServerExit::kUsage) << flag;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("has an empty value")) << flag;
  }
}

TEST(ServerFlagsTest, AFlagThatTakesNoValueIsGivenNone) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse({"--json=3"}).exit, ServerExit::kUsage);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--json: takes no value"));
}

TEST(ServerFlagsTest, ModelsMayBeKeptForEver) {
  EXPECT_EQ(Parse({"--forget-after=0"}).flags.limits.forget_after, absl::InfiniteDuration());
}

TEST(ServerFlagsTest, AnIntegerIsDecimal) {
  EXPECT_EQ(Parse({"--max-sources", "010"}).flags.limits.scheduler.max_sources, 10u);
}

TEST(ServerFlagsTest, VersionIsPrintedAndEndsCleanly) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--version"}).exit, ServerExit::kClean);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "tensorhub_server 1.2.3\n");
}

TEST(ServerFlagsTest, HelpNamesEveryFlagAndEndsCleanly) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--help"}).exit, ServerExit::kClean);
  const std::string help = ::testing::internal::GetCapturedStdout();
  for (const char* flag : {"--listen", "--http", "--state-dir", "--port-file", "--lease"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

TEST(ServerFlagsTest, ASourceIsSuspectedBeforeItIsDropped) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse({"--suspect-after=3s", "--lease=2s"}).exit, ServerExit::kUsage);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--suspect-after: 3s is longer than --lease, 2s"));
  EXPECT_FALSE(Parse({"--suspect-after=2s", "--lease=2s"}).exit.has_value());
  EXPECT_EQ(Parse({"--lease=60s"}).flags.limits.suspect_after, std::nullopt) << "the lease says it";
}

struct BadFlag {
  const char* argument;
  const char* message;
};

class BadFlagTest : public ::testing::TestWithParam<BadFlag> {};

TEST_P(BadFlagTest, IsAUsageErrorThatNamesIt) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse({GetParam().argument}).exit, ServerExit::kUsage);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    ServerFlags, BadFlagTest,
    ::testing::Values(
        BadFlag{"--nope", "--nope"}, BadFlag{"stray", "stray"},
        BadFlag{"--listen=nonsense", "nonsense"}, BadFlag{"--http=:1", ":1"},
        BadFlag{"--max-sources=065", "65 not in range"},
        BadFlag{"--lease=5", "--lease: \"5\" has no unit"}, BadFlag{"--lease=-1s", "-1s"},
        BadFlag{"--lease=1ms", "1ms is too short: give at least 500ms"},
        BadFlag{"--lease=0s", "no duration above zero"}, BadFlag{"--lease=inf", "inf"},
        BadFlag{"--forget-after=7", "\"7\" has no unit"}, BadFlag{"--forget-after=-1h", "-1h"},
        BadFlag{"--max-sources=0", "--max-sources"}, BadFlag{"--log-level=loud", "--log-level"},
        BadFlag{"--end-with-parent=abc", "in range 1 to 2147483647"},
        BadFlag{"--end-with-parent=0", "in range 1 to 2147483647"},
        BadFlag{"--max-sources=x", "--max-sources"}, BadFlag{"--policy=direct", "--policy"}));

}  // namespace
}  // namespace th
