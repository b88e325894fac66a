#include "th/transfer/stream/outgoing_staging.h"

#include <algorithm>
#include <utility>

namespace th::stream {

std::shared_ptr<OutgoingStaging> OutgoingStaging::Create(
    std::shared_ptr<EventLoop> loop, std::function<void(const absl::Status&)> changed) {
  return std::shared_ptr<OutgoingStaging>(new OutgoingStaging(std::move(loop), std::move(changed)));
}

OutgoingStaging::OutgoingStaging(std::shared_ptr<EventLoop> loop,
                                 std::function<void(const absl::Status&)> changed)
    : loop_(std::move(loop)), changed_(std::move(changed)) {}

void OutgoingStaging::StageAhead(const std::shared_ptr<SegmentStore>& store,
                                 const RequestQueue& requests,
                                 absl::FunctionRef<bool(SegmentIndex)> copied) {
  ForgetStale(*store);
  for (const SegmentIndex segment : Next(*store, requests, copied)) {
    if (device_staging_ == nullptr) device_staging_ = SharedDeviceStaging();
    const uint64_t bytes = store->layout().SegmentLength(segment);
    const uint64_t number = ++begun_;
    bytes_ += bytes;
    stagings_.push_back(
        {.segment = segment, .bytes = bytes, .number = number, .staged = std::nullopt});
    if (copied(segment)) {
      Copy(store, segment, number);
    } else {
      Checksum(store, segment, number);
    }
  }
}

// A staged segment that the store does not hold any more is never sent.
void OutgoingStaging::ForgetStale(const SegmentStore& store) {
  for (auto it = stagings_.begin(); it != stagings_.end();) {
    const bool stale =
        it->staged.has_value() && store.ReadinessOf(it->segment) != SegmentStore::Readiness::kReady;
    if (stale) bytes_ -= it->bytes;
    it = stale ? stagings_.erase(it) : std::next(it);
  }
}

std::vector<SegmentIndex> OutgoingStaging::Next(
    const SegmentStore& store, const RequestQueue& requests,
    absl::FunctionRef<bool(SegmentIndex)> copied) const {
  std::vector<SegmentIndex> next;
  uint64_t bytes = bytes_;
  // Looks at the open segments in order, until as many are on their way as may be.
  static_cast<void>(requests.First([&](SegmentIndex segment) {
    const size_t count = stagings_.size() + next.size();
    if (count >= kMaxSegmentsStaging) return true;
    if (count >= kMinSegmentsStaging && bytes >= kMaxBytesStaging) return true;
    if (store.PlaceOf(segment) == SegmentStore::Place::kHost) return false;
    if (!copied(segment) && store.IsChecksummed(segment)) return false;
    if (store.ReadinessOf(segment) != SegmentStore::Readiness::kReady) return false;
    const auto same = [segment](const Staging& staging) { return staging.segment == segment; };
    if (std::any_of(stagings_.begin(), stagings_.end(), same)) return false;
    if (std::find(next.begin(), next.end(), segment) != next.end()) return false;
    next.push_back(segment);
    bytes += store.layout().SegmentLength(segment);
    return false;
  }));
  return next;
}

void OutgoingStaging::Copy(const std::shared_ptr<SegmentStore>& store, SegmentIndex segment,
                           uint64_t number) {
  device_staging_->CopyOut({.store = store,
                            .device = store->device(),
                            .segment = segment,
                            .wanted = wanted_,
                            .done = [loop = loop_, weak = weak_from_this(),
                                     number](absl::StatusOr<StagedSegment> staged) {
                              loop->Post([weak, number, staged = std::move(staged)]() mutable {
                                if (const auto self = weak.lock())
                                  self->HandleCopied(number, std::move(staged));
                              });
                            }});
}

void OutgoingStaging::Checksum(const std::shared_ptr<SegmentStore>& store, SegmentIndex segment,
                               uint64_t number) {
  device_staging_->TakeChecksum(
      {.store = store,
       .segment = segment,
       .wanted = wanted_,
       .done = [loop = loop_, weak = weak_from_this(), number](absl::Status checksummed) {
         loop->Post([weak, number, checksummed = std::move(checksummed)] {
           if (const auto self = weak.lock()) self->HandleEnded(number, checksummed);
         });
       }});
}

void OutgoingStaging::HandleCopied(uint64_t number, absl::StatusOr<StagedSegment> staged) {
  if (!staged.ok()) return HandleEnded(number, staged.status());
  const auto found = FindNumber(number);
  if (found == stagings_.end()) return;
  found->staged = *std::move(staged);
  changed_(absl::OkStatus());
}

// The segment has its sum, or there will be no copy of it.
void OutgoingStaging::HandleEnded(uint64_t number, const absl::Status& status) {
  const auto found = FindNumber(number);
  if (found == stagings_.end()) return;
  Erase(found);
  changed_(absl::IsCancelled(status) ? absl::OkStatus() : status);
}

std::deque<OutgoingStaging::Staging>::iterator OutgoingStaging::FindNumber(uint64_t number) {
  return std::find_if(stagings_.begin(), stagings_.end(),
                      [number](const Staging& staging) { return staging.number == number; });
}

std::deque<OutgoingStaging::Staging>::const_iterator OutgoingStaging::FindStaged(
    SegmentIndex segment) const {
  return std::find_if(stagings_.begin(), stagings_.end(), [segment](const Staging& staging) {
    return staging.segment == segment && staging.staged.has_value();
  });
}

bool OutgoingStaging::IsStaged(SegmentIndex segment) const {
  return FindStaged(segment) != stagings_.end();
}

StagedSegment OutgoingStaging::Take(SegmentIndex segment) {
  const auto found = FindStaged(segment);
  StagedSegment staged = *found->staged;
  Erase(found);
  return staged;
}

void OutgoingStaging::Erase(std::deque<Staging>::const_iterator staging) {
  bytes_ -= staging->bytes;
  stagings_.erase(staging);
}

void OutgoingStaging::Drop() {
  wanted_ = std::make_shared<int>(0);
  stagings_.clear();
  bytes_ = 0;
}

}  // namespace th::stream
