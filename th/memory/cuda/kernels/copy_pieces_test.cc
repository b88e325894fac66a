// Gather and scatter from the kernels' source, on the host.
#include "th/memory/cuda/kernels/copy_pieces.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/host_kernels.h"
#include "th/memory/cuda/kernels/host_warp.h"

namespace th::kernels {
namespace {

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Pieces of these lengths in one buffer, each with `gap` bytes behind it.
struct Pieces {
  Pieces(const std::vector<uint64_t>& lengths, uint64_t gap) {
    uint64_t begin = 0;
    for (const uint64_t length : lengths) {
      offsets.push_back(begin);
      begin += length + gap;
    }
    memory.assign(begin, 0xee);
    for (size_t i = 0; i < lengths.size(); ++i) {
      pieces.push_back({AddressOf(memory.data()) + offsets[i], lengths[i], packed_bytes});
      packed_bytes += lengths[i];
    }
  }
  std::vector<uint8_t> memory;
  std::vector<uint64_t> offsets;
  std::vector<CopyPiece> pieces;
  uint64_t packed_bytes = 0;
};

uint8_t ByteAt(uint64_t packed_offset) {
  return static_cast<uint8_t>(packed_offset * 2654435761 >> 7);
}

void Launch(const char* kernel, const Pieces& pieces, uint8_t* packed, uint32_t blocks) {
  const CopyPiecesArguments arguments = {AddressOf(pieces.pieces.data()), pieces.pieces.size(),
                                         AddressOf(packed), pieces.packed_bytes};
  FindHostKernel(kernel)(&arguments, blocks, PlainMemory());
}

std::vector<std::vector<uint64_t>> Shapes() {
  std::vector<uint64_t> odd;
  for (uint64_t i = 1; i < 300; ++i) odd.push_back(i);
  return {
      {1}, {kCopyChunkBytes}, {3 * kCopyChunkBytes + 5, 17, kCopyChunkBytes}, {16, 32, 64}, odd};
}

TEST(CopyPiecesTest, WhatIsScatteredIsGathered) {
  for (const std::vector<uint64_t>& lengths : Shapes()) {
    for (const uint64_t gap : {0, 1, 8, 16}) {
      for (const uint64_t skipped : {0, 3}) {
        Pieces pieces(lengths, gap);
        std::vector<uint8_t> packed(skipped + pieces.packed_bytes);
        for (uint64_t i = 0; i < pieces.packed_bytes; ++i) packed[skipped + i] = ByteAt(i);
        Launch("th_scatter", pieces, &packed[skipped], 1);
        for (const CopyPiece& piece : pieces.pieces) {
          const uint64_t at = piece.address - AddressOf(pieces.memory.data());
          for (uint64_t i = 0; i < piece.bytes; ++i) {
            ASSERT_EQ(pieces.memory[at + i], ByteAt(piece.packed_offset + i));
          }
          for (uint64_t i = 0; i < gap; ++i) ASSERT_EQ(pieces.memory[at + piece.bytes + i], 0xee);
        }
        std::vector<uint8_t> gathered(skipped + pieces.packed_bytes);
        Launch("th_gather", pieces, &gathered[skipped], 2);
        packed.assign(packed.begin() + skipped, packed.end());
        gathered.assign(gathered.begin() + skipped, gathered.end());
        ASSERT_EQ(gathered, packed) << "gap " << gap << ", packed at " << skipped;
      }
    }
  }
}

TEST(CopyPiecesTest, EachPieceIsMovedToItsPlaceAndNothingElse) {
  for (const std::vector<uint64_t>& lengths : Shapes()) {
    for (const uint64_t gap : {0, 1, 8, 16}) {
      Pieces from(lengths, gap), to(lengths, 16 - gap);
      for (uint64_t i = 0; i < from.memory.size(); ++i) from.memory[i] = ByteAt(i);
      std::vector<uint8_t> expected = to.memory;
      std::vector<MovedPiece> moved;
      for (size_t i = 0; i < lengths.size(); ++i) {
        moved.push_back({to.pieces[i].address, from.pieces[i].address, lengths[i],
                         from.pieces[i].packed_offset});
        for (uint64_t at = 0; at < lengths[i]; ++at) {
          expected[to.offsets[i] + at] = ByteAt(from.offsets[i] + at);
        }
      }
      const MovePiecesArguments arguments = {AddressOf(moved.data()), moved.size(),
                                             from.packed_bytes};
      FindHostKernel("th_move")(&arguments, 2, PlainMemory());
      ASSERT_EQ(to.memory, expected) << "gap " << gap;
    }
  }
}

TEST(CopyPiecesTest, NothingIsCopiedOfNoBytes) {
  const CopyPiecesArguments arguments = {0, 0, 0, 0};
  FindHostKernel("th_gather")(&arguments, 1, PlainMemory());
}

TEST(CopyPiecesTest, AnUnknownKernelIsNotFound) { EXPECT_EQ(FindHostKernel("th_other"), nullptr); }

}  // namespace
}  // namespace th::kernels
