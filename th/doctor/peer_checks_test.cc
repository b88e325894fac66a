#include "th/doctor/peer_checks.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = PeerFacts::Outcome;

constexpr RateFacts kTenGigabit = {.bytes = 1'175'000'000, .microseconds = 1'000'000};
constexpr RateFacts kStalled = {.stalled = true};

PeerFacts WellPeer() {
  return {.target = "10.0.0.2:7099",
          .outcome = Outcome::kComplete,
          .own_version = "0.1.0 (commit a)",
          .greeted = true,
          .host = "node7",
          .version = "0.1.0 (commit a)",
          .congestion_control = "cubic",
          .net_device = "eth1",
          .mtu = 9000,
          .clock_ahead_us = -300,
          .clock_error_us = 50,
          .way_back =
              WayBackFacts{
                  .address = "10.0.0.1", .seen_as = "10.0.0.1", .port = 4711, .connected = true},
          .rate_there = kTenGigabit,
          .rate_back = kTenGigabit,
          .findings = std::vector<Finding>{{.check = "gpus"}, {.check = "open-files"}}};
}

HostFacts ThisHost() {
  HostFacts facts;
  facts.net_device_mtu = {{"eth0", 9000}};
  facts.tcp.congestion_control = "cubic";
  facts.route = RouteFacts{.net_device = "eth0"};
  return facts;
}

std::vector<std::string> ChecksOf(const std::vector<Finding>& findings) {
  std::vector<std::string> checks;
  for (const Finding& each : findings) {
    checks.push_back(each.check);
    EXPECT_EQ(each.advice.empty(), each.verdict == Verdict::kOk) << each.check;
    EXPECT_FALSE(each.found.empty() || each.means.empty()) << each.check;
  }
  return checks;
}

// The finding of one check; fails where there is none.
Finding Of(const std::string& check, const PeerFacts& peer, const HostFacts& facts = ThisHost()) {
  const std::vector<Finding> findings = CheckPeer(peer, facts);
  ChecksOf(findings);
  for (const Finding& each : findings) {
    if (each.check == check) return each;
  }
  ADD_FAILURE() << "no finding " << check;
  return {};
}

bool Has(const std::string& check, const PeerFacts& peer) {
  for (const Finding& each : CheckPeer(peer, ThisHost())) {
    if (each.check == check) return true;
  }
  return false;
}

TEST(PeerChecksTest, APairThatIsWellHasOneFindingACheck) {
  const std::vector<Finding> findings = CheckPeer(WellPeer(), ThisHost());
  EXPECT_THAT(ChecksOf(findings),
              ElementsAre("peer", "peer-version", "peer-clock", "peer-way-back", "peer-rate",
                          "peer-large-packets", "peer-congestion-control", "peer-checks"));
  for (const Finding& each : findings) EXPECT_EQ(each.verdict, Verdict::kOk) << each.check;
  EXPECT_EQ(findings[0].found, "node7, TensorHub 0.1.0 (commit a)");
  EXPECT_EQ(findings[7].found, "2 checks of node7");
}

TEST(PeerChecksTest, EveryWayNotToAnswerIsAProblemWithItsOwnAdvice) {
  const struct {
    Outcome outcome;
    std::string says;
  } kCases[] = {{Outcome::kNotReached, "th doctor --listen 10.0.0.2:7099"},
                {Outcome::kNoDoctor, "no th doctor --listen"},
                {Outcome::kOtherProtocol, "the same release"},
                {Outcome::kRefused, "do what it says"},
                {Outcome::kSilent, "one peer at a time"},
                {Outcome::kBrokeOff, "what on the way cut"}};
  for (const auto& each : kCases) {
    const PeerFacts peer = {.target = "10.0.0.2:7099", .outcome = each.outcome, .error = "why"};
    const std::vector<Finding> findings = CheckPeer(peer, ThisHost());
    EXPECT_THAT(ChecksOf(findings), ElementsAre("peer"));
    EXPECT_EQ(findings[0].verdict, Verdict::kProblem);
    EXPECT_THAT(findings[0].found, HasSubstr("10.0.0.2:7099: "));
    EXPECT_THAT(findings[0].means + findings[0].advice, HasSubstr(each.says));
  }
}

TEST(PeerChecksTest, APeerThatBreaksOffKeepsWhatItHasAnswered) {
  PeerFacts peer = WellPeer();
  peer.outcome = Outcome::kBrokeOff;
  peer.error = "it closed the connection";
  peer.way_back.reset();
  peer.rate_there.reset();
  peer.rate_back.reset();
  peer.findings.reset();
  EXPECT_THAT(
      ChecksOf(CheckPeer(peer, ThisHost())),
      ElementsAre("peer", "peer-version", "peer-clock", "peer-congestion-control", "peer-checks"));
  EXPECT_EQ(Of("peer-checks", peer).verdict, Verdict::kNote);
}

TEST(PeerChecksTest, DifferentVersionsAreANote) {
  PeerFacts peer = WellPeer();
  peer.version = "0.2.0 (commit b)";
  const Finding finding = Of("peer-version", peer);
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "0.1.0 (commit a) here, 0.2.0 (commit b) at node7");
}

TEST(PeerChecksTest, ClocksApartAreANoteBeyondTheErrorOfTheEstimate) {
  PeerFacts peer = WellPeer();
  EXPECT_EQ(Of("peer-clock", peer).found,
            "the wall clock of node7 is 0.30 ms behind, give or take 0.05 ms");
  peer.clock_ahead_us = kClockToleranceUs + 50;
  EXPECT_EQ(Of("peer-clock", peer).verdict, Verdict::kOk);
  peer.clock_ahead_us = kClockToleranceUs + 51;
  EXPECT_EQ(Of("peer-clock", peer).verdict, Verdict::kNote);
  peer.clock_ahead_us = -3'600'000'000;
  const Finding hour = Of("peer-clock", peer);
  EXPECT_EQ(hour.verdict, Verdict::kNote);
  EXPECT_THAT(hour.found, HasSubstr("3600.0 s behind"));
  peer.clock_ahead_us.reset();
  EXPECT_FALSE(Has("peer-clock", peer));
}

TEST(PeerChecksTest, AWayBackThatIsClosedIsAProblem) {
  PeerFacts peer = WellPeer();
  peer.way_back->connected = false;
  peer.way_back->error = "Connection timed out";
  const Finding finding = Of("peer-way-back", peer);
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_EQ(finding.found, "node7 cannot connect to 10.0.0.1 port 4711: Connection timed out");
  EXPECT_THAT(finding.advice, HasSubstr("--data-address"));
  EXPECT_THAT(finding.advice, HasSubstr("firewall"));
}

TEST(PeerChecksTest, ATranslatedAddressIsNamed) {
  PeerFacts peer = WellPeer();
  peer.way_back->seen_as = "192.168.1.9";
  const Finding passes = Of("peer-way-back", peer);
  EXPECT_EQ(passes.verdict, Verdict::kNote);
  EXPECT_THAT(passes.means, HasSubstr("NAT"));
  peer.way_back->connected = false;
  const Finding closed = Of("peer-way-back", peer);
  EXPECT_EQ(closed.verdict, Verdict::kProblem);
  EXPECT_THAT(closed.means, HasSubstr("192.168.1.9"));
  EXPECT_THAT(closed.advice, HasSubstr("hostNetwork"));
}

TEST(PeerChecksTest, AHostThatCannotListenIsAProblem) {
  PeerFacts peer = WellPeer();
  peer.way_back = WayBackFacts{.address = "10.0.0.1", .error = "Address already in use"};
  const Finding finding = Of("peer-way-back", peer);
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_EQ(finding.found, "the way back was not tried: Address already in use");
  EXPECT_THAT(finding.advice, HasSubstr("--back-port"));
  peer.way_back->seen_as = "192.168.1.9";
  EXPECT_EQ(Of("peer-way-back", peer).found, finding.found) << "NAT is not what is wrong";
}

TEST(PeerChecksTest, RatesAreReportedAndUnequalOnesAreANote) {
  PeerFacts peer = WellPeer();
  EXPECT_EQ(Of("peer-rate", peer).found, "9.4 Gbit/s there, 9.4 Gbit/s back, over one connection");
  peer.rate_back->bytes = peer.rate_there->bytes / 2;
  EXPECT_EQ(Of("peer-rate", peer).verdict, Verdict::kOk);
  peer.rate_back->bytes -= 1000;
  const Finding slow_back = Of("peer-rate", peer);
  EXPECT_EQ(slow_back.verdict, Verdict::kNote);
  EXPECT_THAT(slow_back.advice, HasSubstr("look at node7, which sends slowly"));
  std::swap(peer.rate_there, peer.rate_back);
  EXPECT_THAT(Of("peer-rate", peer).advice, HasSubstr("look at this host"));
}

TEST(PeerChecksTest, ARateThatWasNotMeasuredIsANoteWithTheReason) {
  PeerFacts peer = WellPeer();
  peer.rate_back->error = "Connection reset by peer";
  const Finding finding = Of("peer-rate", peer);
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "not measured: Connection reset by peer");
  EXPECT_FALSE(Has("peer-large-packets", peer));
}

TEST(PeerChecksTest, BulkDataThatStandsStillIsAProblemOfLargePackets) {
  const struct {
    RateFacts there, back;
    std::string says;
  } kCases[] = {{kStalled, kTenGigabit, "on the way there"},
                {kTenGigabit, kStalled, "on the way back"},
                {kStalled, kStalled, "both ways"}};
  for (const auto& each : kCases) {
    PeerFacts peer = WellPeer();
    peer.rate_there = each.there;
    peer.rate_back = each.back;
    peer.mtu = 1500;
    const Finding finding = Of("peer-large-packets", peer);
    EXPECT_EQ(finding.verdict, Verdict::kProblem);
    EXPECT_THAT(finding.found, HasSubstr(each.says));
    EXPECT_THAT(finding.found, HasSubstr("MTU 9000 (eth0) here, MTU 1500 (eth1) at node7"));
    EXPECT_THAT(finding.advice, HasSubstr("tcp_mtu_probing"));
    EXPECT_FALSE(Has("peer-rate", peer));
  }
}

TEST(PeerChecksTest, BulkDataThatComesLateIsANote) {
  PeerFacts peer = WellPeer();
  peer.rate_back->waited_us = 1'000'000;
  EXPECT_EQ(Of("peer-large-packets", peer).verdict, Verdict::kOk);
  peer.rate_back->waited_us = 3'040'000;
  const Finding finding = Of("peer-large-packets", peer);
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.found, HasSubstr("only after 3.0 s on the way back"));
  EXPECT_THAT(finding.means, HasSubstr("tcp_mtu_probing finds smaller ones"));
}

TEST(PeerChecksTest, DifferentMtusAreANote) {
  PeerFacts peer = WellPeer();
  peer.mtu = 1500;
  EXPECT_EQ(Of("peer-large-packets", peer).verdict, Verdict::kNote);
  peer.mtu = 0;
  const Finding unknown = Of("peer-large-packets", peer);
  EXPECT_EQ(unknown.verdict, Verdict::kOk);
  EXPECT_THAT(unknown.found, HasSubstr("an unknown MTU (eth1) at node7"));
}

TEST(PeerChecksTest, DifferentCongestionControlsAreANote) {
  PeerFacts peer = WellPeer();
  peer.congestion_control = "bbr";
  const Finding finding = Of("peer-congestion-control", peer);
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "cubic here, bbr at node7");
  peer.congestion_control.clear();
  EXPECT_EQ(Of("peer-congestion-control", peer).verdict, Verdict::kOk);
}

TEST(PeerChecksTest, ThePeersOwnNotesAndProblemsAreListed) {
  PeerFacts peer = WellPeer();
  peer.findings->push_back({.check = "locked-memory",
                            .verdict = Verdict::kProblem,
                            .found = "at most 8 MB",
                            .means = "no RDMA",
                            .advice = "raise it"});
  peer.findings->push_back({.check = "huge-pages",
                            .verdict = Verdict::kNote,
                            .found = "n",
                            .means = "m",
                            .advice = "a"});
  EXPECT_FALSE(Has("peer-checks", peer));
  const Finding problem = Of("peer:locked-memory", peer);
  EXPECT_EQ(problem.verdict, Verdict::kProblem);
  EXPECT_EQ(problem.found, "at most 8 MB");
  EXPECT_EQ(problem.advice, "raise it");
  EXPECT_EQ(Of("peer:huge-pages", peer).verdict, Verdict::kNote);
  EXPECT_FALSE(Has("peer:gpus", peer));
}

TEST(PeerChecksTest, APeerWithoutANameIsCalledByItsAddress) {
  PeerFacts peer = WellPeer();
  peer.host.clear();
  EXPECT_THAT(Of("peer", peer).found, HasSubstr("10.0.0.2:7099"));
}

}  // namespace
}  // namespace th::doctor
