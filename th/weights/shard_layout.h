// The layout of a shard: which tensors, in which canonical order, cut into which segments.
//
//   TH_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Build({.tensors = specs}));
//   for (const SegmentPiece& piece : layout.PiecesOf(SegmentIndex(3))) { ... }
//
// Tensors are ordered by name (bytewise), boxes of one name by slice_begin. Boxes of one name have
// one dtype and global shape and are disjoint: an interleaved QKV or a flat FSDP range is several
// of them. Tied names (alias_of) share one storage: that of the owner's box with the same
// slice_begin, or of its only box. The storages laid end to end in that order are the shard's byte
// stream; segment i is bytes [i * segment_bytes, (i + 1) * segment_bytes) of it, the last one
// shorter. So large tensors are split and small ones packed, and equal digests mean: equal
// segments, byte for byte in the same place.
//
// Immutable once built; safe to share between threads.
#ifndef TH_WEIGHTS_SHARD_LAYOUT_H_
#define TH_WEIGHTS_SHARD_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/tensor.h"

namespace th {

inline constexpr uint64_t kMinSegmentBytes = uint64_t{4} << 10;
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{64} << 20;
// The most tensors and the most encoded bytes of one layout.
inline constexpr uint64_t kMaxTensors = 2'000'000;
inline constexpr uint64_t kMaxLayoutBytes = uint64_t{64} << 20;
// The most segments of one layout: the list of their sums stays within 256 MiB.
inline constexpr uint64_t kMaxSegments = uint64_t{1} << 24;
// The most boxes of one name. Each is compared with all others of its name.
inline constexpr uint64_t kMaxBoxesOfOneName = 256;
// The most bytes of all names (of tensors and of what they are aliases of) and the most dimensions
// of all tensors: what a few hostile bytes can make a decoder allocate.
inline constexpr uint64_t kMaxLayoutNameBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxLayoutDimensions = uint64_t{8} << 20;

// 256 KiB up to 16 GiB, then the power of two that keeps a shard at 65,536 segments or fewer, at
// most 4 MiB. A segment is what is summed while it is in cache, and what one hop of a relay waits
// for.
uint64_t DefaultSegmentBytes(uint64_t shard_bytes);

// A run of a segment's bytes within one storage.
struct SegmentPiece {
  uint32_t storage = 0;  // index into storages()
  uint64_t offset = 0;   // within the storage
  uint64_t bytes = 0;
  friend bool operator==(const SegmentPiece&, const SegmentPiece&) = default;
};
using SegmentPieces = absl::InlinedVector<SegmentPiece, 4>;

class ShardLayout {
 public:
  struct Spec {
    std::vector<TensorSpec> tensors;  // any order
    uint64_t segment_bytes = 0;       // 0: DefaultSegmentBytes
    ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves;
  };
  // A storage: the bytes of one tensor that is nobody's alias.
  struct Storage {
    uint32_t tensor = 0;         // index into tensors()
    uint64_t stream_offset = 0;  // of its first byte in the shard's byte stream
    uint64_t bytes = 0;
  };

  ShardLayout() = default;  // no tensor, no segment
  // INVALID_ARGUMENT naming the tensor: what CompleteTensorSpec refuses, boxes of one name that
  // overlap or disagree, an alias of an unknown tensor, of an alias or of other size; or naming the
  // limit that is exceeded.
  static absl::StatusOr<ShardLayout> Build(Spec spec);

  // The canonical encoding: what the digest is taken over and what crosses the wire.
  std::string Encode() const;
  // The inverse. Refuses hostile bytes, and bytes that Encode would not have written, with
  // INVALID_ARGUMENT.
  static absl::StatusOr<ShardLayout> Decode(absl::string_view encoded);

  const Digest& digest() const { return digest_; }
  uint64_t encoded_bytes() const { return encoded_bytes_; }  // what Encode returns
  uint64_t bytes() const { return bytes_; }                  // of all storages
  uint64_t segment_bytes() const { return segment_bytes_; }
  uint64_t segment_count() const;
  ChecksumAlgorithm checksum() const { return checksum_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }  // canonical order
  const std::vector<Storage>& storages() const { return storages_; }   // canonical order
  // The storage of tensor `tensor` (its own, or that of the tensor it is an alias of).
  uint32_t StorageOf(uint32_t tensor) const { return storage_of_[tensor]; }

  // 0: there is no such segment.
  uint64_t SegmentLength(SegmentIndex segment) const;
  // In stream order, none of them empty. O(log storages + pieces). Empty: there is no such segment.
  SegmentPieces PiecesOf(SegmentIndex segment) const;
  // Bytes of the segments in [begin, end), as far as there are any.
  uint64_t BytesOf(SegmentIndex begin, SegmentIndex end) const;

 private:
  absl::Status LayOutStorages();
  absl::Status ResolveAlias(uint32_t tensor);
  absl::Status ChooseSegmentBytes(uint64_t wanted_bytes);

  std::vector<TensorSpec> tensors_;
  std::vector<uint32_t> storage_of_;
  std::vector<Storage> storages_;
  uint64_t bytes_ = 0;
  uint64_t segment_bytes_ = kMinSegmentBytes;
  ChecksumAlgorithm checksum_ = ChecksumAlgorithm::kXxh3Leaves;
  uint64_t encoded_bytes_ = 0;
  Digest digest_;
};

// Says in one line how `reader` differs from `holder`: the first tensor in canonical order that one
// lacks or that differs, or the segment size or checksum. "no difference" when the digests agree.
std::string FirstDifference(const ShardLayout& reader, const ShardLayout& holder);

}  // namespace th

#endif  // TH_WEIGHTS_SHARD_LAYOUT_H_
