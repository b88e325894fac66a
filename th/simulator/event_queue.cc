#include "th/simulator/event_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace th {

void EventQueue::PostAt(absl::Time when, SimulatedEvent event) {
  heap_.push_back({std::max(when, now_), ++posted_, events_.Put(std::move(event))});
  std::push_heap(heap_.begin(), heap_.end());
}

void EventQueue::RunNext() {
  std::pop_heap(heap_.begin(), heap_.end());
  const Entry entry = heap_.back();
  heap_.pop_back();
  now_ = entry.when;
  events_.Take(entry.slot)();  // taken out first: it may post others
}

std::string EventQueue::Stamp() const {
  return absl::StrFormat("%.6f s", absl::ToDoubleSeconds(now_ - absl::UnixEpoch()));
}

void EventQueue::AdvanceTo(absl::Time when) { now_ = std::max(now_, std::min(when, next())); }

}  // namespace th
