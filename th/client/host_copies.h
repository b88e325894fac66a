// Copies of shards in host memory of this process, under one limit for each purpose: retained
// versions that would go with a buffer (offload), versions that are received beside what a buffer
// holds (staged), and what a caller publishes and wants to write meanwhile (snapshot).
//
//   TH_ASSIGN_OR_RETURN(HostCopy copy, copies.Take(HostCopies::Purpose::kSnapshot, layout));
//   TH_RETURN_IF_ERROR(CopyStorages(layout, from, from_memory, copy.storages));
//
// Thread-safe. A copy may outlive the HostCopies.
#ifndef TH_CLIENT_HOST_COPIES_H_
#define TH_CLIENT_HOST_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/client/runtime.h"
#include "th/memory/host_arena.h"
#include "th/transfer/segment_store.h"
#include "th/weights/shard_layout.h"

namespace th {

// The memory of one copy.
struct HostCopyMemory {
  std::vector<void*> storages;  // in the layout's order
  std::shared_ptr<void>
      memory;  // owns them; given back once the last reader, fill or buffer drops it
};

class HostCopies {
 public:
  enum class Purpose : uint8_t { kOffload, kStaged, kSnapshot };
  struct Limits {
    uint64_t offload_bytes = 0;
    uint64_t max_offloads = 0;  // at one time
    uint64_t staging_bytes = 0;
    uint64_t snapshot_bytes = 0;
  };
  HostCopies(std::shared_ptr<Runtime> runtime, const Limits& limits);

  // Memory for a copy of a shard, backed by pages: that takes its time. RESOURCE_EXHAUSTED naming
  // the limit (of staging and snapshots; the server knows that of offloads).
  absl::StatusOr<HostCopyMemory> Take(Purpose purpose, const ShardLayout& layout);

 private:
  const std::shared_ptr<HostArena>& ArenaOf(Purpose purpose) const;

  const std::shared_ptr<Runtime> runtime_;
  // Shared with the copies in them.
  const std::shared_ptr<HostArena> offload_arena_;
  const std::shared_ptr<HostArena> staging_arena_;
  const std::shared_ptr<HostArena> snapshot_arena_;
};

// Copies all storages of `layout`. `memory` says which of `from` is device memory; nothing is said
// where none is. CANCELLED when the calls of this thread are; the device's errors.
absl::Status CopyStorages(const ShardLayout& layout, const std::vector<void*>& from,
                          const StorageMemory& memory, const std::vector<void*>& to);

}  // namespace th

#endif  // TH_CLIENT_HOST_COPIES_H_
