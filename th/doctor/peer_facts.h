// The words of the protocol between `th doctor --peer` and `th doctor --listen`, and the facts in
// them. Pure.
//
// The end that examines connects and asks; the other one answers each line with one line. Each is a
// JSON object.
//
//   asks                                    is answered
//   {"magic", "protocol", "host",           {"magic", "protocol", "host", "version",
//    "version"}                              "congestion_control", "net_device", "mtu", "seen_as",
//                                            "token"}
//   {"ask": "time"}                         {"received_us", "sent_us"}, of the wall clock
//   {"ask": "connect", "port": N}           {"connected": true}, or false and {"error"}
//   {"ask": "receive", "duration_ms",       {"bytes", "microseconds", "waited_us", "stalled",
//    "stall_ms"}                             "error"}, after the asking end has sent over a
//                                            connection of its own
//   {"ask": "send", ...}                    the same, after the answering end has sent
//   {"ask": "checks"}                       {"checks": [...]}, as `th doctor --json`
//   another question                        {"error"}
//   anything else, and too much             {"magic", "protocol", "error"}, and the end
//
// A connection for bytes is opened by the asking end to the same port; it begins with
// {"magic", "protocol", "token"} and is answered with {"ready": true}. After that come bytes
// without meaning.
#ifndef TH_DOCTOR_PEER_FACTS_H_
#define TH_DOCTOR_PEER_FACTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "th/doctor/facts.h"

namespace th::doctor {

inline constexpr char kMagic[] = "tensorhub-doctor";
// Raised when an older end would misunderstand a newer one.
inline constexpr int kProtocol = 1;

inline constexpr char kAskTime[] = "time";
inline constexpr char kAskConnect[] = "connect";
inline constexpr char kAskReceive[] = "receive";
inline constexpr char kAskSend[] = "send";
inline constexpr char kAskChecks[] = "checks";

// The most bytes that are shown of one text of a peer.
inline constexpr size_t kMaxPeerText = 600;
// The most findings that are taken from a peer. A host has some 20.
inline constexpr size_t kMaxPeerFindings = 100;

// The text with everything unprintable replaced by '?', cut after kMaxPeerText bytes.
std::string MadePrintable(absl::string_view text);

// The text under `key`, made printable; empty where there is none.
std::string PeerText(const nlohmann::json& line, const char* key);
// The number under `key`. nullopt where there is none, or it is beyond `most` or below 0.
std::optional<int64_t> PeerNumber(const nlohmann::json& line, const char* key, int64_t most);

// {"magic", "protocol"}, with which each connection begins in both directions.
nlohmann::json Greeting();
// OK for a line that begins as Greeting(). FAILED_PRECONDITION naming both protocols when that of
// the peer is another one, INVALID_ARGUMENT when it is no greeting.
absl::Status CheckGreeting(const nlohmann::json& line);

// Takes `host` to `mtu` from the answer to a greeting.
void ReadGreeting(const nlohmann::json& line, PeerFacts* peer);

nlohmann::json RateAsJson(const RateFacts& rate);
RateFacts ReadRate(const nlohmann::json& line);

// The findings of an answer to "checks"; nullopt where it holds no list.
std::optional<std::vector<Finding>> ReadFindings(const nlohmann::json& line);

// One exchange of "time", in microseconds of wall clocks: the first and the last of the asking end.
struct ClockSample {
  int64_t asked_us = 0, received_us = 0, answered_us = 0, heard_us = 0;
};
// Sets the clock's facts from the sample with the shortest round trip, in which the offset can be
// wrong by half of it at most. Leaves them absent without a sample that can be true.
void EstimateClock(const std::vector<ClockSample>& samples, PeerFacts* peer);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_FACTS_H_
