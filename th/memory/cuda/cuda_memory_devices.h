// MemoryDevices over CUDA: the GPUs of this process for stores and transfers.
//
//   TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load());
//   TH_ASSIGN_OR_RETURN(std::shared_ptr<MemoryDevices> devices, CudaMemoryDevices::Open(driver));
//
// A GPU is not touched before something is copied or summed there: then streams, kernels and
// scratch memory are made once for all registrations, and calls for one GPU and direction follow
// each other. A copy of many small pieces is gathered or scattered on the device, so that it
// crosses to the host as one.
//
// Thread-safe.
#ifndef TH_MEMORY_CUDA_CUDA_MEMORY_DEVICES_H_
#define TH_MEMORY_CUDA_CUDA_MEMORY_DEVICES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/driver.h"
#include "th/memory/cuda/registration_cache.h"
#include "th/memory/device_side.h"

namespace th {

class CudaMemoryDevices final : public MemoryDevices,
                                public std::enable_shared_from_this<CudaMemoryDevices> {
 public:
  // Errors of CudaDevices::Open. `driver` outlives it, as every driver does.
  static absl::StatusOr<std::shared_ptr<CudaMemoryDevices>> Open(const CudaDriver* driver);
  ~CudaMemoryDevices() override;

  absl::StatusOr<MemoryRegion> Classify(void* pointer, uint64_t bytes) const override;
  absl::StatusOr<std::unique_ptr<DeviceSide>> Register(
      absl::Span<const MemoryRegion> regions) override;
  absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t bytes) override;
  absl::Status AwaitEvent(absl::string_view device, uintptr_t event,
                          absl::Duration timeout) override;

  // The sums of segments whose pieces all lie on `device`, one of devices(); those of its engine.
  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      const CudaDevice& device, absl::Span<const std::vector<DevicePiece>> segments);

  const CudaDevices& devices() const { return *devices_; }
  RegistrationCache& registrations() { return registrations_; }

 private:
  class Engine;
  class Side;
  class Pinned;

  explicit CudaMemoryDevices(std::unique_ptr<CudaDevices> devices);

  const std::unique_ptr<CudaDevices> devices_;
  RegistrationCache registrations_;
  const std::vector<std::unique_ptr<Engine>> engines_;  // by index of the device
};

// The GPUs whose memory this process may have: null while nobody in it has loaded a CUDA driver, or
// where that finds no GPU. So a process that does not use GPUs never starts a driver. Kept for the
// rest of the process once found.
std::shared_ptr<CudaMemoryDevices> ProcessMemoryDevices();
// The driver that ProcessMemoryDevices looks for, if it is not libcuda.so.1: for tests on the fake.
void SetProcessCudaLibrary(absl::string_view path);

}  // namespace th

#endif  // TH_MEMORY_CUDA_CUDA_MEMORY_DEVICES_H_
