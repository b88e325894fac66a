// The alignment of memory for weights: that of the processor's large pages.
#ifndef TH_MEMORY_ARENA_ALIGNMENT_H_
#define TH_MEMORY_ARENA_ALIGNMENT_H_

#include <cstdint>

namespace th {

// Blocks are whole multiples of this and begin at one.
inline constexpr uint64_t kArenaAlignment = uint64_t{2} << 20;

}  // namespace th

#endif  // TH_MEMORY_ARENA_ALIGNMENT_H_
