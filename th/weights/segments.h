// Sets of segments: what is held, missing, asked for. Commonly one watermark, in general some
// ranges.
#ifndef TH_WEIGHTS_SEGMENTS_H_
#define TH_WEIGHTS_SEGMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "th/identifiers/identifiers.h"

namespace th {

// Segments [begin, end) in canonical order.
struct SegmentRange {
  SegmentIndex begin;
  SegmentIndex end;

  uint64_t count() const { return end.value - begin.value; }
  bool empty() const { return end <= begin; }
  friend auto operator<=>(const SegmentRange&, const SegmentRange&) = default;
};

// A set of segments as sorted, disjoint, non-adjacent, non-empty ranges.
// Every operation is O(log ranges + ranges touched); a set filled front to back is one range.
class SegmentSet {
 public:
  SegmentSet() = default;
  static SegmentSet AllOf(uint64_t segment_count);
  // Sorts and merges. Empty ranges are dropped.
  static SegmentSet FromRanges(std::vector<SegmentRange> ranges);

  void Add(SegmentRange range);
  void Add(SegmentIndex segment) { Add({segment, segment.Next()}); }
  void AddAll(const SegmentSet& other);
  void Remove(SegmentRange range);
  void Clear() { ranges_.clear(); }

  bool Contains(SegmentIndex segment) const;
  bool ContainsAll(SegmentRange range) const;
  bool empty() const { return ranges_.empty(); }
  uint64_t count() const;
  // The length of the prefix that is held: the first missing segment, from 0.
  SegmentIndex Watermark() const;
  // The first run of at most `max_count` consecutive segments that starts at or after `from`, lies
  // in [0, segment_count) and is in neither *this nor `also_skip`. Empty range: there is none.
  SegmentRange FirstMissing(SegmentIndex from, uint64_t segment_count, uint64_t max_count,
                            const SegmentSet& also_skip) const;
  // Everything of [0, segment_count) that is not in the set.
  SegmentSet Complement(uint64_t segment_count) const;

  const std::vector<SegmentRange>& ranges() const { return ranges_; }
  friend bool operator==(const SegmentSet&, const SegmentSet&) = default;
  std::string ToString() const;  // "[0,12) [20,21)"

 private:
  std::vector<SegmentRange> ranges_;
};

}  // namespace th

#endif  // TH_WEIGHTS_SEGMENTS_H_
