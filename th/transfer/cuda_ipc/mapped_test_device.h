// A GPU whose memory tests take out of an arena of mappings, as torch's expandable segments do:
// tensors lie beside each other, and some over two mappings.
//
//   MappedTestDevice device;
//   TestShard shard({.device = &device});
//   ... shard = nullptr; device.Remap();  // an engine that slept: the same addresses, other memory
#ifndef TH_TRANSFER_CUDA_IPC_MAPPED_TEST_DEVICE_H_
#define TH_TRANSFER_CUDA_IPC_MAPPED_TEST_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/transfer/cuda_test_device.h"

namespace th::testing {

class MappedTestDevice : public CudaTestDevice {
 public:
  static constexpr uint32_t kMappings = 16;  // of 2 MiB

  explicit MappedTestDevice(bool exportable = true)
      : arena_(cuda()->devices().all()[0].get(), kMappings, exportable) {}

  void* Allocate(size_t bytes) override {
    EXPECT_LE(used_ + bytes, arena_.bytes()) << "the arena is full";
    // The first one so that it begins shortly before the end of a mapping.
    if (used_ == 0) used_ = arena_.mapping_bytes() - 1000;
    void* const memory = reinterpret_cast<void*>(arena_.address() + used_);
    used_ += (bytes + 3) / 4 * 4;
    Write(memory, std::string(bytes, 0));
    return memory;
  }
  void Free(void*) override {}  // Remap frees all

  // Other memory at the same addresses; the next allocations are where the first ones were.
  void Remap() {
    arena_.Unmap();
    arena_.Map();
    used_ = 0;
  }
  // The two halves of it, for tests of an engine that sleeps; what was allocated stays where it
  // was.
  void Unmap() { arena_.Unmap(); }
  void Map() { arena_.Map(); }

 private:
  MappedMemory arena_;
  size_t used_ = 0;
};

}  // namespace th::testing

#endif  // TH_TRANSFER_CUDA_IPC_MAPPED_TEST_DEVICE_H_
