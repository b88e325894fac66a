#include "th/weights/segments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

using Ranges = std::vector<SegmentRange>;

// The first range that ends after `segment`: the one that holds it, or else the next one.
Ranges::const_iterator FirstEndingAfter(const Ranges& ranges, SegmentIndex segment) {
  return std::upper_bound(
      ranges.begin(), ranges.end(), segment,
      [](SegmentIndex wanted, const SegmentRange& range) { return wanted < range.end; });
}

// Where `segment` is free: itself, or the end of the range that holds it.
SegmentIndex FirstFreeFrom(const Ranges& ranges, SegmentIndex segment) {
  const auto it = FirstEndingAfter(ranges, segment);
  return it != ranges.end() && it->begin <= segment ? it->end : segment;
}

// Where the next range after the free `segment` begins, or `limit`.
SegmentIndex NextTakenFrom(const Ranges& ranges, SegmentIndex segment, SegmentIndex limit) {
  const auto it = FirstEndingAfter(ranges, segment);
  return it != ranges.end() ? std::min(it->begin, limit) : limit;
}

}  // namespace

SegmentSet SegmentSet::AllOf(uint64_t segment_count) {
  SegmentSet set;
  set.Add({SegmentIndex(0), SegmentIndex(segment_count)});
  return set;
}

SegmentSet SegmentSet::FromRanges(std::vector<SegmentRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  SegmentSet set;
  for (const SegmentRange& range : ranges) {
    if (range.empty()) continue;
    if (!set.ranges_.empty() && range.begin <= set.ranges_.back().end) {
      set.ranges_.back().end = std::max(set.ranges_.back().end, range.end);
    } else {
      set.ranges_.push_back(range);
    }
  }
  return set;
}

void SegmentSet::Add(SegmentRange range) {
  if (range.empty()) return;
  // Ranges that touch the new one are swallowed, so the first one is the first with end >= begin.
  auto first = std::lower_bound(
      ranges_.begin(), ranges_.end(), range.begin,
      [](const SegmentRange& held, SegmentIndex wanted) { return held.end < wanted; });
  auto last = first;
  while (last != ranges_.end() && last->begin <= range.end) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
    ++last;
  }
  if (first == last) {
    ranges_.insert(first, range);
    return;
  }
  *first = range;
  ranges_.erase(first + 1, last);
}

void SegmentSet::AddAll(const SegmentSet& other) {
  if (&other == this) return;
  for (const SegmentRange& range : other.ranges_) Add(range);
}

void SegmentSet::Remove(SegmentRange range) {
  if (range.empty()) return;
  const auto first = ranges_.begin() + (FirstEndingAfter(ranges_, range.begin) - ranges_.cbegin());
  auto last = first;
  Ranges kept;
  while (last != ranges_.end() && last->begin < range.end) {
    if (last->begin < range.begin) kept.push_back({last->begin, range.begin});
    if (range.end < last->end) kept.push_back({range.end, last->end});
    ++last;
  }
  const auto at = ranges_.erase(first, last);
  ranges_.insert(at, kept.begin(), kept.end());
}

bool SegmentSet::Contains(SegmentIndex segment) const {
  const auto it = FirstEndingAfter(ranges_, segment);
  return it != ranges_.end() && it->begin <= segment;
}

bool SegmentSet::ContainsAll(SegmentRange range) const {
  if (range.empty()) return true;
  const auto it = FirstEndingAfter(ranges_, range.begin);
  return it != ranges_.end() && it->begin <= range.begin && range.end <= it->end;
}

uint64_t SegmentSet::count() const {
  uint64_t total = 0;
  for (const SegmentRange& range : ranges_) total += range.count();
  return total;
}

SegmentIndex SegmentSet::Watermark() const {
  const bool has_prefix = !ranges_.empty() && ranges_.front().begin == SegmentIndex(0);
  return has_prefix ? ranges_.front().end : SegmentIndex(0);
}

SegmentRange SegmentSet::FirstMissing(SegmentIndex from, uint64_t segment_count, uint64_t max_count,
                                      const SegmentSet& also_skip) const {
  const SegmentIndex limit(segment_count);
  SegmentIndex begin = from;
  while (true) {
    const SegmentIndex free = FirstFreeFrom(also_skip.ranges_, FirstFreeFrom(ranges_, begin));
    if (free == begin) break;
    begin = free;
  }
  if (begin >= limit || max_count == 0) return {};
  SegmentIndex end = NextTakenFrom(ranges_, begin, limit);
  end = NextTakenFrom(also_skip.ranges_, begin, end);
  if (end.value - begin.value > max_count) end = SegmentIndex(begin.value + max_count);
  return {begin, end};
}

SegmentSet SegmentSet::Complement(uint64_t segment_count) const {
  const SegmentIndex limit(segment_count);
  SegmentSet missing;
  SegmentIndex next(0);
  for (const SegmentRange& range : ranges_) {
    const SegmentRange gap{next, std::min(range.begin, limit)};
    if (!gap.empty()) missing.ranges_.push_back(gap);
    next = range.end;
  }
  if (next < limit) missing.ranges_.push_back({next, limit});
  return missing;
}

std::string SegmentSet::ToString() const {
  std::string text;
  for (const SegmentRange& range : ranges_) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "[", range.begin.value, ",", range.end.value,
                    ")");
  }
  return text;
}

}  // namespace th
