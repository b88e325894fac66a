// Both ends of the source's memory for readers of its host, be it a GPU's or the host's: what
// stream::Medium asks for.
//
// The source offers its table of shared allocations (allocation_table.h), beside what same_host
// offers. The key of a piece in GPU memory is kDeviceKey and the slot of its allocation; other
// pieces have the keys of same_host. The reader has a copier's threads import and copy what lies on
// a GPU, or shall; what lies in the host and stays there is same_host's.
#ifndef TH_TRANSFER_CUDA_IPC_CUDA_MEMORY_H_
#define TH_TRANSFER_CUDA_IPC_CUDA_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/memory_region.h"
#include "th/transfer/cuda_ipc/device_copier.h"
#include "th/transfer/cuda_ipc/exported_memory.h"
#include "th/transfer/cuda_ipc/imported_memory.h"
#include "th/transfer/cuda_ipc/memory_kinds.h"
#include "th/transfer/same_host/host_memory.h"
#include "th/transfer/same_host/mapped_memory.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/transport.h"

namespace th::cuda_ipc {

// The devices and the memory that all connections of a transport share. Thread-safe.
class SharedDevices {
 public:
  struct Options {
    uint32_t copy_threads = 2;
    ExportedMemory::Options exports;
    ImportCache::Options imports;
    std::shared_ptr<CopyCounters> counters;  // null: nobody asks
  };
  // RESOURCE_EXHAUSTED: no descriptor or memory for the table.
  static absl::StatusOr<std::shared_ptr<SharedDevices>> Of(
      std::shared_ptr<const CudaDevices> devices, Options options);

  // The handle may outlive everything but the driver.
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(absl::Span<const MemoryRegion> regions);

  const std::shared_ptr<MemoryKinds>& kinds() const { return kinds_; }
  const std::shared_ptr<ExportedMemory>& exported() const { return exported_; }
  ImportCache& imports() { return *imports_; }
  DeviceCopier& copier() { return *copier_; }
  const std::shared_ptr<same_host::UnreadableMemory>& unreadable() const { return unreadable_; }
  const std::shared_ptr<same_host::MappedMemory>& mapped() const { return mapped_; }
  uint32_t NextLane() { return next_lane_.fetch_add(1); }

 private:
  SharedDevices() = default;

  // Shared with the handles of Attach and with connections, which may end after the transport.
  std::shared_ptr<const CudaDevices> devices_;
  std::shared_ptr<MemoryKinds> kinds_;
  std::shared_ptr<ExportedMemory> exported_;
  std::shared_ptr<same_host::UnreadableMemory> unreadable_ =
      std::make_shared<same_host::UnreadableMemory>();
  std::shared_ptr<same_host::MappedMemory> mapped_ = std::make_shared<same_host::MappedMemory>();
  std::unique_ptr<ImportCache> imports_;
  std::unique_ptr<DeviceCopier> copier_;
  std::atomic<uint32_t> next_lane_{0};
};

// `fd`: the accepted Unix socket.
std::unique_ptr<stream::ServedMemory> ServeCudaMemory(int fd,
                                                      std::shared_ptr<SharedDevices> shared);
std::unique_ptr<stream::RemoteMemory> ReadCudaMemory(const stream::Medium::ReadSetup& setup,
                                                     std::shared_ptr<SharedDevices> shared);

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_CUDA_MEMORY_H_
