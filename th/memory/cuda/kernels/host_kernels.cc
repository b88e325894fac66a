#include "th/memory/cuda/kernels/host_kernels.h"

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/copy_pieces.h"
#include "th/memory/cuda/kernels/leaf_checksum.h"

namespace th::kernels {
namespace {

template <typename Arguments, void (*kernel)(const HostWarp&, const Arguments&, uint64_t, uint64_t)>
void RunOnHost(const void* arguments, uint32_t blocks, const DeviceMemoryOnHost& memory) {
  const HostWarp warp(memory);
  const uint64_t count = uint64_t{blocks} * kWarpsPerBlock;
  for (uint64_t index = 0; index < count; ++index) {
    kernel(warp, *static_cast<const Arguments*>(arguments), index, count);
  }
}

}  // namespace

HostKernel FindHostKernel(std::string_view name) {
  if (name == "th_leaf_checksums")
    return RunOnHost<LeafChecksumsArguments, ChecksumLeaves<HostWarp>>;
  if (name == "th_gather") {
    return RunOnHost<CopyPiecesArguments, CopyPieces<CopyDirection::kGather, HostWarp>>;
  }
  if (name == "th_scatter") {
    return RunOnHost<CopyPiecesArguments, CopyPieces<CopyDirection::kScatter, HostWarp>>;
  }
  if (name == "th_move") return RunOnHost<MovePiecesArguments, MovePieces<HostWarp>>;
  return nullptr;
}

}  // namespace th::kernels
