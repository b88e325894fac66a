// Checks of a pair of hosts, from what both ends have found. Pure.
#ifndef TH_DOCTOR_PEER_CHECKS_H_
#define TH_DOCTOR_PEER_CHECKS_H_

#include <cstdint>
#include <vector>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

// Wall clocks further apart than this are noted: no event of TensorHub is shorter that people
// compare by the logs of two hosts. NTP keeps hosts of one site within a few ms.
inline constexpr int64_t kClockToleranceUs = 100'000;

// The checks peer, peer-version, peer-clock, peer-way-back, peer-rate, peer-large-packets and
// peer-congestion-control, as far as the peer has answered. Then the notes and problems that the
// peer has found of itself, as peer:CHECK, or peer-checks where there are none. `facts` are those
// of this host.
std::vector<Finding> CheckPeer(const PeerFacts& peer, const HostFacts& facts);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_CHECKS_H_
