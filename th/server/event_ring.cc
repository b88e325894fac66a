#include "th/server/event_ring.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace th {
const RecentEvent* EventRing::Add(const RegistryEvent& event, absl::Time now) {
  if (event.kind == EventKind::kNone || capacity_ == 0) return nullptr;
  if (events_.size() >= capacity_) events_.pop_front();
  events_.push_back({.number = ++last_number_,
                     .id = event.id,
                     .kind = event.kind,
                     .at = now,
                     .key = event.key,
                     .who = event.who.substr(0, kMaxEventTextBytes),
                     .what = event.text.substr(0, kMaxEventTextBytes)});
  return &events_.back();
}

RecentEvents EventRing::Find(const EventFilter& filter, absl::Time now) const {
  const size_t limit = std::min(filter.limit, kMaxEventsOfAnswer);
  const bool on_from = filter.after > 0;
  std::vector<const RecentEvent*> found;
  for (const RecentEvent& event : events_) {
    if (event.number > filter.after && Matches(event, filter)) found.push_back(&event);
  }
  RecentEvents answer{.last = last_number_};
  if (found.size() > limit) {
    if (on_from) {
      found.resize(limit);
      answer.last = limit == 0 ? filter.after : found.back()->number;
    } else {
      found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(limit));
    }
  }
  const uint64_t oldest = events_.empty() ? last_number_ + 1 : events_.front().number;
  answer.lost = on_from && filter.after + 1 < oldest;
  answer.events.reserve(found.size());
  for (const RecentEvent* event : found) {
    answer.events.push_back(*event);
    answer.events.back().age = now - event->at;
  }
  return answer;
}

}  // namespace th
