#include "th/client_flags/flag_checks.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The fault of the value; empty when there is none.
std::string Wrong(const CLI::Validator& check, std::string value) { return check(value); }

TEST(FlagChecksTest, ATransportHasTwoSpellings) {
  const std::vector<std::pair<std::string, std::string>> spellings = {
      {"tcp", "tcp"},         {"same_host", "same_host"}, {"same-host", "same_host"},
      {"ibverbs", "ibverbs"}, {"rdma", "ibverbs"},        {"cuda_ipc", "cuda_ipc"},
      {"cuda", "cuda_ipc"}};
  for (const auto& [spelling, name] : spellings) {
    std::string value = spelling;
    EXPECT_THAT(IsTransport()(value), IsEmpty()) << spelling;
    EXPECT_EQ(value, name);
  }
  EXPECT_THAT(Wrong(IsTransport(), "pigeon"),
              AllOf(HasSubstr("\"pigeon\" is no transport"), HasSubstr("ibverbs (or rdma)")));
}

TEST(FlagChecksTest, ANameHasNoWhiteSpace) {
  EXPECT_THAT(Wrong(IsName("owner"), "eval"), IsEmpty());
  EXPECT_THAT(Wrong(IsName("owner"), "a b"), HasSubstr("white space"));
  EXPECT_THAT(Wrong(IsName("owner"), ""), HasSubstr("owner"));
}

TEST(FlagChecksTest, ADataAddressIsOfThisMachine) {
  for (const char* good : {"10.0.0.7", "0.0.0.0:0", "10.0.0.7:4711", "::1", "[::1]:0"}) {
    EXPECT_THAT(Wrong(IsDataAddress(), good), IsEmpty()) << good;
  }
  for (const char* bad : {"moon", "10.0.0.7:x", "999.1.1.1", "a b", ":0"}) {
    EXPECT_THAT(Wrong(IsDataAddress(), bad), HasSubstr("10.0.0.7:4711")) << bad;
  }
}

TEST(FlagChecksTest, ALocationHasFields) {
  EXPECT_THAT(Wrong(IsLocation(), "site=a,rack=r1"), IsEmpty());
  EXPECT_THAT(Wrong(IsLocation(), "moon"), HasSubstr("moon"));
}

}  // namespace
}  // namespace th
