// Checks that this machine has memory for the processes of a benchmark, each of which holds a whole
// version: one that is begun without ends minutes later with whatever the kernel kills.
//
//   TH_RETURN_IF_ERROR(CheckMemory({.version_bytes = flags.bytes, .copies = 1 + flags.readers},
//                                  AvailableMemory()));
#ifndef TH_BENCH_MEMORY_NEED_H_
#define TH_BENCH_MEMORY_NEED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace th {

struct MemoryNeed {
  uint64_t version_bytes = 0;  // --bytes
  uint64_t copies = 1;         // of it, in memory at once
};

// Pure. OK, or INVALID_ARGUMENT naming what is needed, what there is, and the largest --bytes that
// fits.
absl::Status CheckMemory(const MemoryNeed& need, uint64_t available_bytes);

// The bytes that can be allocated without swapping, as /proc/meminfo (its text) says, at most
// `limit` (the text
// of a control group's memory.max: "max" or bytes; empty: there is none). Pure; no bound where the
// text has no such line.
uint64_t AvailableMemoryOf(absl::string_view meminfo, absl::string_view limit);

// The same of this machine now, within this process's control group.
uint64_t AvailableMemory();

}  // namespace th

#endif  // TH_BENCH_MEMORY_NEED_H_
