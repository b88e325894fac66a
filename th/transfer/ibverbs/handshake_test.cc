#include "th/transfer/ibverbs/handshake.h"

#include <arpa/inet.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::ibverbs {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

Gid GidOf(const char* address) {
  Gid gid{};
  EXPECT_EQ(inet_pton(AF_INET6, address, gid.data()), 1) << address;
  return gid;
}

OfferedDevice Roce(const char* address) { return {LinkLayer::kEthernet, GidOf(address)}; }
OfferedDevice InfiniBand(const char* address) { return {LinkLayer::kInfiniBand, GidOf(address)}; }

QueuePairAddress SomePair() {
  return {.gid = GidOf("::ffff:10.0.0.1"),
          .number = 0xabcdef,
          .first_packet = 0x123456,
          .lid = 0x789a,
          .link = LinkLayer::kEthernet,
          .mtu = 5,
          .max_reads_started = 16,
          .max_reads_answered = 128};
}

TEST(HandshakeTest, MessagesKeepTheirMeaning) {
  const DeviceOffer offer{{Roce("::ffff:10.0.0.1"), InfiniBand("fe80::1")}};
  EXPECT_EQ(*DecodeOffer(Encode(offer)), offer);
  const PairRequest request{.device = 3, .reader = SomePair()};
  EXPECT_EQ(*DecodeRequest(Encode(request)), request);
  const PairReply reply{.source = SomePair(),
                        .word_address = 0x7f00'1234'5678,
                        .word = 0xfedc'ba98'7654'3210,
                        .word_key = 0x1234};
  EXPECT_EQ(*DecodeReply(Encode(reply)), reply);
}

TEST(HandshakeTest, WhatFollowsIsIgnored) {
  const PairRequest request{.device = 3, .reader = SomePair()};
  EXPECT_EQ(*DecodeRequest(Encode(request) + "more"), request);
}

TEST(HandshakeTest, MessagesThatAreCutAreRefused) {
  const std::string offer = Encode(DeviceOffer{{Roce("::ffff:10.0.0.1")}});
  const std::string request = Encode(PairRequest{.device = 0, .reader = SomePair()});
  const std::string reply = Encode(PairReply{.source = SomePair()});
  for (size_t i = 0; i < offer.size(); ++i) EXPECT_FALSE(DecodeOffer(offer.substr(0, i)).ok()) << i;
  for (size_t i = 0; i < request.size(); ++i) {
    EXPECT_FALSE(DecodeRequest(request.substr(0, i)).ok()) << i;
  }
  for (size_t i = 0; i < reply.size(); ++i) EXPECT_FALSE(DecodeReply(reply.substr(0, i)).ok()) << i;
}

TEST(HandshakeTest, OneMessageIsNotTakenForAnother) {
  EXPECT_FALSE(DecodeOffer(Encode(PairReply{.source = SomePair()})).ok());
  EXPECT_FALSE(DecodeRequest(Encode(PairReply{.source = SomePair()})).ok());
  EXPECT_FALSE(DecodeReply(Encode(DeviceOffer{{Roce("::ffff:10.0.0.1")}})).ok());
}

TEST(HandshakeTest, OfferOfNoneOrTooManyDevicesIsRefused) {
  EXPECT_THAT(DecodeOffer(Encode(DeviceOffer{})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 devices")));
  const DeviceOffer many{std::vector<OfferedDevice>(kMaxOfferedDevices + 1, Roce("::1"))};
  EXPECT_THAT(DecodeOffer(Encode(many)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("17 devices")));
}

TEST(ChooseDevicesTest, ConnectionsTakeTheRailsInTurn) {
  const std::vector<OfferedDevice> own = {Roce("::ffff:10.0.0.1"), Roce("::ffff:10.0.1.1")};
  const std::vector<OfferedDevice> offered = {Roce("::ffff:10.0.1.9"), Roce("::ffff:10.0.0.9")};
  EXPECT_EQ(*ChooseDevices(own, offered, 0), (DeviceChoice{0, 1}));
  EXPECT_EQ(*ChooseDevices(own, offered, 1), (DeviceChoice{1, 0}));
  EXPECT_EQ(*ChooseDevices(own, offered, 2), (DeviceChoice{0, 1}));
}

TEST(ChooseDevicesTest, WithinOneSubnetTheSourcesAreTakenInTurnToo) {
  const std::vector<OfferedDevice> own = {Roce("::ffff:10.0.0.1")};
  const std::vector<OfferedDevice> offered = {Roce("::ffff:10.0.0.8"), Roce("::ffff:10.0.0.9")};
  EXPECT_EQ(*ChooseDevices(own, offered, 0), (DeviceChoice{0, 0}));
  EXPECT_EQ(*ChooseDevices(own, offered, 1), (DeviceChoice{0, 1}));
}

TEST(ChooseDevicesTest, AnotherSubnetIsBetterThanNone) {
  EXPECT_EQ(*ChooseDevices({Roce("::ffff:10.0.0.1")}, {Roce("::ffff:10.9.0.1")}, 0),
            (DeviceChoice{0, 0}));
}

TEST(ChooseDevicesTest, DevicesWithoutACommonLinkArePassedOver) {
  const std::vector<OfferedDevice> own = {InfiniBand("fe80::1"), Roce("::ffff:10.0.0.1")};
  EXPECT_EQ(*ChooseDevices(own, {Roce("::ffff:10.0.0.9")}, 0), (DeviceChoice{1, 0}));
  EXPECT_THAT(ChooseDevices({InfiniBand("fe80::1")}, {Roce("::ffff:10.0.0.9")}, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("InfiniBand and RoCE")));
}

}  // namespace
}  // namespace th::ibverbs
