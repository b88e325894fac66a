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

// Calls copy(piece, offset, bytes) for each part of a piece that lies in the chunks of packed bytes
// that warp `index` of `count` takes: every count-th one. `pieces` is the address of the list.
template <typename Piece, typename Warp, typename Copy>
TH_KERNEL void ForEachPart(const Warp& warp, uint64_t pieces, uint64_t piece_count,
                           uint64_t packed_bytes, uint64_t index, uint64_t count, Copy copy) {
  for (uint64_t chunk = index * kCopyChunkBytes; chunk < packed_bytes;
       chunk += count * kCopyChunkBytes) {
    const uint64_t chunk_end = chunk + kCopyChunkBytes;
    const uint64_t end = chunk_end < packed_bytes ? chunk_end : packed_bytes;
    uint64_t begin = chunk;
    for (uint64_t i = FindPiece<Piece>(warp, pieces, piece_count, begin); begin < end; ++i) {
      const auto piece = warp.template ReadStruct<Piece>(pieces + i * sizeof(Piece));
      const uint64_t piece_end = piece.packed_offset + piece.bytes;
      const uint64_t bytes = (piece_end < end ? piece_end : end) - begin;
      copy(piece, begin - piece.packed_offset, bytes);
      begin += bytes;
    }
  }
}

enum class CopyDirection : uint8_t { kGather, kScatter };

// The kernels "th_gather" and "th_scatter", for warp `index` of `count`.
template <CopyDirection direction, typename Warp>
TH_KERNEL void CopyPieces(const Warp& warp, const CopyPiecesArguments& arguments, uint64_t index,
                          uint64_t count) {
  ForEachPart<CopyPiece>(
      warp, arguments.pieces, arguments.piece_count, arguments.packed_bytes, index, count,
      [&](const CopyPiece& piece, uint64_t offset, uint64_t bytes) {
        const uint64_t in_memory = piece.address + offset;
        const uint64_t in_packed = arguments.packed + piece.packed_offset + offset;
        if constexpr (direction == CopyDirection::kGather) {
          CopyRange(warp, in_packed, in_memory, bytes);
        } else {
          CopyRange(warp, in_memory, in_packed, bytes);
        }
      });
}

// The kernel "th_move", likewise.
template <typename Warp>
TH_KERNEL void MovePieces(const Warp& warp, const MovePiecesArguments& arguments, uint64_t index,
                          uint64_t count) {
  ForEachPart<MovedPiece>(warp, arguments.pieces, arguments.piece_count, arguments.bytes, index,
                          count, [&](const MovedPiece& piece, uint64_t offset, uint64_t bytes) {
                            CopyRange(warp, piece.to + offset, piece.from + offset, bytes);
                          });
}

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_COPY_PIECES_H_
