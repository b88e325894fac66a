#include "th/topology/location.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

Location Full() {
  return {.site = "a",
          .rack = "r1",
          .host = "n7",
          .numa_node = 0,
          .nics = {"mlx5_0", "mlx5_1"},
          .device = "GPU-8f3c"};
}

TEST(LocationTest, TheHostsNameIsShownAndTellsNothingApart) {
  const Location named{.host = "4f3c", .host_name = "node7"};
  EXPECT_EQ(named.ToString(), "host=4f3c,host-name=node7");
  EXPECT_THAT(ParseLocation(named.ToString()), IsOkAndHolds(named));
  EXPECT_EQ(DistanceBetween(named, {.host = "4f3c", .host_name = "other"}), Distance::kSameHost);
  EXPECT_EQ(DistanceBetween(named, {.host = "9999", .host_name = "node7"}), Distance::kSameSite);
}

TEST(LocationTest, ShowsWhatIsKnown) {
  EXPECT_EQ(Full().ToString(),
            "site=a,rack=r1,host=n7,numa=0,nic=mlx5_0,nic=mlx5_1,device=GPU-8f3c");
  EXPECT_EQ((Location{.host = "n7"}.ToString()), "host=n7");
  EXPECT_EQ(Location().ToString(), "");
}

TEST(LocationTest, ReadsWhatItWrites) {
  const Location locations[] = {
      Full(),
      Location(),
      {.site = "a,b=c", .host = "100%"},
      {.site = "\xc3\xbc", .device = "0000:3b:00.0"},
      {.numa_node = 2147483647},
  };
  for (const Location& location : locations) {
    EXPECT_THAT(ParseLocation(location.ToString()), IsOkAndHolds(location)) << location.ToString();
  }
}

TEST(LocationTest, FieldsComeInAnyOrder) {
  EXPECT_THAT(ParseLocation("device=GPU-8f3c,nic=mlx5_0,numa=0,host=n7,nic=mlx5_1,rack=r1,site=a"),
              IsOkAndHolds(Full()));
}

TEST(LocationTest, RefusesNamingTheField) {
  struct Case {
    std::string text;
    std::string message;
  };
  std::string many_nics = "nic=n";
  for (size_t i = 0; i < kMaxNics; ++i) absl::StrAppend(&many_nics, ",nic=n", i);
  const Case cases[] = {
      {"region=x", "location field 'region': unknown; the fields are site, rack"},
      {"site", "location field 'site': has no '='"},
      {"site=a,,host=b", "location field '': has no '='"},
      {"site=", "location field 'site': its value is empty"},
      {"site=a b", "location field 'site': its value 'a b' contains white space"},
      {"host=a%0a", "location field 'host': its value 'a\\n' contains white space"},
      {"host=\xff", "location field 'host': its value '\\xff' is not UTF-8"},
      {"host=%2", "location field 'host': '%' is not followed by two hexadecimal digits"},
      {"host=%zz", "location field 'host': '%' is not followed"},
      {"site=a,site=b", "location field 'site': given twice"},
      {"numa=0,numa=0", "location field 'numa': given twice"},
      {"numa=", "location field 'numa': '' is no node's number"},
      {"numa=-1", "location field 'numa': '-1' is no node's number"},
      {"numa=2147483648", "location field 'numa': '2147483648' is no node's number"},
      {many_nics, "location field 'nic': given more than 64 times"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseLocation(c.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

struct Pair {
  std::string a;
  std::string b;
  Distance distance;
};

class DistanceTest : public ::testing::TestWithParam<Pair> {};

TEST_P(DistanceTest, IsTheNearestSharedLevelInBothDirections) {
  ASSERT_OK_AND_ASSIGN(const Location a, ParseLocation(GetParam().a));
  ASSERT_OK_AND_ASSIGN(const Location b, ParseLocation(GetParam().b));
  EXPECT_EQ(DistanceBetween(a, b), GetParam().distance)
      << DistanceName(DistanceBetween(a, b)) << ": " << GetParam().a << " to " << GetParam().b;
  EXPECT_EQ(DistanceBetween(b, a), GetParam().distance);
}

const Pair kPairs[] = {
    // Nothing known: one site, and nothing below it.
    {"", "", Distance::kSameSite},
    {"site=a", "", Distance::kSameSite},
    {"site=a", "site=a", Distance::kSameSite},
    {"site=a", "site=b", Distance::kOtherSite},
    // Another site is another site, whatever the names below are.
    {"site=a,rack=r,host=h,numa=0,device=d", "site=b,rack=r,host=h,numa=0,device=d",
     Distance::kOtherSite},
    {"rack=r", "rack=r", Distance::kSameRack},
    {"rack=r", "rack=s", Distance::kSameSite},
    {"rack=r", "", Distance::kSameSite},
    {"site=a,rack=r,host=g", "site=a,rack=r,host=h", Distance::kSameRack},
    {"host=h", "host=h", Distance::kSameHost},
    {"host=g", "host=h", Distance::kSameSite},
    {"rack=r,host=h", "host=h", Distance::kSameHost},
    // Two hosts of one name.
    {"rack=r,host=h", "rack=s,host=h", Distance::kSameSite},
    {"host=h,numa=0", "host=h,numa=0", Distance::kSameNumaNode},
    {"host=h,numa=0", "host=h,numa=1", Distance::kSameHost},
    {"host=h,numa=0", "host=h", Distance::kSameHost},
    {"host=g,numa=0", "host=h,numa=0", Distance::kSameSite},
    {"numa=0", "numa=0", Distance::kSameSite},
    {"host=h,device=d", "host=h,device=d", Distance::kSameDevice},
    {"host=h,numa=0,device=d", "host=h,numa=0,device=e", Distance::kSameNumaNode},
    {"host=h,device=d", "host=h", Distance::kSameHost},
    // A bus id says nothing between two hosts.
    {"host=g,device=0000:3b:00.0", "host=h,device=0000:3b:00.0", Distance::kSameSite},
    {"device=d", "device=d", Distance::kSameSite},
};

INSTANTIATE_TEST_SUITE_P(All, DistanceTest, ::testing::ValuesIn(kPairs));

TEST(DistanceNameTest, EveryDistanceHasItsOwn) {
  EXPECT_EQ(DistanceName(Distance::kSameDevice), "same device");
  EXPECT_EQ(DistanceName(Distance::kSameNumaNode), "same NUMA node");
  EXPECT_EQ(DistanceName(Distance::kSameHost), "same host");
  EXPECT_EQ(DistanceName(Distance::kSameRack), "same rack");
  EXPECT_EQ(DistanceName(Distance::kSameSite), "same site");
  EXPECT_EQ(DistanceName(Distance::kOtherSite), "other site");
  EXPECT_EQ(DistanceName(static_cast<Distance>(99)), "unknown distance");
}

}  // namespace
}  // namespace th
