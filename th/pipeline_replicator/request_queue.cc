#include "th/pipeline_replicator/request_queue.h"

#include <algorithm>

namespace th {
namespace {

// The lowest segment of `open` that is `ready` and below `end`, if there is an end.
std::optional<SegmentIndex> LowestBelow(const SegmentSet& open, std::optional<SegmentIndex> end,
                                        absl::FunctionRef<bool(SegmentIndex)> ready) {
  for (const SegmentRange& range : open.ranges()) {
    for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
      if (end.has_value() && segment >= *end) return std::nullopt;
      if (ready(segment)) return segment;
    }
  }
  return std::nullopt;
}

}  // namespace

void RequestQueue::Push(SegmentRange range) {
  if (range.empty()) return;
  requests_.emplace_back();
  requests_.back().Add(range);
  segments_ += range.count();
}

bool RequestQueue::Contains(SegmentIndex segment) const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [&](const SegmentSet& open) { return open.Contains(segment); });
}

bool RequestQueue::AsksAbove(SegmentIndex segment) const {
  return std::any_of(requests_.begin(), requests_.end(), [&](const SegmentSet& open) {
    return open.ranges().back().end > segment.Next();
  });
}

std::optional<SegmentIndex> RequestQueue::First(absl::FunctionRef<bool(SegmentIndex)> ready) const {
  std::optional<SegmentIndex> lowest;
  for (const SegmentSet& request : requests_) {
    const std::optional<SegmentIndex> lower = LowestBelow(request, lowest, ready);
    if (lower.has_value()) lowest = lower;
  }
  return lowest;
}

bool RequestQueue::Take(SegmentIndex segment) {
  const auto request = std::find_if(requests_.begin(), requests_.end(),
                                    [&](const SegmentSet& open) { return open.Contains(segment); });
  if (request == requests_.end()) return false;
  request->Remove({segment, segment.Next()});
  if (request->empty()) requests_.erase(request);
  --segments_;
  return true;
}

void RequestQueue::AddOpenTo(SegmentSet* segments) const {
  for (const SegmentSet& request : requests_) segments->AddAll(request);
}

void RequestQueue::Clear() {
  requests_.clear();
  segments_ = 0;
}

}  // namespace th
