#include "th/processes/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace th {

absl::Status EnsureDescriptorLimit(uint64_t needed) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(absl::StrCat("getrlimit: ", strerror(errno)));
  }
  if (limit.rlim_cur >= needed) return absl::OkStatus();
  // Beyond the hard limit only for who may raise that too.
  const rlimit raised = {.rlim_cur = needed, .rlim_max = std::max<rlim_t>(limit.rlim_max, needed)};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "this needs ", needed, " open files and sockets a process, and the limit is ", limit.rlim_max,
      " (", strerror(errno),
      "); raise it (`ulimit -Hn` shows it, LimitNOFILE= in systemd) or use fewer workers"));
}

}  // namespace th
