#include "th/memory/cuda/piece_copier.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<std::unique_ptr<PieceCopier>> PieceCopier::Create(CudaDevice* device,
                                                                 Options options) {
  if (options.pieces == 0) return absl::InvalidArgumentError("a launch copies at least one piece");
  TH_ASSIGN_OR_RETURN(auto kernels, DeviceKernels::Load(device));
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  TH_ASSIGN_OR_RETURN(auto list, DeviceList<kernels::CopyPiece>::Create(device, options.pieces));
  return std::unique_ptr<PieceCopier>(
      new PieceCopier(device, std::move(kernels), std::move(stream), std::move(list)));
}

PieceCopier::~PieceCopier() { static_cast<void>(stream_.Synchronize().ok()); }

absl::Status PieceCopier::Gather(absl::Span<const DevicePiece> pieces, DevicePiece packed) {
  return Copy(pieces, packed, &DeviceKernels::Gather);
}

absl::Status PieceCopier::Scatter(DevicePiece packed, absl::Span<const DevicePiece> pieces) {
  return Copy(pieces, packed, &DeviceKernels::Scatter);
}

absl::Status PieceCopier::Copy(absl::Span<const DevicePiece> pieces, DevicePiece packed,
                               Kernel kernel) {
  std::vector<DevicePiece> all(pieces.begin(), pieces.end());
  all.push_back(packed);
  TH_ASSIGN_OR_RETURN(const PiecesUse use, PiecesUse::Begin(device_, all));
  uint64_t bytes = 0;
  for (const DevicePiece& piece : pieces) bytes += piece.bytes;
  if (bytes != packed.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces of ", bytes, " bytes together, and a packed range of ", packed.bytes));
  }
  const absl::Status copied = CopyAll(pieces, packed.address(), kernel);
  const absl::Status ended = stream_.Synchronize();
  // Memory that was freed meanwhile explains every other failure.
  TH_RETURN_IF_ERROR(use.Verify());
  TH_RETURN_IF_ERROR(copied);
  return ended;
}

absl::Status PieceCopier::CopyAll(absl::Span<const DevicePiece> pieces, uint64_t packed,
                                  Kernel kernel) {
  while (!pieces.empty()) {
    uint64_t count = 0;
    uint64_t bytes = 0;
    for (; !pieces.empty() && count < list_.items().size(); pieces.remove_prefix(1)) {
      if (pieces[0].bytes == 0) continue;
      list_.items()[count++] = {pieces[0].address(), pieces[0].bytes, bytes};
      bytes += pieces[0].bytes;
    }
    if (count == 0) return absl::OkStatus();
    TH_RETURN_IF_ERROR(list_.ToDevice(stream_, count));
    TH_RETURN_IF_ERROR((*kernels_.*kernel)(stream_, {list_.address(), count, packed, bytes}));
    packed += bytes;
    // The list is written anew only when the device has read it.
    if (!pieces.empty()) TH_RETURN_IF_ERROR(stream_.Synchronize());
  }
  return absl::OkStatus();
}

}  // namespace th
