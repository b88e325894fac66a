#include "th/client/process_guard.h"

#include <atomic>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

absl::Status Forked(pid_t parent) {
  return absl::FailedPreconditionError(
      absl::StrCat("this process (pid ", getpid(), ") was forked from pid ", parent,
                   " after that had joined TensorHub; threads and connections do not survive a "
                   "fork: fork before "
                   "the first join, or start workers with spawn or exec and join there"));
}

}  // namespace

absl::Status ProcessGuard::Check() const { return forked() ? Forked(pid_) : absl::OkStatus(); }

absl::Status ClaimProcess() {
  // Constant-initialised: the library has no global initialisation.
  static std::atomic<pid_t> claimed{0};
  const pid_t self = getpid();
  pid_t owner = 0;
  if (claimed.compare_exchange_strong(owner, self) || owner == self) return absl::OkStatus();
  return Forked(owner);
}

}  // namespace th
