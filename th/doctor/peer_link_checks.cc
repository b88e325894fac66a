#include "th/doctor/peer_link_checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace th::doctor {
namespace {

// A rate below this part of the other direction's is noted. Between equal hosts both differ by some
// per cent.
constexpr double kUnequalRates = 0.5;

// A first byte that comes later had to be sent again several times: the first time after 0.2 s, the
// third after 1.4 s.
constexpr int64_t kLateFirstByteUs = 1'000'000;

// "9.4 Gbit/s".
std::string BitRate(double bytes_per_second) {
  const double bits = bytes_per_second * 8;
  if (bits >= 1e9) return absl::StrFormat("%.1f Gbit/s", bits / 1e9);
  return absl::StrFormat("%.1f Mbit/s", bits / 1e6);
}

bool IsMeasured(const std::optional<RateFacts>& rate) {
  return rate.has_value() && rate->error.empty() && !rate->stalled;
}

double RateOf(const RateFacts& rate) {
  return static_cast<double>(rate.bytes) * 1e6 /
         static_cast<double>(std::max<int64_t>(rate.microseconds, 1));
}

// The MTU of the device by which packets leave for the peer; 0: unknown.
uint32_t OwnMtu(const HostFacts& facts) {
  if (!facts.route.has_value()) return 0;
  const auto found = facts.net_device_mtu.find(facts.route->net_device);
  return found == facts.net_device_mtu.end() ? 0 : found->second;
}

// "MTU 9000 (eth0) here, MTU 1500 (eth1) at node7".
std::string BothMtus(const PeerFacts& peer, const HostFacts& facts) {
  const auto shown = [](uint32_t mtu, const std::string& device) {
    return absl::StrCat(mtu == 0 ? "an unknown MTU" : absl::StrCat("MTU ", mtu),
                        device.empty() ? "" : absl::StrCat(" (", device, ")"));
  };
  const std::string device = facts.route.has_value() ? facts.route->net_device : "";
  return absl::StrCat(shown(OwnMtu(facts), device), " here, ", shown(peer.mtu, peer.net_device),
                      " at ", NameOf(peer));
}

// "both ways", "on the way there", "on the way back".
std::string Directions(bool there, bool back) {
  if (there && back) return "both ways";
  return there ? "on the way there" : "on the way back";
}

// The path drops large packets: the kernel finds smaller ones in the end, or it does not.
Finding LargePacketsLost(const std::string& found, bool found_smaller) {
  Finding finding = {.check = "peer-large-packets", .verdict = Verdict::kProblem, .found = found};
  finding.means = "something on the way drops large packets without a word: weights do not pass";
  finding.advice =
      "set the MTU of both hosts and of all switches and tunnels on the way to the same value, let "
      "firewalls pass ICMP \"fragmentation needed\" (IPv6: \"packet too big\")";
  if (found_smaller) {
    finding.verdict = Verdict::kNote;
    finding.means =
        "something on the way drops large packets; net.ipv4.tcp_mtu_probing finds smaller ones, "
        "after a pause of each new connection";
  } else {
    absl::StrAppend(&finding.advice, ", or set sysctl net.ipv4.tcp_mtu_probing=1 on both hosts");
  }
  return finding;
}

}  // namespace

std::string NameOf(const PeerFacts& peer) { return peer.host.empty() ? peer.target : peer.host; }

Finding CheckRate(const PeerFacts& peer) {
  Finding finding = {.check = "peer-rate"};
  if (!IsMeasured(peer.rate_there) || !IsMeasured(peer.rate_back)) {
    const auto& failed = IsMeasured(peer.rate_there) ? peer.rate_back : peer.rate_there;
    finding.verdict = Verdict::kNote;
    finding.found = absl::StrCat("not measured: ", failed.has_value() && !failed->error.empty()
                                                       ? failed->error
                                                       : "no bytes came");
    finding.means = "nothing is known of the rate between the two";
    finding.advice = "examine the pair again while nothing else disturbs it";
    return finding;
  }
  const double there = RateOf(*peer.rate_there), back = RateOf(*peer.rate_back);
  finding.found =
      absl::StrCat(BitRate(there), " there, ", BitRate(back), " back, over one connection");
  finding.means = "both directions are alike; th bench measures what transfers reach";
  if (std::min(there, back) >= kUnequalRates * std::max(there, back)) return finding;
  finding.verdict = Verdict::kNote;
  finding.means = "one direction is less than half as fast as the other";
  finding.advice = absl::StrCat(
      "look at ", there < back ? "this host" : NameOf(peer),
      ", which sends slowly: its congestion control, other traffic, the link's duplex and errors "
      "(ethtool DEVICE, ip -s link), cables, MTUs; then th bench measures again");
  return finding;
}

std::optional<Finding> CheckLargePackets(const PeerFacts& peer, const HostFacts& facts) {
  const std::string mtus = BothMtus(peer, facts);
  const auto stalled = [](const auto& rate) { return rate.has_value() && rate->stalled; };
  const bool there = stalled(peer.rate_there), back = stalled(peer.rate_back);
  if (there || back) {
    return LargePacketsLost(absl::StrCat("small packets pass, bulk data stands still ",
                                         Directions(there, back), "; ", mtus),
                            /*found_smaller=*/false);
  }
  if (!IsMeasured(peer.rate_there) || !IsMeasured(peer.rate_back)) return std::nullopt;
  const bool late_there = peer.rate_there->waited_us > kLateFirstByteUs;
  const bool late_back = peer.rate_back->waited_us > kLateFirstByteUs;
  if (late_there || late_back) {
    return LargePacketsLost(
        absl::StrFormat("bulk data passes only after %.1f s %s; %s",
                        std::max(peer.rate_there->waited_us, peer.rate_back->waited_us) / 1e6,
                        Directions(late_there, late_back), mtus),
        /*found_smaller=*/true);
  }
  Finding finding = {.check = "peer-large-packets",
                     .found = absl::StrCat("they pass both ways; ", mtus),
                     .means = "no packet is lost for its size"};
  const uint32_t here = OwnMtu(facts);
  if (here == 0 || peer.mtu == 0 || here == peer.mtu) return finding;
  finding.verdict = Verdict::kNote;
  finding.means =
      "the ends send packets of different sizes: RDMA, and TCP where ICMP is blocked, may lose the "
      "larger ones";
  finding.advice = "set the MTU of both hosts and of the switches between them to the same value";
  return finding;
}

Finding CheckCongestionControls(const PeerFacts& peer, const HostFacts& facts) {
  Finding finding = {.check = "peer-congestion-control"};
  const std::string& here = facts.tcp.congestion_control;
  finding.found = absl::StrCat(
      here.empty() ? "unknown" : here, " here, ",
      peer.congestion_control.empty() ? "unknown" : peer.congestion_control, " at ", NameOf(peer));
  finding.means = here.empty() || peer.congestion_control.empty() ? "there is nothing to compare"
                                                                  : "both ends send alike";
  if (here.empty() || peer.congestion_control.empty() || here == peer.congestion_control) {
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.means = "each direction is sent by other rules, and they may share a link unequally";
  finding.advice = "set net.ipv4.tcp_congestion_control to the same on both hosts";
  return finding;
}

}  // namespace th::doctor
