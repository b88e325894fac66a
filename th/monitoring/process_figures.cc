#include "th/monitoring/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "th/monitoring/descriptors.h"

namespace th {
namespace {

// The fields after the last ')' of /proc/self/stat begin with the third one: a program's name may
// hold anything.
constexpr int kFirstFieldAfterName = 3;
constexpr int kStartTimeField = 22;

absl::Duration CpuOf(const rusage& usage) {
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0, resident_pages = 0;
  statm >> pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// The time from the machine's start to the process's.
absl::Duration StartedAfterBoot() {
  std::ifstream stat("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(stat), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::ZeroDuration();
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = kFirstFieldAfterName; i < kStartTimeField; ++i) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  return absl::Seconds(ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

absl::Time Started() {
  std::ifstream uptime("/proc/uptime");
  double up_seconds = 0;
  if (!(uptime >> up_seconds)) return absl::UnixEpoch();
  return absl::Now() - absl::Seconds(up_seconds) + StartedAfterBoot();
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  static const absl::Time started = Started();  // once: it would wander by the clocks' rounding
  return {.cpu = CpuOf(usage),
          .resident_bytes = ResidentBytes(),
          .open_descriptors = OpenDescriptors(),
          .max_descriptors = DescriptorLimit(),
          .started = started};
}

}  // namespace th
