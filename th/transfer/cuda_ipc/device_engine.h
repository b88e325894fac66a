// The means by which one thread copies and sums on one GPU: a stream, kernels, scratch and pinned
// memory of fixed sizes, each made when it is first needed.
//
// Not thread-safe. After an error it is of no use any more.
#ifndef TH_TRANSFER_CUDA_IPC_DEVICE_ENGINE_H_
#define TH_TRANSFER_CUDA_IPC_DEVICE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device.h"
#include "th/memory/cuda/device_checksums.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/stream.h"
#include "th/transfer/same_host/peer_memory.h"

namespace th::cuda_ipc {

// Pieces of another device's memory that are smaller are copied by a kernel where there are
// several; larger ones by the driver, whose copies keep a link busier.
inline constexpr uint64_t kSmallPieceBytes = uint64_t{64} << 10;
inline constexpr ptrdiff_t kMinSmallPieces = 8;
// Limits what a kernel copies at a time: entries of 32 bytes in a list.
inline constexpr uint64_t kListPieces = 32768;
// Pinned memory through which bytes go from and to the host.
inline constexpr uint64_t kBounceBytes = uint64_t{4} << 20;

struct DeviceMove {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;  // more than 0
  // The allocations of both ends: the driver copies within allocations only.
  const void* to_memory = nullptr;
  const void* from_memory = nullptr;
  bool same_device = false;  // both are of the one that copies
};

class DeviceEngine {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceEngine>> Create(CudaDevice* device);
  ~DeviceEngine();

  // Asks for copies between memory that the device reaches: within the device by one kernel for
  // all, as each copy by the driver costs as much as a kernel. `by_kernel`: adds how many pieces it
  // copies. Wait before the next call.
  absl::Status Copy(absl::Span<const DeviceMove> moves, uint64_t* by_kernel);
  // Asks for a copy from another device's memory.
  absl::Status CopyFromPeer(const DeviceMove& move, CudaDevice& peer);
  // Each blocks until the bytes are there. `from` of host memory is an address of `process`, `to`
  // of host memory one of this process.
  absl::Status FromHost(const same_host::PeerMemory& process, absl::Span<const DeviceMove> moves);
  // Writes to memory of the host are made in `write_host`, by what it is given, or not at all.
  using WriteHost = absl::FunctionRef<void(absl::FunctionRef<void()> write)>;
  absl::Status ToHost(absl::Span<const DeviceMove> moves, WriteHost write_host);
  // Until all that was asked for is done.
  absl::Status Wait() const { return stream_.Synchronize(); }

  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DevicePiece>> segments);

 private:
  struct Mover {
    std::unique_ptr<DeviceKernels> kernels;
    DeviceList<kernels::MovedPiece> list;
  };

  DeviceEngine(CudaDevice* device, CudaStream stream)
      : device_(device), stream_(std::move(stream)) {}
  absl::Status CopyEach(absl::Span<const DeviceMove> moves);
  absl::Status CopyByKernel(absl::Span<const DeviceMove> moves);
  absl::StatusOr<Mover> MakeMover() const;
  absl::StatusOr<std::byte*> Bounce();

  CudaDevice* const device_;
  const CudaStream stream_;
  bool mover_tried_ = false;
  std::optional<Mover> mover_;  // none: the device has no room, or not our kernels
  std::optional<PinnedBuffer> bounce_;
  std::unique_ptr<DeviceChecksums> checksums_;
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_DEVICE_ENGINE_H_
