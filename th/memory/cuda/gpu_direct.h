// GPUDirect RDMA: network adapters (NICs) read and write GPU memory without the host. They need a
// DMA-BUF of it, and a flush before kernels see what they have written.
//
//   TH_ASSIGN_OR_RETURN(const DmaBuf exported, DmaBuf::Export(device, address, bytes));
//   region = verbs.reg_dmabuf_mr(domain, exported.offset(), bytes, address,
//                                exported.file_descriptor(), access);
//   ... an RDMA READ has written there, and its completion was seen ...
//   TH_RETURN_IF_ERROR(FlushRemoteWrites(device));
//   ... kernels and copies may read it ...
//
// A completion says that the adapter has sent the bytes towards the GPU. They take another way
// through the PCIe fabric than the completion, which goes to the host, so it may be seen first.
//
// Thread-safe.
#ifndef TH_MEMORY_CUDA_GPU_DIRECT_H_
#define TH_MEMORY_CUDA_GPU_DIRECT_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/memory/cuda/device.h"

namespace th {

// A descriptor of a range of device memory that drivers of other devices take. The range's memory
// stays while this, or what was registered with it, lives: whoever frees the allocation has to end
// both first, or the device does not get it back.
class DmaBuf {
 public:
  // The range is one or more whole allocations, side by side (RegistrationCache::RegisterApart).
  // UNIMPLEMENTED: the driver or the device has no such thing. Errors of CudaStatus.
  static absl::StatusOr<DmaBuf> Export(CudaDevice& device, uint64_t address, uint64_t bytes);
  ~DmaBuf();
  DmaBuf(DmaBuf&& other) noexcept
      : file_descriptor_(std::exchange(other.file_descriptor_, -1)), offset_(other.offset_) {}
  DmaBuf& operator=(DmaBuf&&) = delete;

  int file_descriptor() const { return file_descriptor_; }
  // The offset of the range in the buffer, which begins where a page of the host would.
  uint64_t offset() const { return offset_; }

 private:
  DmaBuf(int file_descriptor, uint64_t offset)
      : file_descriptor_(file_descriptor), offset_(offset) {}
  int file_descriptor_;
  uint64_t offset_;
};

// OK where what adapters write to the device can be made visible to kernels of all devices.
// UNIMPLEMENTED: the device neither orders such writes nor lets the host flush them.
absl::Status CanFlushRemoteWrites(const CudaDevice& device);

// Blocks until kernels of all devices see what adapters had written to this one before. Does
// nothing where the device orders such writes by itself. Errors of CudaStatus.
absl::Status FlushRemoteWrites(CudaDevice& device);

}  // namespace th

#endif  // TH_MEMORY_CUDA_GPU_DIRECT_H_
