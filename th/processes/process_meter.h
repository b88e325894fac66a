// The cost of a stretch of work to the process that does it: processor time, and memory beyond what
// was resident when it began.
//
//   TH_ASSIGN_OR_RETURN(const ProcessMeter meter, ProcessMeter::Start());
//   ...                                                     // the work
//   TH_ASSIGN_OR_RETURN(const ProcessCost cost, meter.Read());
//
// Starting a meter forgets the process's peak of resident memory, so a process has one meter at a
// time. Used by one thread; what other threads of the process do counts.
#ifndef TH_PROCESSES_PROCESS_METER_H_
#define TH_PROCESSES_PROCESS_METER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

struct ProcessCost {
  absl::Duration processor;  // of all threads, their own and the kernel's for them
  // The most that was resident at once beyond what was at the start. Shared memory of others that
  // was mapped meanwhile, to be read alone, does not count as long as it stays mapped
  // (resident_memory.h); files do.
  uint64_t growth_bytes = 0;
};

// Resident memory of all kinds, of the text of /proc/<pid>/status.
struct ResidentPeak {
  uint64_t now_bytes = 0;
  uint64_t peak_bytes = 0;
};
// INVALID_ARGUMENT when the lines are not there.
absl::StatusOr<ResidentPeak> ResidentPeakOfStatus(absl::string_view status);

class ProcessMeter {
 public:
  // UNAVAILABLE: the kernel does not let the peak be forgotten, or does not say what is resident.
  static absl::StatusOr<ProcessMeter> Start();
  // Since the start. UNAVAILABLE as above.
  absl::StatusOr<ProcessCost> Read() const;

 private:
  ProcessMeter(uint64_t others_bytes, uint64_t resident_bytes, absl::Duration processor)
      : others_bytes_(others_bytes), resident_bytes_(resident_bytes), processor_(processor) {}

  uint64_t others_bytes_;
  uint64_t resident_bytes_;
  absl::Duration processor_;
};

}  // namespace th

#endif  // TH_PROCESSES_PROCESS_METER_H_
