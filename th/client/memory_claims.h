// The claims on the memory of a membership's buffers: which buffers are asleep, and which one
// thread at a time has claimed for itself, so that no verb begins and nobody else changes the
// memory meanwhile.
//
// Not thread-safe: the membership's lock guards it.
#ifndef TH_CLIENT_MEMORY_CLAIMS_H_
#define TH_CLIENT_MEMORY_CLAIMS_H_

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "th/identifiers/identifiers.h"

namespace th {

// The purpose for which one thread claims a buffer's memory.
enum class ClaimFor : uint8_t {
  kRebind,    // it is changed for another, which also wakes the buffer
  kSleep,     // it is withdrawn from the data plane
  kWake,      // it is bound where it lay, and wakes
  kSnapshot,  // this thread reads it
  kReset,     // this thread waits for GPUs that write it
  kWithdraw,  // the buffer ends
};

class MemoryClaims {
 public:
  void Claim(BufferId buffer, ClaimFor purpose) { claimed_[buffer] = purpose; }
  void Release(BufferId buffer) { claimed_.erase(buffer); }
  bool HasAnyFor(ClaimFor purpose) const;

  void FallAsleep(BufferId buffer) { asleep_.insert(buffer); }
  void Wake(BufferId buffer) { asleep_.erase(buffer); }
  bool IsAsleep(BufferId buffer) const { return asleep_.contains(buffer); }
  // The buffer has ended.
  void Forget(BufferId buffer);

  // OK: a verb may begin. FAILED_PRECONDITION: the buffer is asleep, or its memory is being
  // changed.
  absl::Status CheckAwake(BufferId buffer) const;
  absl::Status CheckUnclaimed(BufferId buffer) const;
  absl::Status CheckNotAsleep(BufferId buffer) const;

 private:
  std::map<BufferId, ClaimFor> claimed_;
  std::set<BufferId> asleep_;
};

}  // namespace th

#endif  // TH_CLIENT_MEMORY_CLAIMS_H_
