// How many files and sockets this process, and those that it starts, may have open.
#ifndef TH_PROCESSES_DESCRIPTOR_LIMIT_H_
#define TH_PROCESSES_DESCRIPTOR_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace th {

// Raises the limit to `needed` if it is lower; processes that are started later inherit it.
// RESOURCE_EXHAUSTED naming both numbers when this user may not. Thread-safe.
absl::Status EnsureDescriptorLimit(uint64_t needed);

}  // namespace th

#endif  // TH_PROCESSES_DESCRIPTOR_LIMIT_H_
