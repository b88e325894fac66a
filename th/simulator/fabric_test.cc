#include "th/simulator/fabric.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;

const absl::Time kStart = absl::UnixEpoch();

Location On(const char* site, const char* rack, const char* host) {
  Location location;
  location.site = site;
  location.rack = rack;
  location.host = host;
  return location;
}

TEST(FabricTest, ARouteCrossesWhatLiesBetween) {
  FlowNetwork network;
  Fabric fabric({.rack_rate = 1e9, .site_rate = 1e8}, &network);
  const Location a = On("x", "r1", "a"), b = On("x", "r1", "b"), c = On("x", "r2", "c"),
                 d = On("y", "r1", "d");
  const auto names = [&](const Location& from, const Location& to) {
    std::vector<std::string> names;
    for (LinkId link : fabric.Route(from, to)) names.push_back(network.name(link));
    return names;
  };
  EXPECT_THAT(names(a, a), ElementsAre("host a inside"));
  EXPECT_THAT(names(a, b), ElementsAre("host a up", "host b down"));
  EXPECT_THAT(names(a, c),
              ElementsAre("host a up", "host c down", "rack x/r1 up", "rack x/r2 down"));
  EXPECT_THAT(names(a, d), ElementsAre("host a up", "host d down", "rack x/r1 up", "rack y/r1 down",
                                       "site x up", "site y down"));
  EXPECT_LT(fabric.Latency(a, b), fabric.Latency(a, d));
}

TEST(FabricTest, ACutHostReachesNobodyButItself) {
  FlowNetwork network;
  Fabric fabric({.host_rate = 100}, &network);
  const Location a = On("x", "r", "a"), b = On("x", "r", "b");
  const LinkId up = fabric.Route(a, b)[0];
  fabric.Slow("a", 0.5, kStart);
  EXPECT_DOUBLE_EQ(network.rate(up), 50);
  fabric.Cut("a", kStart);
  EXPECT_DOUBLE_EQ(network.rate(up), 0);
  EXPECT_FALSE(fabric.Connected(a, b));
  EXPECT_FALSE(fabric.Connected(b, a));
  EXPECT_TRUE(fabric.Connected(a, a));
  fabric.Heal("a", kStart);
  EXPECT_DOUBLE_EQ(network.rate(up), 50);
  EXPECT_TRUE(fabric.Connected(a, b));
}

}  // namespace
}  // namespace th
