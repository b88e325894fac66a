#include "th/transfer/stream/inbound_connections.h"

#include "gtest/gtest.h"

namespace th::stream {
namespace {

using Verdict = InboundConnections::Verdict;

TEST(InboundConnectionsTest, APeerBeyondItsLimitIsRefusedAndOthersAreServed) {
  InboundConnections inbound({.most = 1000, .most_of_a_peer = 2});
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kRefuse);
  EXPECT_EQ(inbound.Take("10.0.0.2"), Verdict::kServe);
}

TEST(InboundConnectionsTest, WhatEndsMakesRoom) {
  InboundConnections inbound({.most = 1000, .most_of_a_peer = 1});
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kRefuse);
  inbound.Release("10.0.0.1");
  inbound.Release("10.0.0.1");
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
}

TEST(InboundConnectionsTest, NotMoreThanSomeAreToldTheLimit) {
  InboundConnections inbound({.most = 1000, .most_of_a_peer = 1});
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
  for (uint32_t i = 0; i < kMaxRefusedOfAPeer; ++i) {
    EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kRefuse);
  }
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kClose);
  EXPECT_EQ(inbound.Take("10.0.0.2"), Verdict::kServe);
}

TEST(InboundConnectionsTest, BeyondTheLimitOfAllEveryOneIsClosed) {
  InboundConnections inbound({.most = 2, .most_of_a_peer = 2});
  EXPECT_EQ(inbound.Take("10.0.0.1"), Verdict::kServe);
  EXPECT_EQ(inbound.Take("10.0.0.2"), Verdict::kServe);
  EXPECT_EQ(inbound.Take("10.0.0.3"), Verdict::kClose);
  inbound.Release("10.0.0.2");
  EXPECT_EQ(inbound.Take("10.0.0.3"), Verdict::kServe);
}

}  // namespace
}  // namespace th::stream
