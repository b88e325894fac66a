#include "th/bench/policy_flag.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/scheduler/scheduler.h"

namespace th {
namespace {

using ::testing::HasSubstr;

ParsedFlags Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "policy_server");
  return ParseServerFlags(static_cast<int>(arguments.size()), arguments.data(), "1.2.3",
                          AddPolicyFlag);
}

TEST(PolicyFlagTest, ChoosesAmongTheSchedulersPolicies) {
  EXPECT_EQ(Parse({}).flags.limits.scheduler.policy, SchedulerPolicy::kNearest);
  const ParsedFlags parsed = Parse({"--policy=direct", "--lease=7s"});
  EXPECT_FALSE(parsed.exit.has_value());
  EXPECT_EQ(parsed.flags.limits.scheduler.policy, SchedulerPolicy::kDirect);
  EXPECT_EQ(parsed.flags.limits.lease, absl::Seconds(7));
}

TEST(PolicyFlagTest, AnotherNameIsAUsageError) {
  for (const std::string name : {"1", "Direct"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({"--policy", name.c_str()}).exit, ServerExit::kUsage);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("'" + name + "' is no policy"));
  }
}

}  // namespace
}  // namespace th
