// Lists of ranges of registered device memory, and what the kernels do with them.
#ifndef TH_MEMORY_CUDA_DEVICE_PIECES_H_
#define TH_MEMORY_CUDA_DEVICE_PIECES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/stream.h"

namespace th {

// Bytes [offset, offset + bytes) of registered memory, which outlives the calls that it is passed
// to.
struct DevicePiece {
  DeviceMemory* memory = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t address() const { return memory->address() + offset; }
};

// The use of all memory that some pieces lie in.
class PiecesUse {
 public:
  // INVALID_ARGUMENT: a piece beyond its memory's end, or of another device; FAILED_PRECONDITION as
  // of BeginUse.
  static absl::StatusOr<PiecesUse> Begin(const CudaDevice& device,
                                         absl::Span<const DevicePiece> pieces);
  // DeviceMemory::Verify of all.
  absl::Status Verify() const;

 private:
  // The range that the pieces of one memory span.
  struct Span {
    DeviceMemory* memory;
    uint64_t begin;
    uint64_t end;
  };
  std::vector<Span> spans_;
  std::vector<DeviceMemory::Use> uses_;
};

// Our kernels, on one device.
class DeviceKernels {
 public:
  // UNAVAILABLE or INTERNAL: the device is older than any that the kernels are compiled for
  // (compute capability 8.0).
  static absl::StatusOr<std::unique_ptr<DeviceKernels>> Load(CudaDevice* device);
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // Each asks `stream` for the work. The lists lie in device memory.
  absl::Status ChecksumLeaves(const CudaStream& stream,
                              kernels::LeafChecksumsArguments arguments) const;
  absl::Status Gather(const CudaStream& stream, kernels::CopyPiecesArguments arguments) const;
  absl::Status Scatter(const CudaStream& stream, kernels::CopyPiecesArguments arguments) const;
  absl::Status Move(const CudaStream& stream, kernels::MovePiecesArguments arguments) const;

 private:
  DeviceKernels(CudaDevice* device, CUmodule module) : device_(device), module_(module) {}
  absl::Status Find(const char* name, CUfunction* function) const;
  absl::Status Launch(const CudaStream& stream, CUfunction kernel, uint64_t warps,
                      void* arguments) const;

  CudaDevice* const device_;
  CUmodule const module_;
  CUfunction leaf_checksums_ = nullptr;
  CUfunction gather_ = nullptr;
  CUfunction scatter_ = nullptr;
  CUfunction move_ = nullptr;
};

// A list that the host writes and kernels read: pinned memory and device memory of one size.
template <typename Item>
class DeviceList {
 public:
  static absl::StatusOr<DeviceList> Create(CudaDevice* device, uint64_t max_items) {
    absl::StatusOr<PinnedBuffer> host = PinnedBuffer::Allocate(device, max_items * sizeof(Item));
    if (!host.ok()) return host.status();
    absl::StatusOr<DeviceBuffer> on_device =
        DeviceBuffer::Allocate(device, max_items * sizeof(Item));
    if (!on_device.ok()) return on_device.status();
    return DeviceList(*std::move(host), *std::move(on_device));
  }
  absl::Span<Item> items() const {
    return absl::MakeSpan(reinterpret_cast<Item*>(host_.data()), host_.bytes() / sizeof(Item));
  }
  uint64_t address() const { return device_.address(); }
  // Each asks the stream for a copy of the first `count` items.
  absl::Status ToDevice(const CudaStream& stream, uint64_t count) const {
    return stream.CopyToDevice(device_.address(), host_.data(), count * sizeof(Item));
  }
  absl::Status ToHost(const CudaStream& stream, uint64_t count) const {
    return stream.CopyToHost(host_.data(), device_.address(), count * sizeof(Item));
  }

 private:
  DeviceList(PinnedBuffer host, DeviceBuffer device)
      : host_(std::move(host)), device_(std::move(device)) {}
  PinnedBuffer host_;
  DeviceBuffer device_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_DEVICE_PIECES_H_
