#include "th/processes/resident_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<std::string> ReadProcFile(pid_t pid, absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", name));
  if (!file) return absl::NotFoundError(absl::StrCat("no process ", pid));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<uint64_t> BytesOfLine(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    uint64_t kilobytes = 0;
    if (absl::ConsumeSuffix(&line, "kB") && absl::SimpleAtoi(line, &kilobytes))
      return kilobytes << 10;
  }
  return absl::InvalidArgumentError(absl::StrCat("a process status without ", key));
}

absl::StatusOr<uint64_t> ResidentBytesOfStatus(absl::string_view status) {
  TH_ASSIGN_OR_RETURN(const uint64_t anonymous, BytesOfLine(status, "RssAnon:"));
  TH_ASSIGN_OR_RETURN(const uint64_t shared, BytesOfLine(status, "RssShmem:"));
  return anonymous + shared;
}

uint64_t ReadOnlySharedBytesOfSmaps(absl::string_view smaps) {
  uint64_t bytes = 0;
  bool counts = false;
  for (absl::string_view line : absl::StrSplit(smaps, '\n')) {
    // "7f00a000-7f00b000 r--s 00000000 00:01 1042   /memfd:tensorhub-arena (deleted)", then keys.
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 5 && words[1].size() == 4) {
      counts = words[1] == "r--s" && absl::StrContains(line, "/memfd:");
    } else if (counts && absl::StartsWith(line, "Rss:")) {
      bytes += BytesOfLine(line, "Rss:").value_or(0);
    }
  }
  return bytes;
}

absl::StatusOr<uint64_t> ResidentBytes(pid_t pid) {
  TH_ASSIGN_OR_RETURN(const std::string status, ReadProcFile(pid, "status"));
  TH_ASSIGN_OR_RETURN(const std::string smaps, ReadProcFile(pid, "smaps"));
  TH_ASSIGN_OR_RETURN(const uint64_t resident, ResidentBytesOfStatus(status));
  return resident - std::min(resident, ReadOnlySharedBytesOfSmaps(smaps));
}

}  // namespace th
