#include "th/processes/descriptor_limit.h"

#include <sys/resource.h>

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;

rlimit Limit() {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

TEST(DescriptorLimitTest, ALowerLimitIsRaisedAndAHigherOneStays) {
  const rlimit low = {.rlim_cur = 64, .rlim_max = Limit().rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_OK(EnsureDescriptorLimit(100));
  EXPECT_EQ(Limit().rlim_cur, 100u);
  EXPECT_OK(EnsureDescriptorLimit(80));
  EXPECT_EQ(Limit().rlim_cur, 100u);
}

// No user may have more than fs.nr_open, which is below this on every machine.
TEST(DescriptorLimitTest, WhatNobodyMayHaveIsRefusedNamingTheNumber) {
  const absl::Status status = EnsureDescriptorLimit(uint64_t{1} << 40);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1099511627776 open files"));
}

}  // namespace
}  // namespace th
