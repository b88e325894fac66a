// StatusSnapshot: the picture of the server at one moment that the HTTP listener answers from.
#ifndef TH_SERVER_STATUS_SNAPSHOT_H_
#define TH_SERVER_STATUS_SNAPSHOT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/monitoring/process_figures.h"
#include "th/protocol/catalog.h"
#include "th/protocol/event.h"
#include "th/registry_state/registry_types.h"

namespace th {

struct StatusSnapshot {
  Epoch epoch;
  Catalog catalog;                    // for people only
  RecentEvents events;                // likewise
  std::vector<ModelFigures> figures;  // for metrics only
  RegistryCounters counters;
  size_t workers = 0;
  ProcessFigures process;
  absl::Time now;   // by the clock of the figures
  absl::Time wall;  // the time of day
  absl::Duration uptime;
  std::string address;  // of the gRPC listener
  std::string version;  // of the software
};

}  // namespace th

#endif  // TH_SERVER_STATUS_SNAPSHOT_H_
