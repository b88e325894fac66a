#include "th/transfer/ibverbs/fabric_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::ibverbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

TEST(FabricAddressTest, TextAndBack) {
  const FabricAddress address{.socket = "[::1]:4711", .infiniband = true, .roce = true};
  EXPECT_EQ(address.ToString(), "[::1]:4711/infiniband+roce");
  EXPECT_EQ(*FabricAddress::Parse(address.ToString()), address);
}

TEST(FabricAddressTest, UnknownKindsAreIgnored) {
  EXPECT_EQ(*FabricAddress::Parse("10.0.0.7:1/slingshot+roce"),
            (FabricAddress{.socket = "10.0.0.7:1", .infiniband = false, .roce = true}));
}

TEST(FabricAddressTest, OtherAddressesAreRefused) {
  for (const char* text : {"", "10.0.0.7:4711", "/roce", "10.0.0.7:4711/", "a/b/c"}) {
    EXPECT_THAT(FabricAddress::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10.0.0.7:4711/roce")))
        << text;
  }
}

TEST(CanMeetTest, OnACommonKindOfNetwork) {
  const FabricAddress roce{.socket = "a:1", .roce = true};
  const FabricAddress infiniband{.socket = "b:1", .infiniband = true};
  const FabricAddress both{.socket = "c:1", .infiniband = true, .roce = true};
  EXPECT_THAT(CanMeet(roce, both), IsOk());
  EXPECT_THAT(CanMeet(both, infiniband), IsOk());
  EXPECT_THAT(CanMeet(roce, infiniband),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("infiniband"), HasSubstr("roce"))));
}

}  // namespace
}  // namespace th::ibverbs
