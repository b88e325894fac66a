// The pages of the HTTP listener, as pure functions of a snapshot.
#ifndef TH_SERVER_STATUS_PAGE_H_
#define TH_SERVER_STATUS_PAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/catalog.h"
#include "th/registry_state/registry_types.h"
#include "th/server/process_figures.h"
#include "th/server/server_metrics.h"

namespace th {

struct StatusSnapshot {
  Epoch epoch;
  Catalog catalog;                    // for people only
  RecentEvents events;                // likewise
  std::vector<ModelFigures> figures;  // for metrics only
  RegistryCounters counters;
  size_t workers = 0;
  ProcessFigures process;
  absl::Time now;  // by the clock of the figures
  absl::Duration uptime;
  std::string address;  // of the gRPC listener
  std::string version;  // of the software
};

// Prometheus text format 0.0.4.
std::string RenderMetrics(const StatusSnapshot& snapshot, const ServerMetrics& metrics);

// HTML for people.
std::string RenderStatusPage(const StatusSnapshot& snapshot);

}  // namespace th

#endif  // TH_SERVER_STATUS_PAGE_H_
