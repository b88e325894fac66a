#include "th/client/memory_claims.h"

#include <algorithm>

#include "th/status/status_macros.h"

namespace th {

bool MemoryClaims::HasAnyFor(ClaimFor purpose) const {
  return std::any_of(claimed_.begin(), claimed_.end(),
                     [purpose](const auto& entry) { return entry.second == purpose; });
}

void MemoryClaims::Forget(BufferId buffer) {
  claimed_.erase(buffer);
  asleep_.erase(buffer);
}

absl::Status MemoryClaims::CheckUnclaimed(BufferId buffer) const {
  const auto claimed = claimed_.find(buffer);
  if (claimed == claimed_.end()) return absl::OkStatus();
  switch (claimed->second) {
    case ClaimFor::kRebind:
    case ClaimFor::kSleep:
    case ClaimFor::kWake:
      break;
    case ClaimFor::kSnapshot:
      return absl::FailedPreconditionError("another thread is taking a snapshot of the buffer");
    case ClaimFor::kReset:
      return absl::FailedPreconditionError("another thread is resetting the buffer");
    case ClaimFor::kWithdraw:
      return absl::FailedPreconditionError("another thread is ending the buffer");
  }
  return absl::FailedPreconditionError("another thread is changing the buffer's memory");
}

absl::Status MemoryClaims::CheckAwake(BufferId buffer) const {
  TH_RETURN_IF_ERROR(CheckUnclaimed(buffer));
  return CheckNotAsleep(buffer);
}

absl::Status MemoryClaims::CheckNotAsleep(BufferId buffer) const {
  if (!asleep_.contains(buffer)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the buffer is asleep: its memory may be gone; Wake it once the memory is there again");
}

}  // namespace th
