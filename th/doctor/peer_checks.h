// Checks of a pair of hosts, from what both ends have found. Pure.
#ifndef TH_DOCTOR_PEER_CHECKS_H_
#define TH_DOCTOR_PEER_CHECKS_H_

#include <cstdint>
#include <vector>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

// A larger difference between the wall clocks of the two hosts is a note. Events that people
// compare in the logs of both lie further apart. NTP keeps hosts of one site within a few ms.
inline constexpr int64_t kClockToleranceUs = 100'000;

// The findings in this order: peer; then, if the peer has greeted, peer-version, peer-clock,
// peer-way-back, peer-rate (not where peer-large-packets explains it), peer-large-packets and
// peer-congestion-control, each if its facts are there; then the peer's own notes and problems as
// peer:CHECK. One finding peer-checks stands for the last ones where there are none (ok), or where
// the peer has not sent them (note). `facts` are those of this host.
std::vector<Finding> CheckPeer(const PeerFacts& peer, const HostFacts& facts);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_CHECKS_H_
