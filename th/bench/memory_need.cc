#include "th/bench/memory_need.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "th/processes/resident_memory.h"
#include "th/text/byte_size.h"

namespace th {
namespace {

constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// Empty: it cannot be read.
std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The limit of the process's group in the second version of control groups: "0::/user.slice".
std::string LimitOfOwnGroup() {
  const std::string groups = TextOf("/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) {
      return TextOf(absl::StrCat("/sys/fs/cgroup", line, "/memory.max"));
    }
  }
  return "";
}

}  // namespace

absl::Status CheckMemory(const MemoryNeed& need, uint64_t available_bytes) {
  const absl::uint128 needed = absl::uint128(need.version_bytes) * need.copies;
  if (needed <= available_bytes) return absl::OkStatus();
  const uint64_t shown = needed > kUnbounded ? kUnbounded : static_cast<uint64_t>(needed);
  const uint64_t fits =
      available_bytes / std::max<uint64_t>(need.copies, 1) / kMebibyte * kMebibyte;
  return absl::InvalidArgumentError(
      absl::StrCat("--bytes ", ByteSizeText(need.version_bytes), " is in memory ", need.copies,
                   " times at once, ", ByteSizeText(shown), " in all, and this machine has ",
                   ByteSizeText(available_bytes), " left: give at most --bytes ",
                   ExactByteSizeText(fits), ", or fewer processes"));
}

uint64_t AvailableMemoryOf(absl::string_view meminfo, absl::string_view limit) {
  const absl::StatusOr<uint64_t> available = BytesOfLine(meminfo, "MemAvailable:");
  uint64_t bytes = available.ok() ? *available : kUnbounded;
  uint64_t within = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(limit), &within)) bytes = std::min(bytes, within);
  return bytes;
}

uint64_t AvailableMemory() { return AvailableMemoryOf(TextOf("/proc/meminfo"), LimitOfOwnGroup()); }

}  // namespace th
