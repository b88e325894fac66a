#include "th/processes/processor_time.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace th {
namespace {

// After the name, which may hold anything and ends at the last parenthesis; proc(5) counts from 1,
// and the name is the second.
constexpr size_t kUserTicks = 14 - 3, kSystemTicks = 15 - 3;

}  // namespace

absl::StatusOr<absl::Duration> ProcessorTimeOfStat(absl::string_view stat,
                                                   int64_t ticks_per_second) {
  const size_t name_end = stat.rfind(')');
  const std::vector<absl::string_view> fields =
      name_end == absl::string_view::npos
          ? std::vector<absl::string_view>()
          : absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  uint64_t user = 0, system = 0;
  if (ticks_per_second <= 0 || fields.size() <= kSystemTicks ||
      !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kSystemTicks], &system)) {
    return absl::InvalidArgumentError("this is no text of /proc/<pid>/stat");
  }
  return absl::Seconds(static_cast<double>(user + system) / static_cast<double>(ticks_per_second));
}

absl::StatusOr<absl::Duration> ProcessorTime(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  return ProcessorTimeOfStat(text.str(), sysconf(_SC_CLK_TCK));
}

}  // namespace th
