// Segment sums and a shard's root digest.
//
// The publisher sums every segment (XXH3, 64 bits, seed 0, over the segment's bytes in canonical
// order); the sums travel from peer to peer with the bytes; the root (SHA-256 over the
// little-endian list of all sums) goes to the server once and is the authority for the whole list.
#ifndef TH_WEIGHTS_CHECKSUM_H_
#define TH_WEIGHTS_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "th/weights/digest.h"
#include "th/weights/identifiers.h"

namespace th {

// Named in the layout, so that another algorithm is another layout. kNone: sums are not taken and
// the root is empty (a caller's explicit choice, never the default).
enum class ChecksumAlgorithm : uint8_t { kNone = 0, kXxh3_64 = 1 };

using SegmentSum = uint64_t;

// Sums one segment piece by piece. Not thread-safe; Reset() makes it ready for the next segment.
class SegmentHasher {
 public:
  SegmentHasher();
  ~SegmentHasher();
  SegmentHasher(const SegmentHasher&) = delete;
  SegmentHasher& operator=(const SegmentHasher&) = delete;
  void Reset();
  void Update(const void* data, size_t bytes);
  SegmentSum Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The sum of one contiguous run of bytes.
SegmentSum SumBytes(const void* data, size_t bytes);

// The root of a shard's whole list of sums.
Digest RootOfSums(absl::Span<const SegmentSum> sums);

}  // namespace th

#endif  // TH_WEIGHTS_CHECKSUM_H_
