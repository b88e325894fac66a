// Plans RDMA READs: maps bytes of a peer's memory onto memory of this process, and chooses which
// READs are signalled. Pure.
//
//   const ReadPlan plan = PlanReads(from, into, {.max_pieces = 30, .max_bytes = 1 << 20});
//
// A READ takes one contiguous range of the peer's memory and scatters it over several pieces of
// ours. Ranges that follow each other under one key become one READ, whatever their order in the
// list; what is longer than a READ may be, or goes to more pieces, is split.
//
// Tensors that an allocator has placed one after another have small gaps between them. Such a gap
// is read along, into memory that nobody looks at: a READ for each tensor costs more than the bytes
// of the gaps do. Two ranges under one key lie in one registration, so what is between them may be
// read too. The gaps of one plan are bounded, beside the length of each: the shortest are taken
// first, as each saves one READ.
#ifndef TH_TRANSFER_IBVERBS_READ_PLAN_H_
#define TH_TRANSFER_IBVERBS_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace th::ibverbs {

// A piece of memory under the key that its registration has (at the peer: the remote key).
struct KeyedRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t key = 0;

  friend bool operator==(const KeyedRange&, const KeyedRange&) = default;
};

struct ReadLimits {
  uint32_t max_pieces = 1;     // of a READ; at least 1
  uint32_t max_bytes = 0;      // of a READ; at least 1
  uint32_t max_gap_bytes = 0;  // longer gaps between ranges are not read along; 0: none are
  // All gaps together have at most one byte for so many that are wanted. 0: no such limit.
  uint64_t bytes_per_gap_byte = 0;
};

struct PlannedRead {
  KeyedRange from;         // with its gaps
  size_t first_piece = 0;  // in ReadPlan::pieces
  uint32_t piece_count = 0;
};
struct ReadPlan {
  std::vector<PlannedRead> reads;
  std::vector<KeyedRange> pieces;  // of all reads, in order
  uint64_t gap_bytes = 0;          // that are read along and thrown away
};

// `from` and `into` should cover the same number of bytes; what the longer one has beyond that is
// ignored. `discard` takes the gaps and has at least max_gap_bytes.
ReadPlan PlanReads(absl::Span<const KeyedRange> from, absl::Span<const KeyedRange> into,
                   const ReadLimits& limits, const KeyedRange& discard = {});

// `bytes` bytes of `ranges` from `offset` on; fewer where they end before.
std::vector<KeyedRange> Slice(absl::Span<const KeyedRange> ranges, uint64_t offset, uint64_t bytes);

// Decides which READs of a queue pair ask for a completion: the last one of each batch, and one in
// `every`, so that the places of those before it in the send queue become free.
class SignalPlan {
 public:
  // `depth`: the places of the send queue.
  explicit SignalPlan(uint32_t depth);
  // To be called for each READ in the order of posting.
  bool Next(bool last_of_batch);
  uint32_t every() const { return every_; }

 private:
  const uint32_t every_;
  uint32_t unsignalled_ = 0;  // since the last signalled one
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_READ_PLAN_H_
