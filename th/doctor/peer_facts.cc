#include "th/doctor/peer_facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/text/utf8.h"

namespace th::doctor {
namespace {

// Far beyond any wall clock (the year 33658), so that differences do not overflow.
constexpr int64_t kMostClockUs = 1'000'000'000'000'000'000;
constexpr int64_t kMostMtu = 1 << 20;
constexpr int64_t kMostRateUs = 3'600'000'000;  // an hour

Finding ReadFinding(const nlohmann::json& line) {
  const std::string verdict = PeerText(line, "verdict");
  Finding finding = {.check = PeerText(line, "check"),
                     .verdict = Verdict::kNote,  // of a release that knows more verdicts, too
                     .found = PeerText(line, "found"),
                     .means = PeerText(line, "means"),
                     .advice = PeerText(line, "advice")};
  for (const Verdict known : {Verdict::kOk, Verdict::kProblem}) {
    if (verdict == VerdictName(known)) finding.verdict = known;
  }
  return finding;
}

}  // namespace

std::string MadePrintable(absl::string_view text) {
  std::string printable;
  while (!text.empty() && printable.size() < kMaxPeerText) {
    const absl::string_view before = text;
    const std::optional<char32_t> code_point = TakeCodePoint(text);
    if (!code_point.has_value()) text.remove_prefix(1);
    const bool plain = code_point.has_value() && !IsUnprintable(*code_point);
    absl::StrAppend(&printable, plain ? before.substr(0, before.size() - text.size()) : "?");
  }
  if (!text.empty()) absl::StrAppend(&printable, "...");
  return printable;
}

std::string PeerText(const nlohmann::json& line, const char* key) {
  if (!line.is_object()) return "";
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) return "";
  return MadePrintable(found->get_ref<const std::string&>());
}

std::optional<int64_t> PeerNumber(const nlohmann::json& line, const char* key, int64_t most) {
  if (!line.is_object()) return std::nullopt;
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  // A value of 2^63 and more turns negative, and is beyond `most` too.
  const auto number = found->get<int64_t>();
  if (number < 0 || number > most) return std::nullopt;
  return number;
}

nlohmann::json Greeting() { return {{"magic", kMagic}, {"protocol", kProtocol}}; }

absl::Status CheckGreeting(const nlohmann::json& line) {
  const std::optional<int64_t> protocol = PeerNumber(line, "protocol", INT32_MAX);
  if (PeerText(line, "magic") != kMagic || !protocol.has_value()) {
    return absl::InvalidArgumentError("it sent JSON that does not begin an examination");
  }
  if (*protocol == kProtocol) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "it speaks protocol ", *protocol, " of th doctor, and this build protocol ", kProtocol));
}

void ReadGreeting(const nlohmann::json& line, PeerFacts* peer) {
  peer->greeted = true;
  peer->host = PeerText(line, "host");
  peer->version = PeerText(line, "version");
  peer->congestion_control = PeerText(line, "congestion_control");
  peer->net_device = PeerText(line, "net_device");
  peer->mtu = static_cast<uint32_t>(PeerNumber(line, "mtu", kMostMtu).value_or(0));
}

nlohmann::json RateAsJson(const RateFacts& rate) {
  nlohmann::json line = {{"bytes", rate.bytes},
                         {"microseconds", rate.microseconds},
                         {"waited_us", rate.waited_us},
                         {"stalled", rate.stalled}};
  if (!rate.error.empty()) line["error"] = rate.error;
  return line;
}

RateFacts ReadRate(const nlohmann::json& line) {
  const std::optional<int64_t> bytes = PeerNumber(line, "bytes", INT64_MAX);
  const std::optional<int64_t> microseconds = PeerNumber(line, "microseconds", kMostRateUs);
  RateFacts rate = {.bytes = static_cast<uint64_t>(bytes.value_or(0)),
                    .microseconds = microseconds.value_or(0),
                    .waited_us = PeerNumber(line, "waited_us", kMostRateUs).value_or(0),
                    .stalled = line.value("stalled", nlohmann::json()) == true,
                    .error = PeerText(line, "error")};
  if (rate.error.empty() && !(bytes.has_value() && microseconds.has_value())) {
    rate.error = "the peer sent no result";
  }
  return rate;
}

std::optional<std::vector<Finding>> ReadFindings(const nlohmann::json& line) {
  const auto checks = line.find("checks");
  if (checks == line.end() || !checks->is_array()) return std::nullopt;
  std::vector<Finding> findings;
  for (const nlohmann::json& each : *checks) {
    if (findings.size() == kMaxPeerFindings) break;
    findings.push_back(ReadFinding(each));
  }
  return findings;
}

void EstimateClock(const std::vector<ClockSample>& samples, PeerFacts* peer) {
  std::optional<int64_t> shortest;
  for (const ClockSample& each : samples) {
    const bool sane =
        std::max({each.asked_us, each.received_us, each.answered_us, each.heard_us}) <=
            kMostClockUs &&
        std::min({each.asked_us, each.received_us, each.answered_us, each.heard_us}) >= 0;
    if (!sane) continue;
    const int64_t took = each.heard_us - each.asked_us;
    const int64_t round_trip = took - (each.answered_us - each.received_us);
    // Below 0, or longer than the whole exchange: a clock was set meanwhile, or the peer makes it
    // up.
    if (round_trip < 0 || round_trip > took) continue;
    if (shortest.has_value() && round_trip >= *shortest) continue;
    shortest = round_trip;
    peer->clock_ahead_us =
        ((each.received_us - each.asked_us) + (each.answered_us - each.heard_us)) / 2;
    peer->clock_error_us = round_trip / 2;
  }
}

}  // namespace th::doctor
