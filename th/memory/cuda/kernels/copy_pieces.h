// Gather, scatter and move: many pieces of memory to and from one packed range, or to as many
// others.
//
// A warp takes a chunk of the packed range, or of what one would be, finds the first piece in it by
// binary search, and copies piece by piece: 16 bytes a lane where source and destination are
// aligned alike, else 8.
#ifndef TH_MEMORY_CUDA_KERNELS_COPY_PIECES_H_
#define TH_MEMORY_CUDA_KERNELS_COPY_PIECES_H_

#include <cstddef>
#include <cstdint>

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/execution_space.h"
#include "th/memory/cuda/kernels/words.h"

namespace th::kernels {

template <typename Warp>
TH_KERNEL void CopyBytes(const Warp& warp, uint64_t to, uint64_t from, uint64_t bytes) {
  warp.ForEachLane([&](uint32_t lane) {
    for (uint64_t at = lane; at < bytes; at += kWarpLanes) {
      warp.Write(to + at, warp.template Read<uint8_t>(from + at));
    }
  });
}

template <typename Warp>
TH_KERNEL void CopyRange(const Warp& warp, uint64_t to, uint64_t from, uint64_t bytes) {
  const bool alike = to % sizeof(Pair) == from % sizeof(Pair);
  const uint64_t width = alike ? sizeof(Pair) : sizeof(uint64_t);
  uint64_t head = (width - to % width) % width;
  if (head > bytes) head = bytes;
  CopyBytes(warp, to, from, head);
  const uint64_t words = (bytes - head) / width;
  const Bounds bounds = {from, from + bytes};
  warp.ForEachLane([&](uint32_t lane) {
    for (uint64_t word = lane; word < words; word += kWarpLanes) {
      const uint64_t at = head + word * width;
      if (alike) {
        warp.Write(to + at, warp.template Read<Pair>(from + at));
      } else {
        warp.Write(to + at, ReadWord(warp, from + at, bounds));
      }
    }
  });
  const uint64_t copied = head + words * width;
  CopyBytes(warp, to + copied, from + copied, bytes - copied);
}

// The index of the piece, of `piece_count` at `pieces`, that packed byte `offset` lies in.
template <typename Piece, typename Warp>
TH_KERNEL uint64_t FindPiece(const Warp& warp, uint64_t pieces, uint64_t piece_count,
                             uint64_t offset) {
  uint64_t low = 0;
  uint64_t high = piece_count;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const uint64_t first = warp.template Read<uint64_t>(pieces + middle * sizeof(Piece) +
                                                        offsetof(Piece, packed_offset));
    if (first <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

enum class CopyDirection : uint8_t { kGather, kScatter };

template <CopyDirection direction, typename Warp>
TH_KERNEL void CopyChunk(const Warp& warp, const CopyPiecesArguments& arguments, uint64_t begin,
                         uint64_t end) {
  for (uint64_t i = FindPiece<CopyPiece>(warp, arguments.pieces, arguments.piece_count, begin);
       begin < end; ++i) {
    const auto piece =
        warp.template ReadStruct<CopyPiece>(arguments.pieces + i * sizeof(CopyPiece));
    const uint64_t piece_end = piece.packed_offset + piece.bytes;
    const uint64_t copied = (piece_end < end ? piece_end : end) - begin;
    const uint64_t in_memory = piece.address + (begin - piece.packed_offset);
    const uint64_t in_packed = arguments.packed + begin;
    if constexpr (direction == CopyDirection::kGather) {
      CopyRange(warp, in_packed, in_memory, copied);
    } else {
      CopyRange(warp, in_memory, in_packed, copied);
    }
    begin += copied;
  }
}

// The kernel: warp `index` of `count` takes every count-th chunk.
template <CopyDirection direction, typename Warp>
TH_KERNEL void CopyPieces(const Warp& warp, const CopyPiecesArguments& arguments, uint64_t index,
                          uint64_t count) {
  for (uint64_t begin = index * kCopyChunkBytes; begin < arguments.packed_bytes;
       begin += count * kCopyChunkBytes) {
    const uint64_t end = begin + kCopyChunkBytes;
    CopyChunk<direction>(warp, arguments, begin,
                         end < arguments.packed_bytes ? end : arguments.packed_bytes);
  }
}

template <typename Warp>
TH_KERNEL void MoveChunk(const Warp& warp, const MovePiecesArguments& arguments, uint64_t begin,
                         uint64_t end) {
  for (uint64_t i = FindPiece<MovedPiece>(warp, arguments.pieces, arguments.piece_count, begin);
       begin < end; ++i) {
    const auto piece =
        warp.template ReadStruct<MovedPiece>(arguments.pieces + i * sizeof(MovedPiece));
    const uint64_t piece_end = piece.packed_offset + piece.bytes;
    const uint64_t copied = (piece_end < end ? piece_end : end) - begin;
    const uint64_t in_piece = begin - piece.packed_offset;
    CopyRange(warp, piece.to + in_piece, piece.from + in_piece, copied);
    begin += copied;
  }
}

// The kernel, as CopyPieces.
template <typename Warp>
TH_KERNEL void MovePieces(const Warp& warp, const MovePiecesArguments& arguments, uint64_t index,
                          uint64_t count) {
  for (uint64_t begin = index * kCopyChunkBytes; begin < arguments.bytes;
       begin += count * kCopyChunkBytes) {
    const uint64_t end = begin + kCopyChunkBytes;
    MoveChunk(warp, arguments, begin, end < arguments.bytes ? end : arguments.bytes);
  }
}

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_COPY_PIECES_H_
