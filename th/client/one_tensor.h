// A buffer of one tensor, of the host or of a GPU that is none, for tests of what is done with a
// buffer.
#ifndef TH_CLIENT_ONE_TENSOR_H_
#define TH_CLIENT_ONE_TENSOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/client/tensor.h"
#include "th/client/tensor_binding.h"
#include "th/memory/device_side.h"
#include "th/status/status_macros.h"

namespace th::testing {

// Binds all of `memory`, which outlives the binding, as the tensor "w".
inline absl::StatusOr<TensorBinding> BindOneTensor(std::vector<uint8_t>& memory) {
  Tensor tensor;
  tensor.name = "w";
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(memory.size())};
  tensor.data = memory.data();
  return BindTensors({tensor}, {});
}

// The same as memory of `gpu`, which is reached through `side`.
inline absl::StatusOr<TensorBinding> BindOneTensorOfGpu(std::vector<uint8_t>& memory,
                                                        const std::string& gpu,
                                                        std::shared_ptr<DeviceSide> side) {
  TH_ASSIGN_OR_RETURN(TensorBinding binding, BindOneTensor(memory));
  binding.regions = {{.address = memory.data(),
                      .bytes = memory.size(),
                      .kind = MemoryKind::kDevice,
                      .device = gpu}};
  binding.device = std::move(side);
  return binding;
}

// Does nothing, at once. Tests override what is to stand still or to fail.
class IdleSide : public DeviceSide {
 public:
  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DeviceRun>> segments) override {
    return std::vector<SegmentChecksum>(segments.size());
  }
  absl::Status CopyToHost(absl::Span<const DeviceCopy>) override { return absl::OkStatus(); }
  absl::Status CopyToDevice(absl::Span<const DeviceCopy>) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(uint64_t) override {
    return absl::ResourceExhaustedError("none");
  }
  absl::Status Revoke(absl::Duration) override {
    revoked = true;
    return absl::OkStatus();
  }
  void Restore() override { revoked = false; }

  bool revoked = false;
};

}  // namespace th::testing

#endif  // TH_CLIENT_ONE_TENSOR_H_
