// Gather and scatter on the device: thousands of small tensors to and from one packed range, in one
// launch for many.
//
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<PieceCopier> copier, PieceCopier::Create(device, {}));
//   TH_RETURN_IF_ERROR(copier->Gather(tensors, {packed.get(), 0, total_bytes}));
//
// Not thread-safe.
#ifndef TH_MEMORY_CUDA_PIECE_COPIER_H_
#define TH_MEMORY_CUDA_PIECE_COPIER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/stream.h"

namespace th {

class PieceCopier {
 public:
  struct Options {
    uint64_t pieces = 65536;  // of one launch; 24 bytes each of device and pinned memory
  };

  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED; errors of DeviceKernels::Load. `device` outlives it.
  static absl::StatusOr<std::unique_ptr<PieceCopier>> Create(CudaDevice* device, Options options);
  ~PieceCopier();

  // Copies all pieces, in order, into `packed`, or out of it, and returns once that is done.
  // INVALID_ARGUMENT: they are not of the same size together; errors of PiecesUse and CudaStatus.
  // On an error some may have been written.
  absl::Status Gather(absl::Span<const DevicePiece> pieces, DevicePiece packed);
  absl::Status Scatter(DevicePiece packed, absl::Span<const DevicePiece> pieces);

 private:
  using Kernel = absl::Status (DeviceKernels::*)(const CudaStream&,
                                                 kernels::CopyPiecesArguments) const;

  PieceCopier(CudaDevice* device, std::unique_ptr<DeviceKernels> kernels, CudaStream stream,
              DeviceList<kernels::CopyPiece> list)
      : device_(*device),
        kernels_(std::move(kernels)),
        stream_(std::move(stream)),
        list_(std::move(list)) {}
  absl::Status Copy(absl::Span<const DevicePiece> pieces, DevicePiece packed, Kernel kernel);
  absl::Status CopyAll(absl::Span<const DevicePiece> pieces, uint64_t packed, Kernel kernel);

  const CudaDevice& device_;
  const std::unique_ptr<DeviceKernels> kernels_;
  const CudaStream stream_;
  const DeviceList<kernels::CopyPiece> list_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_PIECE_COPIER_H_
