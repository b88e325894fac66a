// The kernels as the driver finds them, by name. Grids of any size do: warps take turns.
#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/copy_pieces.h"
#include "th/memory/cuda/kernels/device_warp.h"
#include "th/memory/cuda/kernels/leaf_checksum.h"

namespace th::kernels {
namespace {

__device__ uint64_t WarpIndex() {
  return uint64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpLanes;
}

__device__ uint64_t WarpCount() { return uint64_t{gridDim.x} * kWarpsPerBlock; }

}  // namespace
}  // namespace th::kernels

extern "C" {

__global__ void __launch_bounds__(th::kernels::kBlockThreads)
    th_leaf_checksums(th::kernels::LeafChecksumsArguments arguments) {
  using namespace th::kernels;
  ChecksumLeaves(DeviceWarp(), arguments, WarpIndex(), WarpCount());
}

__global__ void __launch_bounds__(th::kernels::kBlockThreads)
    th_gather(th::kernels::CopyPiecesArguments arguments) {
  using namespace th::kernels;
  CopyPieces<CopyDirection::kGather>(DeviceWarp(), arguments, WarpIndex(), WarpCount());
}

__global__ void __launch_bounds__(th::kernels::kBlockThreads)
    th_scatter(th::kernels::CopyPiecesArguments arguments) {
  using namespace th::kernels;
  CopyPieces<CopyDirection::kScatter>(DeviceWarp(), arguments, WarpIndex(), WarpCount());
}

__global__ void __launch_bounds__(th::kernels::kBlockThreads)
    th_move(th::kernels::MovePiecesArguments arguments) {
  using namespace th::kernels;
  MovePieces(DeviceWarp(), arguments, WarpIndex(), WarpCount());
}

}  // extern "C"
