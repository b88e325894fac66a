// The answer to /metrics, a pure function of a snapshot.
#ifndef TH_SERVER_METRICS_TEXT_H_
#define TH_SERVER_METRICS_TEXT_H_

#include <string>

#include "th/server/server_metrics.h"
#include "th/server/status_snapshot.h"

namespace th {

// Prometheus text format 0.0.4.
std::string RenderMetrics(const StatusSnapshot& snapshot, const ServerMetrics& metrics);

}  // namespace th

#endif  // TH_SERVER_METRICS_TEXT_H_
