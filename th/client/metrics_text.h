// The metrics of this process's memberships, a pure function of their figures.
#ifndef TH_CLIENT_METRICS_TEXT_H_
#define TH_CLIENT_METRICS_TEXT_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "th/client/membership_figures.h"
#include "th/monitoring/process_figures.h"
#include "th/transfer/transport.h"

namespace th {

// Among them kMaxReceivedKinds by source and kMaxPassedOverKinds by reason.
inline constexpr size_t kMaxSamplesOfMembership = 100;

// Prometheus text format 0.0.4. `transports`: by name. At most kMaxSamplesOfMembership samples a
// membership, four a transport.
std::string RenderMetrics(const std::vector<MembershipFigures>& memberships,
                          const std::map<std::string, Transport::Counters>& transports,
                          const ProcessFigures& process);

}  // namespace th

#endif  // TH_CLIENT_METRICS_TEXT_H_
