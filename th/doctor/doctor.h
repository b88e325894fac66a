// The doctor: what of this host helps or hinders TensorHub, and what to do about it.
//
//   const std::vector<Finding> findings = Examine({});
//   std::cout << FindingsAsText(findings);
//   return CountOf(findings, Verdict::kProblem) == 0 ? 0 : 1;
//
// It looks and changes nothing. With a peer it examines a pair of hosts: the other one answers by
// ListenForPeers meanwhile. Thread-safe.
#ifndef TH_DOCTOR_DOCTOR_H_
#define TH_DOCTOR_DOCTOR_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/doctor/facts.h"
#include "th/doctor/finding.h"
#include "th/doctor/peer_answers.h"
#include "th/doctor/peer_probe.h"
#include "th/doctor/route_facts.h"

namespace th::doctor {

struct ExamineOptions {
  std::optional<HostAndPort> to;                      // a peer whose route is examined too
  absl::Duration connect_timeout = absl::Seconds(3);  // for each address of it
  std::optional<ServerFacts> server;                  // is judged with the facts of this host
  // `to` is a `th doctor --listen`, and the pair is examined.
  std::optional<PeerProbeOptions> peer;
};

// Gathers the facts of this host and judges them. Blocks while libraries are opened, a name is
// resolved, and a connection is made; with a peer for some seconds more (peer_probe.h).
std::vector<Finding> Examine(const ExamineOptions& options);

// All checks of these facts, in the order in which they are shown. Pure.
std::vector<Finding> Judge(const HostFacts& facts);

struct ListenOptions {
  HostAndPort at;       // of ParseListenAddress
  std::string version;  // of this build
  // Called on a thread of its own after each examination, and after each attempt at one.
  std::function<void(const AnsweredPeer&)> on_peer;
};

// Answers peers that examine the pair, one at a time, until it is destroyed. UNAVAILABLE or
// INVALID_ARGUMENT where the address cannot be listened on.
absl::StatusOr<std::unique_ptr<PeerAnswers>> ListenForPeers(const ListenOptions& options);

size_t CountOf(const std::vector<Finding>& findings, Verdict verdict);

// A paragraph a finding, and a last line of counts.
std::string FindingsAsText(const std::vector<Finding>& findings);
// {"checks": [{"check", "verdict", "found", "means", "advice"}], "problems": N, "notes": N}; no
// "advice" where there is none.
nlohmann::json FindingsAsJson(const std::vector<Finding>& findings);

}  // namespace th::doctor

#endif  // TH_DOCTOR_DOCTOR_H_
