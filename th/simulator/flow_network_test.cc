#include "th/simulator/flow_network.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch();
absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(FlowNetworkTest, AFlowAloneHasItsNarrowestLink) {
  FlowNetwork network;
  const FlowId flow = network.AddFlow({network.AddLink("up", 100), network.AddLink("down", 50)});
  EXPECT_EQ(network.NextDelivery(kStart), absl::InfiniteFuture());
  network.Send(flow, 100, kStart);
  EXPECT_EQ(network.NextDelivery(kStart), At(2));
  EXPECT_THAT(network.TakeDelivered(At(1)), IsEmpty());
  EXPECT_THAT(network.TakeDelivered(At(2)), ElementsAre(flow));
  EXPECT_FALSE(network.sending(flow));
  EXPECT_EQ(network.bytes_over(LinkId(1)), 100u);
}

// Three flows over one link, one of them held back elsewhere: the others share what it leaves.
TEST(FlowNetworkTest, SharesAreMaxMinFair) {
  FlowNetwork network;
  const LinkId shared = network.AddLink("shared", 90), narrow = network.AddLink("narrow", 10);
  const FlowId held_back = network.AddFlow({shared, narrow});
  const FlowId a = network.AddFlow({shared}), b = network.AddFlow({shared});
  for (FlowId flow : {held_back, a, b}) network.Send(flow, 400, kStart);
  EXPECT_DOUBLE_EQ(network.FlowRate(held_back, kStart), 10);
  EXPECT_DOUBLE_EQ(network.FlowRate(a, kStart), 40);
  EXPECT_DOUBLE_EQ(network.FlowRate(b, kStart), 40);
}

TEST(FlowNetworkTest, WhoEndsLeavesItsShareToTheOthers) {
  FlowNetwork network;
  const LinkId link = network.AddLink("link", 100);
  const FlowId small = network.AddFlow({link}), large = network.AddFlow({link});
  network.Send(small, 50, kStart);
  network.Send(large, 150, kStart);
  ASSERT_EQ(network.NextDelivery(kStart), At(1));
  EXPECT_THAT(network.TakeDelivered(At(1)), ElementsAre(small));
  EXPECT_EQ(network.NextDelivery(At(1)), At(2));
  EXPECT_THAT(network.TakeDelivered(At(2)), ElementsAre(large));
}

TEST(FlowNetworkTest, AChunkThatFollowsAtOnceKeepsItsShare) {
  FlowNetwork network;
  const LinkId link = network.AddLink("link", 100);
  const FlowId a = network.AddFlow({link}), b = network.AddFlow({link});
  network.Send(a, 50, kStart);
  network.Send(b, 500, kStart);
  ASSERT_EQ(network.NextDelivery(kStart), At(1));
  ASSERT_THAT(network.TakeDelivered(At(1)), ElementsAre(a));
  network.Send(a, 50, At(1));
  EXPECT_EQ(network.NextDelivery(At(1)), At(2));
  EXPECT_DOUBLE_EQ(network.FlowRate(b, At(1)), 50);
}

TEST(FlowNetworkTest, ALinkThatStopsHoldsItsFlowsUntilItMoves) {
  FlowNetwork network;
  const LinkId link = network.AddLink("link", 100);
  const FlowId flow = network.AddFlow({link});
  network.Send(flow, 100, kStart);
  ASSERT_EQ(network.NextDelivery(kStart), At(1));
  network.SetRate(link, 0, At(0.5));
  EXPECT_EQ(network.NextDelivery(At(0.5)), absl::InfiniteFuture());
  network.SetRate(link, 25, At(10));
  EXPECT_EQ(network.NextDelivery(At(10)), At(12));
}

TEST(FlowNetworkTest, ARemovedFlowDeliversNothing) {
  FlowNetwork network;
  const LinkId link = network.AddLink("link", 100);
  const FlowId gone = network.AddFlow({link}), stays = network.AddFlow({link});
  network.Send(gone, 100, kStart);
  network.Send(stays, 100, kStart);
  ASSERT_EQ(network.NextDelivery(kStart), At(2));
  network.RemoveFlow(gone, At(1));
  EXPECT_EQ(network.NextDelivery(At(1)), At(1.5));
  EXPECT_THAT(network.TakeDelivered(At(9)), ElementsAre(stays));
}

}  // namespace
}  // namespace th
