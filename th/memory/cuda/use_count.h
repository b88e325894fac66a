// Knows the uses of memory that its owner may take back: once it is revoked none begins, and
// Revoke waits for those under way. Owners of a part of it wait for the uses of that part alone.
//
//   std::optional<UseCount::Use> use = uses.Begin();
//   if (!use.has_value()) return ...;              // it was revoked
//   ... the memory stays while `use` lives ...
//   if (uses.Revoke(absl::Seconds(10)) > 0) ...;   // the owner must not free it yet
//   uses.Restore();                                // and does not: uses may begin again
//
// Thread-safe. It outlives its uses.
#ifndef TH_MEMORY_CUDA_USE_COUNT_H_
#define TH_MEMORY_CUDA_USE_COUNT_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace th {

class UseCount {
 public:
  // While it lives, Revoke waits.
  class Use {
   public:
    Use(UseCount* count, uint64_t number) : count_(count), number_(number) {}
    ~Use() {
      if (count_ != nullptr) count_->End(number_);
    }
    Use(Use&& other) noexcept
        : count_(std::exchange(other.count_, nullptr)), number_(other.number_) {}
    Use& operator=(Use&&) = delete;

   private:
    UseCount* count_;
    uint64_t number_;
  };
  // Bytes [begin, end) of the memory.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = UINT64_MAX;
  };

  // A use of these bytes. Nullopt: it was revoked.
  std::optional<Use> Begin(Range range) {
    const absl::MutexLock lock(&mu_);
    if (revoked_) return std::nullopt;
    uses_.emplace(++last_, range);
    return std::optional<Use>(std::in_place, this, last_);
  }
  std::optional<Use> Begin() { return Begin(Range()); }
  bool any() const {
    const absl::MutexLock lock(&mu_);
    return !uses_.empty();
  }
  // Returns the number of uses that are still under way after `timeout`. May be repeated.
  uint64_t Revoke(absl::Duration timeout) {
    const absl::MutexLock lock(&mu_);
    revoked_ = true;
    const auto unused = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return uses_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&unused), timeout);
    return uses_.size();
  }
  // Undoes Revoke.
  void Restore() {
    const absl::MutexLock lock(&mu_);
    revoked_ = false;
  }
  // Waits for the uses of these bytes that have begun before the call, and refuses none. Returns
  // the number of them that are still under way after `timeout`.
  uint64_t Await(Range range, absl::Duration timeout) {
    const absl::MutexLock lock(&mu_);
    const uint64_t last = last_;
    const auto unused = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Count(range, last) == 0; };
    mu_.AwaitWithTimeout(absl::Condition(&unused), timeout);
    return Count(range, last);
  }

 private:
  // The uses of these bytes that have begun by the one with the number `last`.
  uint64_t Count(Range range, uint64_t last) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return static_cast<uint64_t>(
        std::count_if(uses_.begin(), uses_.upper_bound(last), [&range](const auto& use) {
          return use.second.begin < range.end && range.begin < use.second.end;
        }));
  }
  void End(uint64_t number) {
    const absl::MutexLock lock(&mu_);
    uses_.erase(number);
  }

  mutable absl::Mutex mu_;
  std::map<uint64_t, Range> uses_ ABSL_GUARDED_BY(mu_);  // by number, in which they have begun
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  bool revoked_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_USE_COUNT_H_
