// Reads at any alignment, for kernels: a GPU reads a word only at a multiple of its size.
//
// A Warp (device_warp.h, host_warp.h) reads and writes memory and runs code for each of its lanes.
#ifndef TH_MEMORY_CUDA_KERNELS_WORDS_H_
#define TH_MEMORY_CUDA_KERNELS_WORDS_H_

#include <cstdint>

#include "th/memory/cuda/kernels/execution_space.h"

namespace th::kernels {

struct alignas(16) Pair {
  uint64_t even;
  uint64_t odd;
};

// Memory that may be read: nothing outside of it is touched.
struct Bounds {
  uint64_t begin;
  uint64_t end;
};

// Eight little-endian bytes at `address`, all within `bounds`.
template <typename Warp>
TH_KERNEL uint64_t ReadWord(const Warp& warp, uint64_t address, Bounds bounds) {
  const uint64_t skipped = address % 8;
  if (skipped == 0) return warp.template Read<uint64_t>(address);
  const uint64_t aligned = address - skipped;
  if (aligned >= bounds.begin && aligned + 16 <= bounds.end) {
    const uint64_t low = warp.template Read<uint64_t>(aligned);
    const uint64_t high = warp.template Read<uint64_t>(aligned + 8);
    return low >> (8 * skipped) | high << (64 - 8 * skipped);
  }
  uint64_t word = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    word |= uint64_t{warp.template Read<uint8_t>(address + i)} << (8 * i);
  }
  return word;
}

template <typename Warp>
TH_KERNEL uint32_t ReadHalfWord(const Warp& warp, uint64_t address) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    word |= uint32_t{warp.template Read<uint8_t>(address + i)} << (8 * i);
  }
  return word;
}

// Sixteen bytes at `address`.
template <typename Warp>
TH_KERNEL Pair ReadPair(const Warp& warp, uint64_t address, Bounds bounds) {
  if (address % 16 == 0) return warp.template Read<Pair>(address);
  return {ReadWord(warp, address, bounds), ReadWord(warp, address + 8, bounds)};
}

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_WORDS_H_
