#include "th/client_flags/flag_checks.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What is wrong with the value; empty: nothing.
std::string Wrong(const CLI::Validator& check, std::string value) { return check(value); }

TEST(FlagChecksTest, SecondsLieInARangeThatTheErrorNames) {
  const CLI::Validator seconds = IsSeconds(0.5, kMaxTimeoutSeconds);
  for (const char* good : {"0.5", "1", "1e3", "604800"}) {
    EXPECT_THAT(Wrong(seconds, good), IsEmpty()) << good;
  }
  for (const char* bad : {"0.4", "-1", "604801", "inf", "nan", "soon", ""}) {
    EXPECT_THAT(Wrong(seconds, bad), HasSubstr("seconds from 0.5 to 604800")) << bad;
  }
}

TEST(FlagChecksTest, ANameHasNoWhiteSpace) {
  EXPECT_THAT(Wrong(IsName("owner"), "eval"), IsEmpty());
  EXPECT_THAT(Wrong(IsName("owner"), "a b"), HasSubstr("white space"));
  EXPECT_THAT(Wrong(IsName("owner"), ""), HasSubstr("owner"));
}

TEST(FlagChecksTest, ADataAddressIsNumeric) {
  for (const char* good : {"10.0.0.7", "0.0.0.0:0", "10.0.0.7:4711", "::1", "[::1]:0"}) {
    EXPECT_THAT(Wrong(IsDataAddress(), good), IsEmpty()) << good;
  }
  for (const char* bad : {"moon", "10.0.0.7:x", "10.0.0.7:65536", "999.1.1.1", "a b", ":0"}) {
    EXPECT_THAT(Wrong(IsDataAddress(), bad), HasSubstr("10.0.0.7:4711")) << bad;
  }
}

TEST(FlagChecksTest, ALocationHasFields) {
  EXPECT_THAT(Wrong(IsLocation(), "site=a,rack=r1"), IsEmpty());
  EXPECT_THAT(Wrong(IsLocation(), "moon"), HasSubstr("moon"));
}

}  // namespace
}  // namespace th
