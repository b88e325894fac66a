// The sums of segments that lie in device memory, taken there: only 16 bytes for each leaf cross to
// the host. The same values as th/weights/checksum.h has.
//
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceChecksums> sums, DeviceChecksums::Create(device,
//   {}));
//   // A segment is a list of pieces, as its tensors may lie anywhere:
//   TH_ASSIGN_OR_RETURN(std::vector<SegmentChecksum> of_segments, sums->Checksum({{{weights.get(),
//   0, 262144}}}));
//
// A leaf that lies in one piece is summed where it is; one that is made of several is gathered into
// scratch memory first. Not thread-safe.
#ifndef TH_MEMORY_CUDA_DEVICE_CHECKSUMS_H_
#define TH_MEMORY_CUDA_DEVICE_CHECKSUMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/memory/cuda/stream.h"
#include "th/weights/checksum.h"

namespace th {

class DeviceChecksums {
 public:
  // Limits on the work at one time; device and pinned memory follow from them (32 MiB of scratch
  // and 7 MiB of lists by default).
  struct Options {
    uint64_t leaves = 65536;  // 512 MiB
    uint64_t gathered_leaves = 4096;
    // At least kLeafBytes, the most pieces of one leaf.
    uint64_t gathered_pieces = 65536;
  };

  // INVALID_ARGUMENT: options; RESOURCE_EXHAUSTED: no memory; errors of DeviceKernels::Load.
  // `device` outlives it.
  static absl::StatusOr<std::unique_ptr<DeviceChecksums>> Create(CudaDevice* device,
                                                                 Options options);
  ~DeviceChecksums();

  // A sum for each segment, which is what its pieces are in order. Errors of PiecesUse and
  // CudaStatus.
  absl::StatusOr<std::vector<SegmentChecksum>> Checksum(
      absl::Span<const std::vector<DevicePiece>> segments);

 private:
  class Work;
  struct Resources;
  explicit DeviceChecksums(std::unique_ptr<Resources> resources);

  const std::unique_ptr<Resources> resources_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_DEVICE_CHECKSUMS_H_
