// Host memory of this process that other processes of its host can map: files that exist in memory
// alone (memfd) and whose size is sealed, so that nobody who maps one ever meets its end.
//
//   TH_ASSIGN_OR_RETURN(std::byte* data, MapSharedMemory(bytes));   // a multiple of
//   kArenaAlignment FindSharedMemory(data + 4096, 100)->file_descriptor;            // where others
//   can open it UnmapSharedMemory(data);
//
// A process that has mapped a range keeps its address range after UnmapSharedMemory, and not the
// pages: they go back to the system at once, and read as zeros there.
//
// Thread-safe. A forked child shares its parent's pages, and leaves them to it when it unmaps.
#ifndef TH_MEMORY_SHARED_MEMORY_H_
#define TH_MEMORY_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace th {

struct SharedMemoryRange {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  int file_descriptor = -1;
  // A random number that no other range of any process has: the file's descriptor and inode may be
  // given out again.
  uint64_t id = 0;
  uint64_t inode = 0;
};

// Maps `bytes`, a multiple of kArenaAlignment (host_arena.h), at a multiple of it; its pages are
// not backed yet. RESOURCE_EXHAUSTED, UNAVAILABLE: the system gives no such file, or no addresses.
absl::StatusOr<std::byte*> MapSharedMemory(uint64_t bytes);
// False: `data` is no begin of a mapped range, and nothing was done.
bool UnmapSharedMemory(std::byte* data);

// The range that holds all of [address, address + bytes).
std::optional<SharedMemoryRange> FindSharedMemory(const void* address, uint64_t bytes);
// All ranges of this process, by address.
std::vector<SharedMemoryRange> AllSharedMemory();

}  // namespace th

#endif  // TH_MEMORY_SHARED_MEMORY_H_
