#include "th/memory/aligned_mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "th/memory/arena_alignment.h"

namespace th {

std::byte* MapAligned(int file_descriptor, uint64_t bytes, MappingAccess access) {
  constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const uint64_t padded = bytes + kArenaAlignment;
  void* const raw = mmap(nullptr, padded, PROT_NONE, kReserved, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  std::byte* const base = static_cast<std::byte*>(raw);
  const uint64_t skip =
      (kArenaAlignment - reinterpret_cast<uintptr_t>(raw) % kArenaAlignment) % kArenaAlignment;
  const int flags = (file_descriptor == kNoFile ? kReserved : MAP_SHARED) | MAP_FIXED;
  const int protection = access == MappingAccess::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mmap(base + skip, bytes, protection, flags, file_descriptor, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(base, padded);
    errno = error;
    return nullptr;
  }
  if (skip > 0) munmap(base, skip);
  munmap(base + skip + bytes, padded - skip - bytes);
  madvise(base + skip, bytes, MADV_HUGEPAGE);  // only advice: failure costs speed
  return base + skip;
}

}  // namespace th
