// Segment sums and a shard's root digest.
//
// A segment is cut into leaves of kLeafBytes (the last one may be shorter). A leaf's sum is
// XXH3-128 with seed 0 of its bytes; the segment's sum is XXH3-128 of the list of its leaves' sums,
// 16 little-endian bytes each. Leaves are independent of each other, so a sum can be taken in
// parallel (on a GPU too) and of parts of a segment. 128 bits let equal sums stand for equal bytes.
//
// The publisher sums every segment; the sums travel from peer to peer with the bytes; the root
// (SHA-256 over the little-endian list of all segments' sums) goes to the server once and is the
// authority for the whole list.
//
//   const SegmentChecksum sum = ChecksumBytes(segment.data(), segment.size());
//   // The same from leaves that were summed elsewhere:
//   std::vector<SegmentChecksum> leaves;
//   for (size_t at = 0; at < segment.size(); at += kLeafBytes) {
//     leaves.push_back(ChecksumOfLeaf(&segment[at], std::min(kLeafBytes, segment.size() - at)));
//   }
//   CHECK(ChecksumOfLeaves(leaves) == sum);
#ifndef TH_WEIGHTS_CHECKSUM_H_
#define TH_WEIGHTS_CHECKSUM_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/weights/digest.h"

namespace th {

// Named in the layout, so that another algorithm is another layout. kNone: sums are not taken and
// the root is empty (a caller's explicit choice, never the default). 1 was a plain 64-bit XXH3 of
// the whole segment, which no release has used: it is refused.
enum class ChecksumAlgorithm : uint8_t { kNone = 0, kXxh3Leaves = 2 };

using SegmentChecksum = absl::uint128;

// Bytes of a leaf. With leaves of 8 KiB a processor sums bytes that are in its cache 7 % slower
// than with one long hash, with 4 KiB 15 % slower; bytes that come from memory at the same rate. A
// segment of 256 KiB has 32 leaves to take in parallel.
inline constexpr size_t kLeafBytes = size_t{8} << 10;

// Sums segments piece by piece, one after the other. Not thread-safe.
class SegmentHasher {
 public:
  SegmentHasher();
  ~SegmentHasher();
  SegmentHasher(const SegmentHasher&) = delete;
  SegmentHasher& operator=(const SegmentHasher&) = delete;
  // Appends `bytes` bytes to the segment.
  void Update(const void* data, size_t bytes);
  // Ends the segment and returns its sum; the next Update() begins another.
  SegmentChecksum Finish();

 private:
  struct State;

  void Reset();

  std::unique_ptr<State> state_;
};

// The sum of a segment that lies in one contiguous run of bytes.
SegmentChecksum ChecksumBytes(const void* data, size_t bytes);

// The sum of a segment that lies in `pieces`, in their order; 0 for ChecksumAlgorithm::kNone.
SegmentChecksum ChecksumPieces(absl::Span<const iovec> pieces, ChecksumAlgorithm checksum);

// The sum of one leaf, of at most kLeafBytes.
SegmentChecksum ChecksumOfLeaf(const void* data, size_t bytes);
// The sum of a segment from the sums of its leaves, in order.
SegmentChecksum ChecksumOfLeaves(absl::Span<const SegmentChecksum> leaves);

// The root of a shard's whole list of sums.
Digest RootOfChecksums(absl::Span<const SegmentChecksum> checksums);

}  // namespace th

#endif  // TH_WEIGHTS_CHECKSUM_H_
