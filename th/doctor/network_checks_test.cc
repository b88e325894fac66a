#include "th/doctor/network_checks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Outcome = RouteFacts::Outcome;

TEST(CongestionControlTest, CubicIsOkAndOthersAreNotes) {
  EXPECT_EQ(CheckCongestionControl({.congestion_control = "cubic"}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckCongestionControl({.congestion_control = "dctcp"}).verdict, Verdict::kOk);
  const Finding bbr = CheckCongestionControl(
      {.congestion_control = "bbr", .available_controls = {"reno", "bbr", "cubic"}});
  EXPECT_EQ(bbr.verdict, Verdict::kNote);
  EXPECT_THAT(bbr.means, HasSubstr("estimates"));
  EXPECT_EQ(bbr.advice, "compare: sysctl net.ipv4.tcp_congestion_control=cubic");
  const Finding reno = CheckCongestionControl({.congestion_control = "reno"});
  EXPECT_EQ(reno.verdict, Verdict::kNote);
  EXPECT_THAT(reno.advice, HasSubstr("modprobe tcp_cubic"));
  EXPECT_EQ(CheckCongestionControl({}).verdict, Verdict::kNote);
}

TEST(SocketBuffersTest, TheSmallerOneLimitsAConnection) {
  const Finding usual =
      CheckSocketBuffers({.max_receive_bytes = 33'554'432, .max_send_bytes = 4'194'304});
  EXPECT_EQ(usual.verdict, Verdict::kOk);
  EXPECT_THAT(usual.means, HasSubstr("419 MB/s"));
  EXPECT_THAT(usual.advice, IsEmpty());
  const Finding small =
      CheckSocketBuffers({.max_receive_bytes = 212'992, .max_send_bytes = 4'194'304});
  EXPECT_EQ(small.verdict, Verdict::kNote);
  EXPECT_THAT(small.means, HasSubstr("21.3 MB/s"));
  EXPECT_THAT(small.advice, HasSubstr("net.ipv4.tcp_rmem"));
  EXPECT_EQ(CheckSocketBuffers({.max_send_bytes = 1}).verdict, Verdict::kNote);
}

RouteFacts Connected() {
  return {.target = "node7:7077",
          .outcome = Outcome::kConnected,
          .peer_address = "10.0.0.7",
          .source_address = "10.0.0.1",
          .net_device = "eth0",
          .path_mtu = 1500,
          .round_trip_us = 120};
}

HostFacts HostWithMtu(uint32_t mtu) {
  HostFacts facts;
  facts.net_device_mtu = {{"eth0", mtu}};
  return facts;
}

TEST(RouteTest, APeerThatAnswersIsShownWithTheWay) {
  const std::vector<Finding> findings = CheckRoute(Connected(), HostWithMtu(1500));
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].check, "connect");
  EXPECT_EQ(findings[0].verdict, Verdict::kOk);
  EXPECT_EQ(findings[0].found,
            "node7:7077 (10.0.0.7) answers; packets leave from 10.0.0.1 by eth0, with a round trip "
            "of 0.12 ms");
  EXPECT_EQ(findings[1].check, "path-mtu");
  EXPECT_EQ(findings[1].verdict, Verdict::kOk);
}

TEST(RouteTest, APathThatCarriesLessThanTheDeviceIsANote) {
  const Finding finding = CheckRoute(Connected(), HostWithMtu(9000))[1];
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.means, HasSubstr("eth0 (9000)"));
}

TEST(RouteTest, ADeviceThatCouldCarryMoreThanAPacketMayHaveIsFine) {
  RouteFacts loopback = Connected();
  loopback.path_mtu = 65535;
  EXPECT_EQ(CheckRoute(loopback, HostWithMtu(65536))[1].verdict, Verdict::kOk);
}

TEST(RouteTest, ATunnelIsANote) {
  RouteFacts route = Connected();
  route.path_mtu = 1450;
  const Finding finding = CheckRoute(route, HostWithMtu(1450))[1];
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.advice, HasSubstr("hostNetwork"));
}

TEST(RouteTest, AnUnknownMtuSaysNothing) {
  RouteFacts route = Connected();
  route.path_mtu = 0;
  EXPECT_EQ(CheckRoute(route, HostFacts())[1].verdict, Verdict::kOk);
}

TEST(RouteTest, EveryFailureIsAProblemWithItsOwnAdvice) {
  const struct {
    Outcome outcome;
    std::string advice;
  } kCases[] = {{Outcome::kUnknownHost, "getent hosts"},
                {Outcome::kRefused, "start what should listen"},
                {Outcome::kUnreachable, "ip route get 10.0.0.7"},
                {Outcome::kTimedOut, "firewalls"},
                {Outcome::kFailed, "error above"}};
  for (const auto& each : kCases) {
    const std::vector<Finding> findings = CheckRoute(
        {.target = "node7:1", .outcome = each.outcome, .error = "why", .peer_address = "10.0.0.7"},
        HostFacts());
    ASSERT_THAT(findings, SizeIs(1));
    EXPECT_EQ(findings[0].verdict, Verdict::kProblem);
    EXPECT_EQ(findings[0].found, "node7:1: why");
    EXPECT_THAT(findings[0].advice, HasSubstr(each.advice));
  }
}

TEST(ServerTest, AnAnswerIsOkAndItsLackAProblem) {
  const Finding answers = CheckServer({.server = "file:/shared/server", .epoch = 4});
  EXPECT_EQ(answers.verdict, Verdict::kOk);
  EXPECT_EQ(answers.found, "file:/shared/server is a reference server, in its epoch 4");
  const Finding silent = CheckServer({.server = "node7:7077", .error = "no reference server"});
  EXPECT_EQ(silent.verdict, Verdict::kProblem);
  EXPECT_EQ(silent.found, "no reference server");
  EXPECT_THAT(silent.advice, HasSubstr("--address-file"));
}

}  // namespace
}  // namespace th::doctor
