// Memory of a GPU for shards of tests: of the fake driver, or of the one that TH_TEST_CUDA_DRIVER
// names.
//
//   CudaTestDevice device;
//   TestShard shard({.device = &device});
#ifndef TH_TRANSFER_CUDA_TEST_DEVICE_H_
#define TH_TRANSFER_CUDA_TEST_DEVICE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/stream.h"
#include "th/transfer/test_device.h"

namespace th::testing {

// Thread-safe.
class CudaTestDevice : public TestDevice {
 public:
  explicit CudaTestDevice(int index = 0);

  // The driver that tests run on.
  static std::string DriverPath();

  std::shared_ptr<MemoryDevices> devices() override { return devices_; }
  const std::shared_ptr<CudaMemoryDevices>& cuda() const { return devices_; }
  std::string pci_address() override { return device_->pci_address(); }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void Write(void* to, absl::Span<const char> from) override;
  void Read(const void* from, absl::Span<char> to) override;

 private:
  std::shared_ptr<CudaMemoryDevices> devices_;  // shared with what is registered
  CudaDevice* device_ = nullptr;
  absl::Mutex mu_;
  std::optional<CudaStream> stream_ ABSL_GUARDED_BY(mu_);
  std::map<void*, DeviceBuffer> buffers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace th::testing

#endif  // TH_TRANSFER_CUDA_TEST_DEVICE_H_
