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

TEST(FabricTest, AHostHasItsOwnRatesAndAnAdapterForEachName) {
  FlowNetwork network;
  FabricSpec spec;
  spec.hosts["a"] = {.up = 100, .down = 50, .inside = 1000};
  Fabric fabric(spec, &network);
  Location first = On("x", "r", "a"), second = first;
  first.nics = {"nic0", "nic7"};
  second.nics = {"nic1"};
  const Location b = On("x", "r", "b");
  const LinkId up = fabric.Route(first, b)[0], other_up = fabric.Route(second, b)[0];
  EXPECT_EQ(network.name(up), "host a nic0 up");
  EXPECT_NE(up, other_up);
  EXPECT_DOUBLE_EQ(network.rate(up), 100);
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(b, first)[1]), 50);
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(first, second)[0]), 1000);
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(b, first)[0]), spec.host_rate);
  fabric.Slow("a", 0.5, kStart, LinkSide::kUp);
  EXPECT_DOUBLE_EQ(network.rate(up), 50);
  EXPECT_DOUBLE_EQ(network.rate(other_up), 50);
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(b, first)[1]), 50);
}

// An adapter that is first seen while its host is slow or cut off is no better than the others.
TEST(FabricTest, ALaterAdapterSharesItsHostsFate) {
  FlowNetwork network;
  Fabric fabric({.host_rate = 100}, &network);
  Location first = On("x", "r", "a"), second = first;
  first.nics = {"nic0"};
  second.nics = {"nic1"};
  const Location b = On("x", "r", "b");
  fabric.Route(first, b);
  fabric.Slow("a", 0.1, kStart);
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(second, b)[0]), 10);
  fabric.Cut("a", kStart);
  Location third = second;
  third.nics = {"nic2"};
  EXPECT_DOUBLE_EQ(network.rate(fabric.Route(third, b)[0]), 0);
}

TEST(FabricTest, APairOfSitesHasALinkAndADelayOfItsOwn) {
  FlowNetwork network;
  FabricSpec spec;
  spec.site_links[{"x", "y"}] = {.rate = 70, .latency = absl::Milliseconds(9)};
  Fabric fabric(spec, &network);
  const Location x = On("x", "r", "a"), y = On("y", "r", "b");
  const LinkId link = fabric.Route(x, y).back();
  EXPECT_EQ(network.name(link), "sites x to y");
  EXPECT_DOUBLE_EQ(network.rate(link), 70);
  EXPECT_EQ(fabric.Latency(x, y), absl::Milliseconds(9));
  EXPECT_EQ(fabric.Latency(y, x), spec.other_site_latency);
  EXPECT_EQ(fabric.Route(y, x).size(), 2u);
  fabric.SlowSiteLink("x", "y", 0.1, kStart);
  EXPECT_DOUBLE_EQ(network.rate(link), 7);
}

}  // namespace
}  // namespace th
