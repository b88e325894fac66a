// Arguments and results of the kernels: plain structures of one layout for host and device.
// Addresses are those of the device.
#ifndef TH_MEMORY_CUDA_KERNELS_ARGUMENTS_H_
#define TH_MEMORY_CUDA_KERNELS_ARGUMENTS_H_

#include <cstdint>

namespace th::kernels {

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kWarpsPerBlock = kBlockThreads / kWarpLanes;
// Bytes of a leaf of th/weights/checksum.h, which this header must not include; the library checks
// that they are equal.
inline constexpr uint32_t kLeafBytes = uint32_t{8} << 10;
// Packed bytes that one warp copies before it takes the next.
inline constexpr uint64_t kCopyChunkBytes = uint64_t{8} << 10;

// Consecutive leaves that lie in one piece of memory, each of kLeafBytes but perhaps the last.
struct LeafRun {
  uint64_t address;
  uint64_t bytes;       // more than 0
  uint64_t first_leaf;  // its index in `sums`: the leaves of the runs before
};

// A sum of th/weights/checksum.h.
struct Checksum128 {
  uint64_t low;
  uint64_t high;
};

// Kernel "th_leaf_checksums": the sums of all leaves of all runs.
struct LeafChecksumsArguments {
  uint64_t runs;  // address of LeafRun[run_count], in order of first_leaf
  uint64_t run_count;
  uint64_t leaf_count;  // of all runs together
  uint64_t checksums;   // address of Sum128[leaf_count]
};

// Memory that is a range of a packed whole.
struct CopyPiece {
  uint64_t address;
  uint64_t bytes;          // more than 0
  uint64_t packed_offset;  // the bytes of the pieces before
};

// Memory that is copied to other memory of the device's or that it reaches.
struct MovedPiece {
  uint64_t to;
  uint64_t from;
  uint64_t bytes;          // more than 0
  uint64_t packed_offset;  // the bytes of the pieces before
};

// Kernel "th_move": all pieces, each to its place.
struct MovePiecesArguments {
  uint64_t pieces;  // address of MovedPiece[piece_count], in order of packed_offset, without gaps
  uint64_t piece_count;
  uint64_t bytes;       // of all pieces together
  uint64_t unused = 0;  // so that the arguments of all kernels have one size
};

// Kernels "th_gather" (pieces to packed) and "th_scatter" (packed to pieces).
struct CopyPiecesArguments {
  uint64_t pieces;  // address of CopyPiece[piece_count], in order of packed_offset, without gaps
  uint64_t piece_count;
  uint64_t packed;  // address of packed_bytes bytes
  uint64_t packed_bytes;
};

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_ARGUMENTS_H_
