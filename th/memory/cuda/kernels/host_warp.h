// A warp played by one host thread: a value a lane is an array, and lanes run one after the other
// between the points where they exchange values. Runs the kernels' own source on the host, for
// tests and a fake driver.
#ifndef TH_MEMORY_CUDA_KERNELS_HOST_WARP_H_
#define TH_MEMORY_CUDA_KERNELS_HOST_WARP_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/words.h"

namespace th::kernels {

// Where device addresses lie in the host's memory.
class DeviceMemoryOnHost {
 public:
  virtual ~DeviceMemoryOnHost() = default;
  // Where the `bytes` bytes at `address` can be read and written; ends the process if they are no
  // memory that a kernel may touch, as a GPU ends the context.
  virtual std::byte* Find(uint64_t address, uint64_t bytes) const = 0;
};

// Addresses are the host's own.
class PlainMemory : public DeviceMemoryOnHost {
 public:
  std::byte* Find(uint64_t address, uint64_t) const override {
    return reinterpret_cast<std::byte*>(address);
  }
};

class HostWarp {
 public:
  template <typename T>
  struct Lanes {
    T values[kWarpLanes];
    T& operator[](uint32_t lane) { return values[lane]; }
    const T& operator[](uint32_t lane) const { return values[lane]; }
  };

  // `memory` outlives the warp.
  explicit HostWarp(const DeviceMemoryOnHost& memory) : memory_(memory) {}

  template <typename Body>
  void ForEachLane(const Body& body) const {
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) body(lane);
  }
  template <typename Body>
  void OnFirstLane(const Body& body) const {
    body();
  }

  void SumOverStripes(Lanes<Pair>* lanes) const {
    for (uint32_t distance = 4; distance < kWarpLanes; distance *= 2) Exchange(distance, lanes);
  }
  void SumOverColumns(Lanes<Pair>* lanes) const {
    Exchange(1, lanes);
    Exchange(2, lanes);
  }

  // A GPU faults where an address is not a multiple of the size that is read; so does this.
  template <typename T>
  T Read(uint64_t address) const {
    if (address % sizeof(T) != 0) std::abort();
    return ReadStruct<T>(address);
  }
  template <typename T>
  T ReadStruct(uint64_t address) const {
    if (address % alignof(T) != 0) std::abort();
    T value;
    std::memcpy(&value, memory_.Find(address, sizeof(T)), sizeof(T));
    return value;
  }
  template <typename T>
  void Write(uint64_t address, const T& value) const {
    if (address % sizeof(T) != 0) std::abort();
    std::memcpy(memory_.Find(address, sizeof(T)), &value, sizeof(T));
  }

 private:
  void Exchange(uint32_t distance, Lanes<Pair>* lanes) const {
    const Lanes<Pair> before = *lanes;
    ForEachLane([&](uint32_t lane) {
      const Pair& theirs = before[lane ^ distance];
      (*lanes)[lane].even += theirs.even;
      (*lanes)[lane].odd += theirs.odd;
    });
  }

  const DeviceMemoryOnHost& memory_;
};

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_HOST_WARP_H_
