#include "th/simulator/event_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace th {

void EventQueue::PostAt(absl::Time when, SimulatedEvent event) {
  if (free_slots_.empty()) {
    free_slots_.push_back(events_.size());
    events_.emplace_back();
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  events_[slot] = std::move(event);
  heap_.push_back({std::max(when, now_), ++posted_, slot});
  std::push_heap(heap_.begin(), heap_.end());
}

void EventQueue::RunNext() {
  std::pop_heap(heap_.begin(), heap_.end());
  const Entry entry = heap_.back();
  heap_.pop_back();
  now_ = entry.when;
  // Taken out first: it may post others.
  SimulatedEvent event = std::exchange(events_[entry.slot], nullptr);
  free_slots_.push_back(entry.slot);
  event();
}

std::string EventQueue::Stamp() const {
  return absl::StrFormat("%.6f s", absl::ToDoubleSeconds(now_ - absl::UnixEpoch()));
}

void EventQueue::AdvanceTo(absl::Time when) { now_ = std::max(now_, std::min(when, next())); }

}  // namespace th
