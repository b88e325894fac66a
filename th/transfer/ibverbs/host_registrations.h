// Memory that the devices may read and write: whole ranges registered once, found again for any
// piece of them.
//
//   HostRegistrations cache(devices, {.budget = budget});
//   TH_ASSIGN_OR_RETURN(const uint64_t attachment, cache.Attach(ranges, owner));
//   const auto found = cache.Find(piece.iov_base, piece.iov_len, /*device=*/0, owner);
//   // post READs with found->local_key, or tell the peer found->remote_key
//   cache.Detach(attachment);  // before any of the memory is unmapped
//
// The ranges of one Attach that lie side by side are one registration: those that touch or overlap,
// and those between which no whole page lies. Thousands of tensors of one allocation therefore cost
// one registration. Pages without a byte of the ranges are never registered: whoever owns them may
// unmap them, and what is mapped there later would be another page than the device knows.
//
// Two attachments share a registration if their merged ranges are the same; otherwise each has its
// own, also where they overlap: what one of them has ends with it. So whoever transfers a buffer
// names its owner (memory_owner.h) and gets no key that another buffer may withdraw. The memory
// must stay mapped, at the same pages, from Attach until Detach returns. Bytes between two merged
// ranges can be read by peers that hold the key.
//
// Thread-safe. Attach and Detach take as long as the kernel pins pages, which Attach has faulted in
// before with several threads (parallel_prefault.h); Find never waits for them.
#ifndef TH_TRANSFER_IBVERBS_HOST_REGISTRATIONS_H_
#define TH_TRANSFER_IBVERBS_HOST_REGISTRATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/transfer/ibverbs/attachment_table.h"
#include "th/transfer/ibverbs/memory_owner.h"
#include "th/transfer/ibverbs/parallel_prefault.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/registration_budget.h"

namespace th::ibverbs {

struct MemoryRange {
  uintptr_t begin = 0;
  uint64_t bytes = 0;

  uintptr_t end() const { return begin + bytes; }
  friend bool operator==(const MemoryRange&, const MemoryRange&) = default;
};

// The registrations that `ranges` need, in ascending order and without overlap. Empty ranges are
// left out. Pure.
std::vector<MemoryRange> MergeRanges(std::vector<MemoryRange> ranges, uint64_t page_bytes);

class HostRegistrations {
 public:
  // The reasons of older refusals are forgotten: WhyRefused returns OK for them.
  static constexpr size_t kMaxRefusals = 256;

  struct Options {
    // Registered bytes in all, each range counted once whatever the number of devices. Shared with
    // whoever registers other memory; null: one of the cache's own, without a limit.
    std::shared_ptr<RegistrationBudget> budget;
    // Registrations in all: adapters have a table of them.
    size_t max_registrations = 65536;
    // Attach faults in what it registers. One range at a time, so these are all the threads there
    // are.
    PrefaultLimits prefault;
  };
  struct Keys {
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    bool writable = false;  // false: memory that is mapped read-only; no READ may land there
  };
  struct Counters {
    size_t attachments = 0;
    size_t registrations = 0;  // ranges; each is registered with every device
    uint64_t bytes = 0;
  };

  HostRegistrations(std::vector<std::shared_ptr<const RdmaDevice>> devices, Options options);
  // Everything must be detached, or its memory still mapped.
  ~HostRegistrations() = default;

  // Registers `ranges` with every device. RESOURCE_EXHAUSTED: a bound of Options, of the device or
  // of the process's locked memory, with the figures and what to do. INVALID_ARGUMENT: a range that
  // is not mapped, or no ordinary memory. On an error nothing stays registered.
  absl::StatusOr<uint64_t> Attach(absl::Span<const MemoryRange> ranges, MemoryOwner owner = {});
  // Deregisters what no other attachment shares. Unknown numbers are ignored.
  void Detach(uint64_t attachment);

  // The keys of a registration of the owner's that holds all of [address, address + bytes); of any
  // where the owner is nobody in particular.
  std::optional<Keys> Find(const void* address, uint64_t bytes, size_t device,
                           MemoryOwner owner = {}) const;

  // Why memory that was to be registered is not: the refusal of the latest attachment that lay
  // around it. OK: Find finds it, or nobody has tried.
  absl::Status WhyRefused(const void* address, uint64_t bytes, MemoryOwner owner = {}) const;

  Counters counters() const;

 private:
  // One range, registered with every device; deregistered when it is destroyed.
  class Registration {
   public:
    Registration(MemoryRange range, absl::Span<const std::shared_ptr<const RdmaDevice>> devices,
                 RegistrationBudget* budget, const PrefaultLimits& prefault)
        : range_(range), devices_(devices), budget_(*budget), prefault_(prefault) {}
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    using Key = std::pair<uint64_t, uint64_t>;  // where it begins, how many bytes it has
    absl::Status Register();
    Key key() const { return {range_.begin, range_.bytes}; }
    uint64_t bytes() const { return range_.bytes; }
    Keys keys(size_t device) const {
      return {regions_[device]->lkey, regions_[device]->rkey, writable_};
    }

   private:
    const MemoryRange range_;
    const absl::Span<const std::shared_ptr<const RdmaDevice>> devices_;  // of the cache
    RegistrationBudget& budget_;                                         // of the cache
    const PrefaultLimits prefault_;
    bool budgeted_ = false;
    bool writable_ = true;
    std::vector<ibv_mr*> regions_;
  };
  using Shared = AttachmentTable<Registration>::Shared;

  // An attachment that failed: from its first byte to its last.
  struct Refusal {
    MemoryRange around;
    absl::Status why;
  };

  // `tried` says what came of the attachment of `merged`, which is not empty.
  void RememberTried(absl::Span<const MemoryRange> merged, const absl::Status& tried);
  Shared FindSame(const MemoryRange& range) const;
  absl::StatusOr<std::vector<Shared>> RegisterAll(absl::Span<const MemoryRange> merged);

  const std::vector<std::shared_ptr<const RdmaDevice>> devices_;
  const Options options_;

  absl::Mutex changing_ ABSL_ACQUIRED_BEFORE(mu_);  // held by Attach and Detach throughout
  mutable absl::Mutex mu_;
  AttachmentTable<Registration> table_ ABSL_GUARDED_BY(mu_);
  std::deque<Refusal> refused_ ABSL_GUARDED_BY(mu_);  // the oldest first
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_HOST_REGISTRATIONS_H_
