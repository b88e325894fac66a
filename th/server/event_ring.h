// The recent events, for people: a bounded memory that forgets the oldest first.
//
//   EventRing ring(/*capacity=*/4096);
//   ring.Add(event, now);                                    // as the registry notes it
//   RecentEvents answer = ring.Find({.after = last_seen}, now);
//
// Pure; not thread-safe: the registry's loop owns it.
#ifndef TH_SERVER_EVENT_RING_H_
#define TH_SERVER_EVENT_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "th/protocol/event.h"
#include "th/registry_state/registry_types.h"
#include "th/server/event_filter.h"

namespace th {

// Some hours of a quiet fleet, some seconds of a storm; 2 MiB with texts of middling length.
inline constexpr size_t kMaxRecentEvents = 4096;
// The length of one text; the rest is cut, so that the ring never takes more than kMaxRecentEvents
// times this.
inline constexpr size_t kMaxEventTextBytes = 1024;

class EventRing {
 public:
  explicit EventRing(size_t capacity = kMaxRecentEvents) : capacity_(capacity) {}

  // Returns the event as it is remembered, until the next Add. An event without a kind is for the
  // log alone: null.
  const RecentEvent* Add(const RegistryEvent& event, absl::Time now);

  // The oldest first. Where more match than the limit: with `after` the oldest of them, so that the
  // caller can ask on; without, the newest. `epoch` is the caller's to fill in.
  RecentEvents Find(const EventFilter& filter, absl::Time now) const;

  size_t size() const { return events_.size(); }

 private:
  const size_t capacity_;
  uint64_t last_number_ = 0;
  std::deque<RecentEvent> events_;  // by number, without gaps; their ages are meaningless
};

}  // namespace th

#endif  // TH_SERVER_EVENT_RING_H_
