#include "th/transfer/cuda_ipc/device_engine.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "th/status/status_macros.h"

namespace th::cuda_ipc {
namespace {

constexpr DeviceChecksums::Options kChecksums{
    .leaves = 32768, .gathered_leaves = 2048, .gathered_pieces = 65536};

// Moves that go on from each other on both sides, within the same memory, are one.
std::vector<DeviceMove> Merged(absl::Span<const DeviceMove> moves) {
  std::vector<DeviceMove> merged;
  merged.reserve(moves.size());
  for (const DeviceMove& move : moves) {
    DeviceMove* const last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->from_memory == move.from_memory &&
        last->to_memory == move.to_memory && last->same_device == move.same_device &&
        last->from + last->bytes == move.from && last->to + last->bytes == move.to) {
      last->bytes += move.bytes;
    } else {
      merged.push_back(move);
    }
  }
  return merged;
}

// The first moves of `*moves`, cut so that they have at most `max_bytes` together, are taken off.
std::vector<DeviceMove> TakeUpTo(uint64_t max_bytes, size_t max_moves,
                                 absl::Span<const DeviceMove>* moves, uint64_t* offset) {
  std::vector<DeviceMove> taken;
  for (uint64_t left = max_bytes; left > 0 && !moves->empty() && taken.size() < max_moves;) {
    const DeviceMove& move = moves->front();
    const uint64_t bytes = std::min(left, move.bytes - *offset);
    taken.push_back({.to = move.to + *offset, .from = move.from + *offset, .bytes = bytes});
    left -= bytes;
    *offset += bytes;
    if (*offset < move.bytes) continue;
    moves->remove_prefix(1);
    *offset = 0;
  }
  return taken;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceEngine>> DeviceEngine::Create(CudaDevice* device) {
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  return std::unique_ptr<DeviceEngine>(new DeviceEngine(device, std::move(stream)));
}

DeviceEngine::~DeviceEngine() { static_cast<void>(stream_.Synchronize().ok()); }

// ---- within the device

absl::Status DeviceEngine::Copy(absl::Span<const DeviceMove> moves, uint64_t* by_kernel) {
  std::vector<DeviceMove> merged = Merged(moves);
  if (merged.empty()) return absl::OkStatus();
  if (!std::exchange(mover_tried_, true)) {
    if (absl::StatusOr<Mover> made = MakeMover(); made.ok()) mover_.emplace(*std::move(made));
  }
  if (!mover_.has_value()) return CopyEach(merged);
  const auto small = [](const DeviceMove& move) { return move.bytes < kSmallPieceBytes; };
  const bool several = std::count_if(merged.begin(), merged.end(), small) >= kMinSmallPieces;
  const auto others = std::stable_partition(
      merged.begin(), merged.end(),
      [&](const DeviceMove& move) { return move.same_device || (several && small(move)); });
  const auto first = static_cast<size_t>(others - merged.begin());
  TH_RETURN_IF_ERROR(CopyEach(absl::MakeConstSpan(merged).subspan(first)));
  *by_kernel += first;
  return CopyByKernel(absl::MakeConstSpan(merged).first(first));
}

absl::Status DeviceEngine::CopyEach(absl::Span<const DeviceMove> moves) {
  for (const DeviceMove& move : moves) {
    TH_RETURN_IF_ERROR(stream_.CopyOnDevice(move.to, move.from, move.bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceEngine::Mover> DeviceEngine::MakeMover() const {
  TH_ASSIGN_OR_RETURN(auto kernels, DeviceKernels::Load(device_));
  TH_ASSIGN_OR_RETURN(auto list, DeviceList<kernels::MovedPiece>::Create(device_, kListPieces));
  return Mover{std::move(kernels), std::move(list)};
}

absl::Status DeviceEngine::CopyByKernel(absl::Span<const DeviceMove> moves) {
  for (bool first = true; !moves.empty(); first = false) {
    // The list is written anew only when the device has read it.
    if (!first) TH_RETURN_IF_ERROR(Wait());
    const size_t count = std::min<size_t>(moves.size(), kListPieces);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      mover_->list.items()[i] = {moves[i].to, moves[i].from, moves[i].bytes, bytes};
      bytes += moves[i].bytes;
    }
    TH_RETURN_IF_ERROR(mover_->list.ToDevice(stream_, count));
    TH_RETURN_IF_ERROR(mover_->kernels->Move(stream_, {mover_->list.address(), count, bytes}));
    moves.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status DeviceEngine::CopyFromPeer(const DeviceMove& move, CudaDevice& peer) {
  return stream_.CopyFromPeer(move.to, peer, move.from, move.bytes);
}

// ---- from and to the host

absl::StatusOr<std::byte*> DeviceEngine::Bounce() {
  if (!bounce_.has_value()) {
    TH_ASSIGN_OR_RETURN(PinnedBuffer buffer, PinnedBuffer::Allocate(device_, kBounceBytes));
    bounce_.emplace(std::move(buffer));
  }
  return bounce_->data();
}

absl::Status DeviceEngine::FromHost(const same_host::PeerMemory& process,
                                    absl::Span<const DeviceMove> moves) {
  TH_ASSIGN_OR_RETURN(std::byte* const bounce, Bounce());
  uint64_t offset = 0;
  while (!moves.empty()) {
    const std::vector<DeviceMove> chunk = TakeUpTo(kBounceBytes, moves.size(), &moves, &offset);
    std::vector<iovec> from;
    uint64_t bytes = 0;
    for (const DeviceMove& move : chunk) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process.
      from.push_back({reinterpret_cast<void*>(move.from), move.bytes});
      bytes += move.bytes;
    }
    const iovec into{bounce, bytes};
    TH_RETURN_IF_ERROR(process.Read(from, {&into, 1}));
    uint64_t at = 0;
    for (const DeviceMove& move : chunk) {
      TH_RETURN_IF_ERROR(stream_.CopyToDevice(move.to, bounce + at, move.bytes));
      at += move.bytes;
    }
    TH_RETURN_IF_ERROR(Wait());
  }
  return absl::OkStatus();
}

absl::Status DeviceEngine::ToHost(absl::Span<const DeviceMove> moves, WriteHost write_host) {
  TH_ASSIGN_OR_RETURN(std::byte* const bounce, Bounce());
  uint64_t offset = 0;
  while (!moves.empty()) {
    const std::vector<DeviceMove> chunk = TakeUpTo(kBounceBytes, moves.size(), &moves, &offset);
    uint64_t at = 0;
    for (const DeviceMove& move : chunk) {
      TH_RETURN_IF_ERROR(stream_.CopyToHost(bounce + at, move.from, move.bytes));
      at += move.bytes;
    }
    TH_RETURN_IF_ERROR(Wait());
    write_host([&chunk, bounce] {
      const std::byte* next = bounce;
      for (const DeviceMove& move : chunk) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): host memory of this process.
        std::memcpy(reinterpret_cast<void*>(move.to), next, move.bytes);
        next += move.bytes;
      }
    });
  }
  return absl::OkStatus();
}

// ---- sums

absl::StatusOr<std::vector<SegmentChecksum>> DeviceEngine::Checksum(
    absl::Span<const std::vector<DevicePiece>> segments) {
  if (checksums_ == nullptr) {
    TH_ASSIGN_OR_RETURN(checksums_, DeviceChecksums::Create(device_, kChecksums));
  }
  return checksums_->Checksum(segments);
}

}  // namespace th::cuda_ipc
