// TCP, and the way to another host. Pure.
#ifndef TH_DOCTOR_NETWORK_CHECKS_H_
#define TH_DOCTOR_NETWORK_CHECKS_H_

#include <vector>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

Finding CheckCongestionControl(const TcpFacts& tcp);  // congestion-control
Finding CheckSocketBuffers(const TcpFacts& tcp);      // socket-buffers

Finding CheckServer(const ServerFacts& server);  // server

// connect, and if the peer answers path-mtu.
std::vector<Finding> CheckRoute(const RouteFacts& route, const HostFacts& facts);

}  // namespace th::doctor

#endif  // TH_DOCTOR_NETWORK_CHECKS_H_
