#include "th/memory/cuda/device_pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/memory/cuda/kernels/kernels_fatbin.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// Enough for all warps that a multiprocessor holds at once.
constexpr uint32_t kBlocksPerMultiprocessor = 8;

uint64_t Chunks(uint64_t bytes) {
  return (bytes + kernels::kCopyChunkBytes - 1) / kernels::kCopyChunkBytes;
}

}  // namespace

absl::StatusOr<PiecesUse> PiecesUse::Begin(const CudaDevice& device,
                                           absl::Span<const DevicePiece> pieces) {
  PiecesUse use;
  for (const DevicePiece& piece : pieces) {
    const DeviceMemory& memory = *piece.memory;
    if (&memory.device() != &device) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece of GPU ", memory.device().pci_address(), " where those of GPU ",
                       device.pci_address(), " are worked on"));
    }
    TH_RETURN_IF_ERROR(memory.CheckRange(piece.offset, piece.bytes));
    const uint64_t end = piece.offset + piece.bytes;
    // Pieces of one memory commonly follow each other.
    if (!use.spans_.empty() && use.spans_.back().memory == piece.memory) {
      Span& span = use.spans_.back();
      span = {span.memory, std::min(span.begin, piece.offset), std::max(span.end, end)};
    } else {
      use.spans_.push_back({piece.memory, piece.offset, end});
    }
  }
  for (const Span& span : use.spans_) {
    TH_ASSIGN_OR_RETURN(DeviceMemory::Use begun,
                        span.memory->BeginUse(span.begin, span.end - span.begin));
    use.uses_.push_back(std::move(begun));
  }
  return use;
}

absl::Status PiecesUse::Verify() const {
  for (const Span& span : spans_) {
    TH_RETURN_IF_ERROR(span.memory->Verify(span.begin, span.end - span.begin));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceKernels>> DeviceKernels::Load(CudaDevice* device) {
  TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
  CUmodule module = nullptr;
  TH_RETURN_IF_ERROR(
      device->Status(device->driver().ModuleLoadData(&module, KernelsFatbin().data()),
                     "load TensorHub's kernels"));
  std::unique_ptr<DeviceKernels> loaded(new DeviceKernels(device, module));
  TH_RETURN_IF_ERROR(loaded->Find("th_leaf_checksums", &loaded->leaf_checksums_));
  TH_RETURN_IF_ERROR(loaded->Find("th_gather", &loaded->gather_));
  TH_RETURN_IF_ERROR(loaded->Find("th_scatter", &loaded->scatter_));
  TH_RETURN_IF_ERROR(loaded->Find("th_move", &loaded->move_));
  return loaded;
}

DeviceKernels::~DeviceKernels() {
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  if (scope.ok()) device_->driver().ModuleUnload(module_);
}

absl::Status DeviceKernels::Find(const char* name, CUfunction* function) const {
  return device_->Status(device_->driver().ModuleGetFunction(function, module_, name),
                         absl::StrCat("find the kernel ", name));
}

absl::Status DeviceKernels::Launch(const CudaStream& stream, CUfunction kernel, uint64_t warps,
                                   void* arguments) const {
  if (warps == 0) return absl::OkStatus();
  const uint64_t useful = (warps + kernels::kWarpsPerBlock - 1) / kernels::kWarpsPerBlock;
  const uint64_t most = uint64_t{kBlocksPerMultiprocessor} * device_->multiprocessors();
  return stream.Launch(kernel, static_cast<uint32_t>(std::min(useful, most)),
                       kernels::kBlockThreads, arguments);
}

absl::Status DeviceKernels::ChecksumLeaves(const CudaStream& stream,
                                           kernels::LeafChecksumsArguments arguments) const {
  return Launch(stream, leaf_checksums_, arguments.leaf_count, &arguments);
}

absl::Status DeviceKernels::Gather(const CudaStream& stream,
                                   kernels::CopyPiecesArguments arguments) const {
  return Launch(stream, gather_, Chunks(arguments.packed_bytes), &arguments);
}

absl::Status DeviceKernels::Scatter(const CudaStream& stream,
                                    kernels::CopyPiecesArguments arguments) const {
  return Launch(stream, scatter_, Chunks(arguments.packed_bytes), &arguments);
}

absl::Status DeviceKernels::Move(const CudaStream& stream,
                                 kernels::MovePiecesArguments arguments) const {
  return Launch(stream, move_, Chunks(arguments.bytes), &arguments);
}

}  // namespace th
