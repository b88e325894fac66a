// Which events are asked for, of those in memory (event_ring.h) and of those on disk (event_log.h).
#ifndef TH_SERVER_EVENT_FILTER_H_
#define TH_SERVER_EVENT_FILTER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "th/protocol/event.h"

namespace th {

// Empty fields stand for all.
struct EventFilter {
  std::string run;
  std::string model;
  EventId id;
  uint64_t after = 0;  // the number of the last that is known already
  size_t limit = kMaxEventsOfAnswer;
};

// True when the event is of the filter's run, model and id; its number does not count. The server's
// own events, which are of no model, are of every run and model: what befalls it befalls them all.
inline bool Matches(const RecentEvent& event, const EventFilter& filter) {
  if (!filter.id.empty() && event.id != filter.id) return false;
  if (event.key == ModelKey()) return true;
  return (filter.run.empty() || event.key.run == filter.run) &&
         (filter.model.empty() || event.key.model == filter.model);
}

}  // namespace th

#endif  // TH_SERVER_EVENT_FILTER_H_
