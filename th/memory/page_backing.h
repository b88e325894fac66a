// Backs memory with pages before it is used: what the first touch of a page costs is paid here, and
// a system without memory says so instead of ending the process with a signal.
//
//   if (const int error = BackWithPages(data, bytes, {.threads = 2}); error != 0) ...
//   strerror(error)
//
// Shared memory (shared_memory.h) gets pages of kArenaAlignment where the kernel can make them
// (MADV_COLLAPSE, Linux 6.1, whatever transparent_hugepage/shmem_enabled says): backing a GB takes
// a tenth of the time, and whoever maps it later takes one fault for 2 MiB. Large pages are given
// up for the rest of the range once they have taken as long as small ones for all of it would.
#ifndef TH_MEMORY_PAGE_BACKING_H_
#define TH_MEMORY_PAGE_BACKING_H_

#include <cstddef>
#include <cstdint>

namespace th {

// The most threads of one call.
inline constexpr uint32_t kMaxBackingThreads = 16;

enum class MemoryBacking : uint8_t { kPrivate, kSharedFile };

struct BackingOptions {
  MemoryBacking memory = MemoryBacking::kPrivate;
  uint32_t threads = 1;  // 1 to kMaxBackingThreads
};

// Backs every page of [begin, begin + bytes), both multiples of kArenaAlignment. Returns 0, or why
// not, as an errno. What is there already keeps its content.
int BackWithPages(std::byte* begin, uint64_t bytes, const BackingOptions& options);

}  // namespace th

#endif  // TH_MEMORY_PAGE_BACKING_H_
