// How much processor time a process has used.
#ifndef TH_PROCESSES_PROCESSOR_TIME_H_
#define TH_PROCESSES_PROCESSOR_TIME_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

// The processor time of all threads of a process, its own and the kernel's for it, since its start.
// `stat` is the text of /proc/<pid>/stat, `ticks_per_second` the system's clock ticks.
// INVALID_ARGUMENT when it is none.
absl::StatusOr<absl::Duration> ProcessorTimeOfStat(absl::string_view stat,
                                                   int64_t ticks_per_second);

// The same of a running process, to a hundredth of a second. NOT_FOUND when there is none.
absl::StatusOr<absl::Duration> ProcessorTime(pid_t pid);

}  // namespace th

#endif  // TH_PROCESSES_PROCESSOR_TIME_H_
