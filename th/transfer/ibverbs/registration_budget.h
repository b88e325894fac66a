// The registered bytes of a process, of hosts' and GPUs' memory together, under one limit.
//
//   RegistrationBudget budget(uint64_t{64} << 30);
//   TH_RETURN_IF_ERROR(budget.Take(bytes));
//   ... budget.Give(bytes);
//
// Thread-safe.
#ifndef TH_TRANSFER_IBVERBS_REGISTRATION_BUDGET_H_
#define TH_TRANSFER_IBVERBS_REGISTRATION_BUDGET_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/text/byte_size.h"

namespace th::ibverbs {

class RegistrationBudget {
 public:
  explicit RegistrationBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // RESOURCE_EXHAUSTED naming the limit; then nothing was taken.
  absl::Status Take(uint64_t bytes) {
    const absl::MutexLock lock(&mu_);
    if (bytes > max_bytes_ - used_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "registering ", ByteSizeText(bytes), " more exceeds the limit of ",
          ByteSizeText(max_bytes_),
          " of registered memory (rdma_registered_limit_bytes, --rdma-registered-limit), of which ",
          ByteSizeText(used_), " are in use"));
    }
    used_ += bytes;
    return absl::OkStatus();
  }
  void Give(uint64_t bytes) {
    const absl::MutexLock lock(&mu_);
    used_ -= bytes;
  }
  uint64_t used() const {
    const absl::MutexLock lock(&mu_);
    return used_;
  }

 private:
  const uint64_t max_bytes_;
  mutable absl::Mutex mu_;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_REGISTRATION_BUDGET_H_
