#include "th/transfer/segment_ring.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace th {

SegmentRing::SegmentRing(std::shared_ptr<const ShardLayout> layout, SegmentSet wanted,
                         uint64_t slots, std::shared_ptr<char> memory)
    : layout_(std::move(layout)),
      wanted_(std::move(wanted)),
      count_(wanted_.count()),
      slots_(std::max<uint64_t>(slots, 1)),
      memory_(std::move(memory)),
      arrived_(slots_) {
  places_before_.reserve(wanted_.ranges().size());
  uint64_t before = 0;
  for (const SegmentRange& range : wanted_.ranges()) {
    places_before_.push_back(before);
    before += range.count();
  }
}

// ---- places

uint64_t SegmentRing::PlaceOf(SegmentIndex segment) const {
  const auto& ranges = wanted_.ranges();
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), segment,
      [](SegmentIndex index, const SegmentRange& range) { return index < range.begin; });
  if (after == ranges.begin()) return count_;
  const auto range = std::prev(after);
  return places_before_[range - ranges.begin()] + (segment.value - range->begin.value);
}

SegmentIndex SegmentRing::SegmentAt(uint64_t place) const {
  if (place >= count_) return SegmentIndex(layout_->segment_count());
  const auto after = std::upper_bound(places_before_.begin(), places_before_.end(), place);
  const size_t range = after - places_before_.begin() - 1;
  return SegmentIndex(wanted_.ranges()[range].begin.value + (place - places_before_[range]));
}

char* SegmentRing::SlotOf(uint64_t place) const {
  return memory_.get() + (place % slots_) * layout_->segment_bytes();
}

// ---- the fill

void SegmentRing::AppendSlot(SegmentIndex segment, std::vector<iovec>* iov) const {
  iov->push_back({SlotOf(PlaceOf(segment)), layout_->SegmentLength(segment)});
}

void SegmentRing::Arrived(SegmentIndex segment) {
  const uint64_t place = PlaceOf(segment);
  absl::MutexLock lock(&mu_);
  if (place < next_ || place - next_ >= slots_) return;  // it has no room: nobody asked for it
  arrived_[place % slots_] = true;
  peak_ = std::max(peak_, ++present_);
}

void SegmentRing::OnRoom(std::function<void(SegmentIndex)> listener) {
  absl::MutexLock lock(&mu_);
  listener_ = std::move(listener);
}

void SegmentRing::End(bool whole) {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  whole_ = whole;
}

// ---- the consumer

bool SegmentRing::HasNext() const { return next_ < count_ && arrived_[next_ % slots_]; }

const char* SegmentRing::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto decided = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || HasNext(); };
  if (next_ < count_) mu_.AwaitWithTimeout(absl::Condition(&decided), timeout);
  const bool may = !ended_ || whole_;
  return may && HasNext() ? SlotOf(next_) : nullptr;
}

SegmentIndex SegmentRing::next() const {
  absl::MutexLock lock(&mu_);
  return SegmentAt(next_);
}

void SegmentRing::HandOn() {
  std::function<void(SegmentIndex)> listener;
  SegmentIndex end;
  {
    absl::MutexLock lock(&mu_);
    if (!HasNext()) return;
    arrived_[next_ % slots_] = false;
    --present_;
    ++next_;
    end = SegmentAt(next_);
    listener = listener_;
  }
  if (listener != nullptr) listener(end);
}

uint64_t SegmentRing::peak_segments() const {
  absl::MutexLock lock(&mu_);
  return peak_;
}

}  // namespace th
