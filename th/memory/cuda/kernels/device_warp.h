// A warp of a GPU: a value a lane is a register, and lanes exchange values by shuffles. For nvcc
// only.
#ifndef TH_MEMORY_CUDA_KERNELS_DEVICE_WARP_H_
#define TH_MEMORY_CUDA_KERNELS_DEVICE_WARP_H_

#include <cstdint>

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/execution_space.h"
#include "th/memory/cuda/kernels/words.h"

namespace th::kernels {

class DeviceWarp {
 public:
  // Whatever lane is named, it is this thread's.
  template <typename T>
  struct Lanes {
    T value;
    TH_KERNEL T& operator[](uint32_t) { return value; }
    TH_KERNEL const T& operator[](uint32_t) const { return value; }
  };

  template <typename Body>
  TH_KERNEL void ForEachLane(const Body& body) const {
    body(threadIdx.x % kWarpLanes);
  }
  template <typename Body>
  TH_KERNEL void OnFirstLane(const Body& body) const {
    if (threadIdx.x % kWarpLanes == 0) body();
  }

  // Each lane gets the sum over the lanes of its column: those that are equal modulo 4.
  TH_KERNEL void SumOverStripes(Lanes<Pair>* lanes) const {
    for (uint32_t distance = 4; distance < kWarpLanes; distance *= 2) Exchange(distance, lanes);
  }
  // Each lane gets the sum over the four columns.
  TH_KERNEL void SumOverColumns(Lanes<Pair>* lanes) const {
    Exchange(1, lanes);
    Exchange(2, lanes);
  }

  template <typename T>
  TH_KERNEL T Read(uint64_t address) const {
    return *reinterpret_cast<const T*>(address);
  }
  template <typename T>
  TH_KERNEL T ReadStruct(uint64_t address) const {
    return *reinterpret_cast<const T*>(address);
  }
  template <typename T>
  TH_KERNEL void Write(uint64_t address, const T& value) const {
    *reinterpret_cast<T*>(address) = value;
  }

 private:
  TH_KERNEL void Exchange(uint32_t distance, Lanes<Pair>* lanes) const {
    Pair& mine = lanes->value;
    const Pair theirs = {__shfl_xor_sync(~0U, mine.even, distance),
                         __shfl_xor_sync(~0U, mine.odd, distance)};
    mine = {mine.even + theirs.even, mine.odd + theirs.odd};
  }
};

template <>
TH_KERNEL Pair DeviceWarp::Read<Pair>(uint64_t address) const {
  const auto words = *reinterpret_cast<const ulonglong2*>(address);
  return {words.x, words.y};
}

template <>
TH_KERNEL void DeviceWarp::Write<Pair>(uint64_t address, const Pair& value) const {
  *reinterpret_cast<ulonglong2*>(address) = make_ulonglong2(value.even, value.odd);
}

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_DEVICE_WARP_H_
