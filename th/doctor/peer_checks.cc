#include "th/doctor/peer_checks.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/doctor/peer_link_checks.h"

namespace th::doctor {
namespace {

using Outcome = PeerFacts::Outcome;

std::string StartAdvice(const PeerFacts& peer) {
  return absl::StrCat("start there: th doctor --listen ", peer.target);
}

Finding CheckOutcome(const PeerFacts& peer) {
  Finding finding = {.check = "peer", .verdict = Verdict::kProblem};
  finding.found = absl::StrCat(peer.target, ": ", peer.error);
  finding.means = "the pair is examined in part at best";
  finding.advice = StartAdvice(peer);
  switch (peer.outcome) {
    case Outcome::kComplete:
      return {.check = "peer",
              .found = absl::StrCat(NameOf(peer), ", TensorHub ", peer.version),
              .means = "th doctor --listen answers there"};
    case Outcome::kNotReached:
      finding.found = absl::StrCat(peer.target, ": no connection; see connect");
      finding.means = "only this end of the pair is examined";
      break;
    case Outcome::kNoDoctor:
      finding.means = "what listens there is no th doctor --listen";
      absl::StrAppend(&finding.advice, ", on a port that nothing else uses");
      break;
    case Outcome::kOtherProtocol:
      finding.means = "the releases at both ends are too far apart for an examination";
      finding.advice = "use the same release of TensorHub at both ends";
      break;
    case Outcome::kRefused:
      finding.means = "the th doctor --listen there answers, but not this examination";
      finding.advice = "do what it says, and examine the pair again";
      break;
    case Outcome::kSilent:
      finding.advice = absl::StrCat(
          "examine the pair again, as it answers one peer at a time; if it stays silent, ",
          StartAdvice(peer), ", and look for a firewall that lets only connections through");
      break;
    case Outcome::kBrokeOff:
      finding.advice = absl::StrCat(
          "see why it ended there, or what on the way cut the "
          "connection; ",
          StartAdvice(peer));
  }
  return finding;
}

Finding CheckVersion(const PeerFacts& peer) {
  Finding finding = {.check = "peer-version", .found = peer.own_version};
  finding.means = "both ends have the same build";
  if (peer.version == peer.own_version) return finding;
  finding.verdict = Verdict::kNote;
  finding.found = absl::StrCat(peer.own_version, " here, ", peer.version, " at ", NameOf(peer));
  finding.means = "the builds differ; they work together if their ranges of protocol versions meet";
  finding.advice = "use one build at both ends, as far as an upgrade under way allows";
  return finding;
}

// The absolute value with a unit: "0.31 ms", "4.2 s".
std::string DurationText(double microseconds) {
  const double size = std::abs(microseconds);
  if (size >= 1e6) return absl::StrFormat("%.1f s", size / 1e6);
  return absl::StrFormat("%.2f ms", size / 1e3);
}

Finding CheckClock(const PeerFacts& peer) {
  const auto ahead = static_cast<double>(*peer.clock_ahead_us);
  const auto error = static_cast<double>(peer.clock_error_us);
  Finding finding = {.check = "peer-clock"};
  finding.found =
      absl::StrCat("the wall clock of ", NameOf(peer), " is ", DurationText(ahead),
                   ahead < 0 ? " behind" : " ahead", ", give or take ", DurationText(error));
  if (std::abs(ahead) <= kClockToleranceUs + error) {
    finding.means = "events and logs of both hosts can be put in order";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.means =
      "events and logs of the two hosts cannot be put in order by their times; transfers, leases "
      "and deadlines do not depend on it";
  finding.advice = "synchronise both hosts (chrony, ntpd, PTP); see clock-synchronisation of both";
  return finding;
}

Finding CheckWayBack(const PeerFacts& peer) {
  const WayBackFacts& way = *peer.way_back;
  const bool translated = !way.seen_as.empty() && way.seen_as != way.address;
  Finding finding = {.check = "peer-way-back"};
  if (way.port == 0) {  // there was nothing that the peer could connect to
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("the way back was not tried: ", way.error);
    finding.means = "this host cannot listen as its data planes do";
    finding.advice = "look at the error above; --back-port names another port";
    return finding;
  }
  const std::string here = absl::StrCat(way.address, " port ", way.port);
  if (way.connected && !translated) {
    finding.found = absl::StrCat(NameOf(peer), " connects to ", here);
    finding.means = "data can be pulled in both directions";
    return finding;
  }
  finding.verdict = way.connected ? Verdict::kNote : Verdict::kProblem;
  finding.found = way.connected
                      ? absl::StrCat(NameOf(peer), " connects to ", way.seen_as,
                                     " and reaches this host, which is ", way.address)
                      : absl::StrCat(NameOf(peer), " cannot connect to ", here, ": ", way.error);
  finding.means = "data is pulled in both directions: others cannot pull from this host";
  if (translated) {
    finding.means =
        absl::StrCat("this host's address is translated on the way (NAT), to ", way.seen_as,
                     ": others are told ", way.address, " and may not reach it");
    finding.advice = "let data planes use the host's network (hostNetwork, --network host)";
  } else {
    finding.advice =
        "let the firewalls of this host and on the way pass connections from there: open a range "
        "of ports, and name it to data planes (--data-address HOST:FIRST-LAST) and to th doctor "
        "(--back-port)";
  }
  return finding;
}

std::vector<Finding> PeerOwnFindings(const PeerFacts& peer) {
  if (!peer.findings.has_value()) {
    return {{.check = "peer-checks",
             .verdict = Verdict::kNote,
             .found = absl::StrCat(NameOf(peer), " has not sent its findings"),
             .means = "nothing is known of its limits, devices and settings",
             .advice = "run th doctor there"}};
  }
  std::vector<Finding> listed;
  for (const Finding& each : *peer.findings) {
    if (each.verdict == Verdict::kOk) continue;
    Finding& finding = listed.emplace_back(each);
    finding.check = absl::StrCat("peer:", each.check);
  }
  if (listed.empty()) {
    listed.push_back({.check = "peer-checks",
                      .found = absl::StrCat(peer.findings->size(), " checks of ", NameOf(peer)),
                      .means = "all are well there too"});
  }
  return listed;
}

}  // namespace

std::vector<Finding> CheckPeer(const PeerFacts& peer, const HostFacts& facts) {
  std::vector<Finding> findings = {CheckOutcome(peer)};
  if (!peer.greeted) return findings;
  findings.push_back(CheckVersion(peer));
  if (peer.clock_ahead_us.has_value()) findings.push_back(CheckClock(peer));
  if (peer.way_back.has_value()) findings.push_back(CheckWayBack(peer));
  const std::optional<Finding> packets = CheckLargePackets(peer, facts);
  // A stall explains why no rate was measured, so the rate is no finding of its own.
  const bool stalled = packets.has_value() && packets->verdict == Verdict::kProblem;
  const bool tried = peer.rate_there.has_value() || peer.rate_back.has_value();
  if (tried && !stalled) findings.push_back(CheckRate(peer));
  if (packets.has_value()) findings.push_back(*packets);
  findings.push_back(CheckCongestionControls(peer, facts));
  for (Finding& finding : PeerOwnFindings(peer)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace th::doctor
