// The examining end of a pair: what a `th doctor --listen` answers, and what passes between both.
#ifndef TH_DOCTOR_PEER_PROBE_H_
#define TH_DOCTOR_PEER_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "th/doctor/bulk_bytes.h"
#include "th/doctor/facts.h"

namespace th::doctor {

// A clock is estimated by the shortest of so many round trips: the others waited somewhere.
inline constexpr int kClockRounds = 16;

struct PeerProbeOptions {
  std::string version;  // of this build
  absl::Duration connect_timeout = absl::Seconds(3);
  // For each answer but those below. Long enough for a peer that examines with another host first.
  absl::Duration answer_timeout = absl::Seconds(10);
  // For the peer's findings: opening CUDA's driver library takes seconds on a host of many GPUs.
  absl::Duration checks_timeout = absl::Seconds(60);
  BulkLimits bulk;
  uint16_t back_port = 0;  // at which the peer is to connect back; 0: the system's choice
};

struct PeerTarget {
  std::string name;     // as the user has named it, for texts
  std::string address;  // numeric
  uint16_t port = 0;
};

// Examines the pair of this host and the target. Blocks for some seconds, for the sum of the
// timeouts at most; never fails: what the peer does not answer is absent. Takes whatever the peer
// sends. Thread-safe.
PeerFacts ProbePeer(const PeerTarget& target, const PeerProbeOptions& options);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_PROBE_H_
