// Memory that the devices may read and write: whole ranges registered once, found again for any
// piece of them.
//
//   RegistrationCache cache(devices, {.max_bytes = uint64_t{64} << 30});
//   TH_ASSIGN_OR_RETURN(const uint64_t attachment, cache.Attach(ranges));
//   const auto found = cache.Find(piece.iov_base, piece.iov_len, /*device=*/0);
//   // post READs with found->local_key, or tell the peer found->remote_key
//   cache.Detach(attachment);  // before any of the memory is unmapped
//
// The ranges of one Attach that lie side by side are one registration: those that touch or overlap,
// and those between which no whole page lies. Thousands of tensors of one allocation therefore cost
// one registration. Pages without a byte of the ranges are never registered: whoever owns them may
// unmap them, and what is mapped there later would be another page than the device knows.
//
// Two attachments share a registration if their merged ranges are the same; otherwise each has its
// own. The memory must stay mapped, at the same pages, from Attach until Detach returns. Bytes
// between two merged ranges can be read by peers that hold the key.
//
// Thread-safe. Attach and Detach take as long as the kernel pins pages; Find never waits for them.
#ifndef TH_TRANSFER_IBVERBS_REGISTRATION_CACHE_H_
#define TH_TRANSFER_IBVERBS_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/transfer/ibverbs/rdma_device.h"

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

class RegistrationCache {
 public:
  struct Options {
    // Registered bytes in all, each range counted once whatever the number of devices.
    uint64_t max_bytes = uint64_t{1} << 40;
    // Registrations in all: adapters have a table of them.
    size_t max_registrations = 65536;
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

  RegistrationCache(std::vector<std::shared_ptr<const RdmaDevice>> devices, Options options);
  // Everything must be detached, or its memory still mapped.
  ~RegistrationCache() = default;

  // Registers `ranges` with every device. RESOURCE_EXHAUSTED: a bound of Options, of the device or
  // of the process's locked memory, with the figures and what to do. INVALID_ARGUMENT: a range that
  // is not mapped, or no ordinary memory. On an error nothing stays registered.
  absl::StatusOr<uint64_t> Attach(absl::Span<const MemoryRange> ranges);
  // Deregisters what no other attachment shares. Unknown numbers are ignored.
  void Detach(uint64_t attachment);

  // The keys of a registration that holds all of [address, address + bytes).
  std::optional<Keys> Find(const void* address, uint64_t bytes, size_t device) const;

  Counters counters() const;

 private:
  // One range, registered with every device; deregistered when it is destroyed.
  class Registration {
   public:
    Registration(MemoryRange range, absl::Span<const std::shared_ptr<const RdmaDevice>> devices)
        : range_(range), devices_(devices) {}
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    absl::Status Register();
    const MemoryRange& range() const { return range_; }
    Keys keys(size_t device) const {
      return {regions_[device]->lkey, regions_[device]->rkey, writable_};
    }

   private:
    const MemoryRange range_;
    const absl::Span<const std::shared_ptr<const RdmaDevice>> devices_;  // of the cache
    bool writable_ = true;
    std::vector<ibv_mr*> regions_;
  };
  // Shared by the attachments whose merged ranges are the same.
  using Shared = std::shared_ptr<const Registration>;
  using RangeKey = std::pair<uintptr_t, uint64_t>;  // begin, bytes

  Shared FindSame(const MemoryRange& range) const;
  absl::StatusOr<std::vector<Shared>> RegisterAll(absl::Span<const MemoryRange> merged);

  const std::vector<std::shared_ptr<const RdmaDevice>> devices_;
  const Options options_;

  absl::Mutex changing_ ABSL_ACQUIRED_BEFORE(mu_);  // held by Attach and Detach throughout
  mutable absl::Mutex mu_;
  uint64_t next_attachment_ ABSL_GUARDED_BY(mu_) = 1;
  std::unordered_map<uint64_t, std::vector<Shared>> attachments_ ABSL_GUARDED_BY(mu_);
  std::map<RangeKey, std::weak_ptr<const Registration>> by_range_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t longest_ ABSL_GUARDED_BY(mu_) = 0;  // no range in by_range_ is longer
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_REGISTRATION_CACHE_H_
