// The memory of a device, as tests use it.
#ifndef TH_TRANSFER_TEST_DEVICE_H_
#define TH_TRANSFER_TEST_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "th/memory/device_side.h"

namespace th::testing {

// A device that shards of tests may lie on (CudaTestDevice in cuda_test_device.h).
class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual std::shared_ptr<MemoryDevices> devices() = 0;
  virtual std::string pci_address() = 0;
  virtual void* Allocate(size_t bytes) = 0;  // zeroed
  virtual void Free(void* memory) = 0;
  virtual void Write(void* to, absl::Span<const char> from) = 0;
  virtual void Read(const void* from, absl::Span<char> to) = 0;
};

}  // namespace th::testing

#endif  // TH_TRANSFER_TEST_DEVICE_H_
