// The weights of a rank in GPU memory, beside the host memory that has their truth (RankWeights).
//
//   TH_ASSIGN_OR_RETURN(auto device, DeviceWeights::Allocate(weights.tensors(), /*gpu=*/0));
//   weights.ChangeTo(2);
//   TH_RETURN_IF_ERROR(device->Upload());      // the GPU has content 2
//   client->Register(device->tensors());       // updates write there
//   TH_RETURN_IF_ERROR(device->Download());    // the host has what was received
//
// One allocation of the GPU, each tensor at a multiple of 512 bytes in it, as torch's allocator
// places them. Not thread-safe.
#ifndef TH_CONTROLLED_RANK_DEVICE_WEIGHTS_H_
#define TH_CONTROLLED_RANK_DEVICE_WEIGHTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/client/client.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/memory/cuda/stream.h"

namespace th {

// The GPUs of this process; the CUDA driver is loaded and started for it. UNAVAILABLE: there is no
// driver, it does not start, or it shows no GPU.
absl::StatusOr<std::shared_ptr<CudaMemoryDevices>> LoadGpus();

class DeviceWeights {
 public:
  // `host` is what Upload and Download copy from and to; its memory outlives this. UNAVAILABLE as
  // of LoadGpus; NOT_FOUND: no GPU of that index; RESOURCE_EXHAUSTED: it has no room.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Allocate(const std::vector<Tensor>& host,
                                                                 int gpu);

  // As `host`, with their data on the GPU, which the host must not dereference.
  const std::vector<Tensor>& tensors() const { return tensors_; }

  absl::Status Upload();
  absl::Status Download();

  struct CopyTime {
    absl::Time begin, end;
  };
  // Copies as many bytes as the weights have over them, by the driver, out of other memory of the
  // GPU `from`; what these were is lost. Errors as of Allocate.
  absl::StatusOr<CopyTime> CopyFromGpu(int from);

 private:
  DeviceWeights(std::shared_ptr<CudaMemoryDevices> gpus, DeviceBuffer buffer, CudaStream stream)
      : gpus_(std::move(gpus)), buffer_(std::move(buffer)), stream_(std::move(stream)) {}

  const std::shared_ptr<CudaMemoryDevices> gpus_;  // shared with the process's transports
  const DeviceBuffer buffer_;
  const CudaStream stream_;
  std::vector<Tensor> host_;
  std::vector<Tensor> tensors_;
};

}  // namespace th

#endif  // TH_CONTROLLED_RANK_DEVICE_WEIGHTS_H_
