#include "th/cli/process_meter.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "th/cli/resident_memory.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

// proc(5): writing it to clear_refs sets the peak to what is resident now.
constexpr char kForgetPeak[] = "5";

absl::StatusOr<uint64_t> LineInBytes(absl::string_view status, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    uint64_t kilobytes = 0;
    if (absl::ConsumeSuffix(&line, "kB") && absl::SimpleAtoi(line, &kilobytes))
      return kilobytes << 10;
  }
  return absl::InvalidArgumentError(absl::StrCat("a process status without ", key));
}

std::string TextOf(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

uint64_t BytesOfOthers() { return ReadOnlySharedBytesOfSmaps(TextOf("/proc/self/smaps")); }

uint64_t Difference(uint64_t later, uint64_t earlier) { return std::max(later, earlier) - earlier; }

absl::StatusOr<ResidentPeak> OwnResidentPeak() {
  const absl::StatusOr<ResidentPeak> peak = ResidentPeakOfStatus(TextOf("/proc/self/status"));
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
  TH_ASSIGN_OR_RETURN(peak.now_bytes, LineInBytes(status, "VmRSS:"));
  TH_ASSIGN_OR_RETURN(peak.peak_bytes, LineInBytes(status, "VmHWM:"));
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
