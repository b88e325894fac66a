// The resources that this process uses, for the metrics that Prometheus's clients call process_*.
#ifndef TH_MONITORING_PROCESS_FIGURES_H_
#define TH_MONITORING_PROCESS_FIGURES_H_

#include <cstdint>

#include "absl/time/time.h"

namespace th {

struct ProcessFigures {
  absl::Duration cpu;  // of user and system
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  uint64_t max_descriptors = 0;
  absl::Time started = absl::UnixEpoch();  // by the wall clock, to a hundredth of a second
};

// Reads /proc; what cannot be read stays as above.
ProcessFigures ReadProcessFigures();

}  // namespace th

#endif  // TH_MONITORING_PROCESS_FIGURES_H_
