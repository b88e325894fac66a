#include "th/cli/resident_memory.h"

#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

absl::StatusOr<uint64_t> LineInKilobytes(absl::string_view status, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    uint64_t kilobytes = 0;
    if (absl::ConsumeSuffix(&line, "kB") && absl::SimpleAtoi(line, &kilobytes))
      return kilobytes << 10;
  }
  return absl::InvalidArgumentError(absl::StrCat("a process status without ", key));
}

}  // namespace

absl::StatusOr<uint64_t> ResidentBytesOfStatus(absl::string_view status) {
  TH_ASSIGN_OR_RETURN(const uint64_t anonymous, LineInKilobytes(status, "RssAnon:"));
  TH_ASSIGN_OR_RETURN(const uint64_t shared, LineInKilobytes(status, "RssShmem:"));
  return anonymous + shared;
}

absl::StatusOr<uint64_t> ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  if (!file) return absl::NotFoundError(absl::StrCat("no process ", pid));
  std::stringstream text;
  text << file.rdbuf();
  return ResidentBytesOfStatus(text.str());
}

}  // namespace th
