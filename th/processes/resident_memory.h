// The memory that a process really has.
#ifndef TH_PROCESSES_RESIDENT_MEMORY_H_
#define TH_PROCESSES_RESIDENT_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// The text of /proc/<pid>/`name`. NOT_FOUND when there is no such process.
absl::StatusOr<std::string> ReadProcFile(pid_t pid, absl::string_view name);
// The bytes that the line beginning with `key` ("VmRSS:") tells in kB, of the text of
// /proc/<pid>/status or of a line of smaps. INVALID_ARGUMENT when it is not there.
absl::StatusOr<uint64_t> BytesOfLine(absl::string_view text, absl::string_view key);

// Bytes of pages that hold data of its own: anonymous and shared memory, without files. `status` is
// the text of /proc/<pid>/status. INVALID_ARGUMENT when the lines are not there.
absl::StatusOr<uint64_t> ResidentBytesOfStatus(absl::string_view status);
// Bytes of pages of shared memory that the process has mapped for reading alone: another process's,
// which a reader of the same host copies from. `smaps` is the text of /proc/<pid>/smaps.
uint64_t ReadOnlySharedBytesOfSmaps(absl::string_view smaps);

// The resident bytes of a running process: its own pages, without those that it has mapped of
// others. NOT_FOUND when
// there is none.
absl::StatusOr<uint64_t> ResidentBytes(pid_t pid);

}  // namespace th

#endif  // TH_PROCESSES_RESIDENT_MEMORY_H_
