#include "th/transfer/same_host/host_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::same_host {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(HostAddressTest, TextAndBack) {
  const HostAddress address{"5f3a91c02d77e04b", "4026531840", "tensorhub-7-a"};
  EXPECT_EQ(address.ToString(), "5f3a91c02d77e04b/4026531840/tensorhub-7-a");
  ASSERT_OK_AND_ASSIGN(const HostAddress parsed, HostAddress::Parse(address.ToString()));
  EXPECT_EQ(parsed.boot, address.boot);
  EXPECT_EQ(parsed.network_namespace, address.network_namespace);
  EXPECT_EQ(parsed.socket, address.socket);
}

TEST(HostAddressTest, OtherTextsAreRefusedWithAnExample) {
  for (const std::string& text :
       {std::string(), std::string("10.0.0.7:4711"), std::string("a/b"), std::string("a/b/c/d"),
        std::string("a//c"), std::string("a/b/c d"), "a/b/" + std::string(108, 'x')}) {
    EXPECT_THAT(HostAddress::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("such as")))
        << text;
  }
}

TEST(HostAddressTest, AProcessHasANameForEachOfItsSockets) {
  ASSERT_OK_AND_ASSIGN(const HostAddress one, HostAddress::OfThisProcess());
  ASSERT_OK_AND_ASSIGN(const HostAddress other, HostAddress::OfThisProcess());
  EXPECT_NE(one.socket, other.socket);
  EXPECT_OK(CanMeet(one, other));
  EXPECT_OK(HostAddress::Parse(one.ToString()).status());
}

TEST(HostAddressTest, WhoCannotMeetHearsWhy) {
  const HostAddress here{"5f3a91c02d77e04b", "1", "a"};
  EXPECT_THAT(CanMeet(here, {"0000000000000000", "1", "b"}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("another host")));
  EXPECT_THAT(CanMeet(here, {"5f3a91c02d77e04b", "2", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("network namespace")));
}

}  // namespace
}  // namespace th::same_host
