// The fixture of this package's tests: a driver, its devices, and memory as trainers and engines
// have it.
#ifndef TH_MEMORY_CUDA_CUDA_TEST_FIXTURE_H_
#define TH_MEMORY_CUDA_CUDA_TEST_FIXTURE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/stream.h"

namespace th {

// The library that the tests run on: the fake, or what TH_TEST_CUDA_DRIVER names.
std::string TestDriverPath();
// True when that driver is the fake.
bool IsFakeDriver();

// Bytes that follow from the seed.
std::vector<std::byte> PatternBytes(uint64_t bytes, uint64_t seed);

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // Device memory with these bytes.
  DeviceBuffer Filled(absl::Span<const std::byte> bytes);
  void WriteDevice(uint64_t address, absl::Span<const std::byte> bytes);
  std::vector<std::byte> ReadDevice(uint64_t address, uint64_t bytes);
  std::unique_ptr<DeviceMemory> Register(const void* pointer, uint64_t bytes);
  std::unique_ptr<DeviceMemory> Register(const DeviceBuffer& buffer) {
    return Register(buffer.pointer(), buffer.bytes());
  }

  const CudaDriver* driver_ = nullptr;
  std::unique_ptr<CudaDevices> devices_;
  CudaDevice* device_ = nullptr;  // the first
};

// Adjacent mappings at one address, as torch's expandable segments and engines that sleep have
// them.
class MappedMemory {
 public:
  // `exportable`: other processes can import it.
  MappedMemory(CudaDevice* device, uint32_t mappings, bool exportable = false);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* pointer() const { return reinterpret_cast<void*>(address_); }
  uint64_t address() const { return address_; }
  uint64_t mapping_bytes() const { return mapping_bytes_; }
  uint64_t bytes() const { return mapping_bytes_ * mappings_; }
  void Unmap();  // the engine sleeps
  void UnmapOne(uint32_t mapping);
  void Map();  // it wakes: other memory at the same address

 private:
  struct Functions;
  CudaDevice* const device_;
  const uint32_t mappings_;
  const bool exportable_;
  const std::unique_ptr<Functions> functions_;
  uint64_t mapping_bytes_ = 0;
  uint64_t address_ = 0;
  std::vector<bool> mapped_;  // by mapping
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_CUDA_TEST_FIXTURE_H_
