#include "th/processes/process_meter.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/status/status.h"
#include "th/processes/resident_memory.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// proc(5): writing it to clear_refs sets the peak to what is resident now.
constexpr char kForgetPeak[] = "5";

uint64_t BytesOfOthers() {
  return ReadOnlySharedBytesOfSmaps(ReadProcFile(getpid(), "smaps").value_or(""));
}

uint64_t Difference(uint64_t later, uint64_t earlier) { return std::max(later, earlier) - earlier; }

absl::StatusOr<ResidentPeak> OwnResidentPeak() {
  const absl::StatusOr<ResidentPeak> peak =
      ResidentPeakOfStatus(ReadProcFile(getpid(), "status").value_or(""));
  if (!peak.ok()) return absl::UnavailableError(peak.status().message());
  return *peak;
}

absl::Duration OwnProcessorTime() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace

absl::StatusOr<ResidentPeak> ResidentPeakOfStatus(absl::string_view status) {
  ResidentPeak peak;
  TH_ASSIGN_OR_RETURN(peak.now_bytes, BytesOfLine(status, "VmRSS:"));
  TH_ASSIGN_OR_RETURN(peak.peak_bytes, BytesOfLine(status, "VmHWM:"));
  return peak;
}

absl::StatusOr<ProcessMeter> ProcessMeter::Start() {
  std::ofstream forget("/proc/self/clear_refs");
  forget << kForgetPeak << std::flush;
  if (!forget) {
    return absl::UnavailableError(
        "this kernel does not let a process forget its peak of resident memory "
        "(/proc/self/clear_refs)");
  }
  const uint64_t others_bytes = BytesOfOthers();
  TH_ASSIGN_OR_RETURN(const ResidentPeak peak, OwnResidentPeak());
  return ProcessMeter(others_bytes, peak.now_bytes, OwnProcessorTime());
}

absl::StatusOr<ProcessCost> ProcessMeter::Read() const {
  const absl::Duration processor = OwnProcessorTime() - processor_;
  TH_ASSIGN_OR_RETURN(const ResidentPeak peak, OwnResidentPeak());
  const uint64_t growth_bytes = Difference(peak.peak_bytes, resident_bytes_);
  return ProcessCost{
      .processor = processor,
      .growth_bytes = Difference(growth_bytes, Difference(BytesOfOthers(), others_bytes_))};
}

}  // namespace th
