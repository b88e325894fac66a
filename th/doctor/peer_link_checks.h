// Checks of the link between a pair of hosts: peer_checks.h puts them with the others. Pure.
#ifndef TH_DOCTOR_PEER_LINK_CHECKS_H_
#define TH_DOCTOR_PEER_LINK_CHECKS_H_

#include <optional>
#include <string>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

// The peer's host name; its address as the user has named it where it says none.
std::string NameOf(const PeerFacts& peer);

Finding CheckRate(const PeerFacts& peer);  // peer-rate
// peer-large-packets; nullopt where the rates were not measured, and so nothing is known.
std::optional<Finding> CheckLargePackets(const PeerFacts& peer, const HostFacts& facts);
// peer-congestion-control
Finding CheckCongestionControls(const PeerFacts& peer, const HostFacts& facts);

}  // namespace th::doctor

#endif  // TH_DOCTOR_PEER_LINK_CHECKS_H_
