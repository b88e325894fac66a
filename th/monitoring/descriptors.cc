#include "th/monitoring/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"

namespace th {

absl::StatusOr<RaisedLimit> RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
    return absl::ErrnoToStatus(errno, "cannot ask for the limit of open files");
  }
  RaisedLimit raised{limit.rlim_cur, limit.rlim_max};
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
    return absl::ErrnoToStatus(errno, "cannot raise the limit of open files to the hard limit");
  }
  return raised;
}

uint64_t DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

uint64_t OpenDescriptors() {
  std::error_code error;
  uint64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count > 0 ? count - 1 : 0;  // without the folder's own
}

bool IsReserved(int fd) {
  return fd >= 0 && static_cast<uint64_t>(fd) >= ConnectionLimit(DescriptorLimit());
}

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool DescriptorsExhausted() {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == EMFILE || errno == ENFILE;
  const bool reserved = IsReserved(fd);
  close(fd);
  return reserved;
}

}  // namespace th
