// Which memory of this process is a GPU's, and as what it was registered: what was attached is
// known, anything else is asked of the driver. Thread-safe.
#ifndef TH_TRANSFER_CUDA_IPC_MEMORY_KINDS_H_
#define TH_TRANSFER_CUDA_IPC_MEMORY_KINDS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/registration_cache.h"
#include "th/memory/memory_region.h"
#include "th/transfer/transport.h"

namespace th::cuda_ipc {

class MemoryKinds : public std::enable_shared_from_this<MemoryKinds> {
 public:
  explicit MemoryKinds(std::shared_ptr<const CudaDevices> devices)
      : devices_(std::move(devices)),
        registrations_(
            std::make_shared<RegistrationCache>(*devices_, RegistrationCache::Options())) {}

  // Only of one that a shared_ptr owns.
  std::unique_ptr<AttachedMemory> Attach(absl::Span<const MemoryRegion> regions);
  // False for a piece without bytes.
  bool IsDevice(const iovec& piece) const;
  // The registration of a piece of device memory: the one that it was attached with, which refuses
  // to be used once the memory was freed, whatever lies at the address now; of memory that was not
  // attached, that of what lies there now. Null: host memory. Errors of RegistrationCache::Find.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> RegistrationOf(const iovec& piece) const;
  // By allocation. Shared with handles that outlast the transport.
  const std::shared_ptr<RegistrationCache>& registrations() const { return registrations_; }
  // Regions of GPUs that are attached.
  size_t device_regions() const;

 private:
  class Handle;
  using Range = std::pair<uint64_t, uint64_t>;  // from its begin to its end
  struct Known {
    bool device = false;
    uint32_t attachments = 0;
    // As of the newest attachment. Null: the host's, or it could not be registered.
    std::shared_ptr<DeviceMemory> registration;
  };
  std::optional<Known> Find(const iovec& piece) const;
  bool LiesOnDevice(const iovec& piece) const;  // as the driver says

  const std::shared_ptr<const CudaDevices> devices_;
  const std::shared_ptr<RegistrationCache> registrations_;
  mutable absl::Mutex mu_;
  std::map<Range, Known> known_ ABSL_GUARDED_BY(mu_);
  size_t device_regions_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_MEMORY_KINDS_H_
