// Mappings that begin where large pages can.
#ifndef TH_MEMORY_ALIGNED_MAPPING_H_
#define TH_MEMORY_ALIGNED_MAPPING_H_

#include <cstddef>
#include <cstdint>

namespace th {

inline constexpr int kNoFile = -1;

enum class MappingAccess : uint8_t { kReadWrite, kReadOnly };

// Maps `bytes`, a multiple of kArenaAlignment, at a multiple of it: of a file, shared; of kNoFile,
// private to this process. Asks for large pages; no page is backed yet.
// Null, and errno says why, when the system has no such addresses. Thread-safe.
std::byte* MapAligned(int file_descriptor, uint64_t bytes,
                      MappingAccess access = MappingAccess::kReadWrite);

}  // namespace th

#endif  // TH_MEMORY_ALIGNED_MAPPING_H_
