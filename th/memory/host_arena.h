// Blocks of pre-faulted host memory for weights, reused, under one byte limit. Where the system
// allows it they are memory that readers of this host can map (shared_memory.h).
//
//   HostArena arena({.limit_bytes = uint64_t{8} << 30});
//   TH_ASSIGN_OR_RETURN(HostBlock block, arena.Allocate(layout.bytes()));
//   ... block.data(), block.bytes() ...       // goes back to the arena with the handle
//
// Of an arena with ReadersMay::kAttach a published version may be used by readers of this host
// where it lies. A block that has been attached is not used again when it goes back: its pages are
// left to the readers, and do not count here any more. Nor is one that RenewSharedMemory has made
// private: readers could not attach it, and its pages would be those of the old file.
//
// Thread-safe. The arena outlives its blocks.
#ifndef TH_MEMORY_HOST_ARENA_H_
#define TH_MEMORY_HOST_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/page_backing.h"
#include "th/memory/shared_memory.h"

namespace th {

class HostArena;

// A block of an arena. Movable; gives its memory back when it ends.
class HostBlock {
 public:
  HostBlock() = default;
  ~HostBlock();
  HostBlock(HostBlock&& other) noexcept { *this = std::move(other); }
  HostBlock& operator=(HostBlock&& other) noexcept;

  std::byte* data() const { return mapping_.data; }
  uint64_t bytes() const { return bytes_; }  // as asked for

 private:
  friend class HostArena;
  struct Mapping {
    std::byte* data = nullptr;
    MemoryBacking memory = MemoryBacking::kPrivate;  // as it was mapped
  };
  HostBlock(HostArena* arena, Mapping mapping, uint64_t bytes, uint64_t mapped_bytes)
      : arena_(arena), mapping_(mapping), bytes_(bytes), mapped_bytes_(mapped_bytes) {}

  HostArena* arena_ = nullptr;
  Mapping mapping_;
  uint64_t bytes_ = 0;
  uint64_t mapped_bytes_ = 0;
};

class HostArena {
 public:
  struct Options {
    uint64_t limit_bytes = 0;       // of everything mapped, in use or kept for reuse; required
    uint32_t prefault_threads = 2;  // while Allocate runs; 1 to kMaxBackingThreads
    // kAttach: each block holds the tensors of one buffer, and nothing else that is written while
    // that buffer is taken back by Unpublish or Update (RenewSharedMemory copies the block then).
    ReadersMay readers_may = ReadersMay::kCopy;
  };
  explicit HostArena(Options options) : options_(options) {}
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // A block whose every page is backed. Its content is unspecified (zeros, or what was there).
  // RESOURCE_EXHAUSTED naming the limit and what is in use, or that the system has no memory;
  // INVALID_ARGUMENT for no bytes.
  absl::StatusOr<HostBlock> Allocate(uint64_t bytes);
  // Returns what is kept for reuse to the system.
  void Trim();

  uint64_t bytes_mapped() const;
  uint64_t bytes_in_use() const;

 private:
  friend class HostBlock;
  using Mapping = HostBlock::Mapping;
  static Mapping Map(uint64_t bytes, ReadersMay readers_may);
  Mapping MapBacked(uint64_t bytes) const;
  void GiveBack(const Mapping& mapping, uint64_t mapped_bytes);
  // A block that is kept for reuse; one without data: none fits.
  HostBlock TakeFree(uint64_t bytes, uint64_t rounded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts a block as in use that is about to be mapped. RESOURCE_EXHAUSTED: beyond the limit.
  absl::Status Reserve(uint64_t bytes, uint64_t rounded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TrimUntil(uint64_t room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  std::multimap<uint64_t, Mapping> free_ ABSL_GUARDED_BY(mu_);  // by mapped bytes
  uint64_t mapped_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t in_use_ ABSL_GUARDED_BY(mu_) = 0;  // of mapped_
};

}  // namespace th

#endif  // TH_MEMORY_HOST_ARENA_H_
