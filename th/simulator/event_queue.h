// The virtual clock and what will happen at which moment of it.
//
// Events of one moment run in the order in which they were posted, so a run is the same every time.
// Not thread-safe.
#ifndef TH_SIMULATOR_EVENT_QUEUE_H_
#define TH_SIMULATOR_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "th/simulator/slots.h"

namespace th {

using SimulatedEvent = absl::AnyInvocable<void()>;

class EventQueue {
 public:
  explicit EventQueue(absl::Time start) : now_(start) {}

  absl::Time now() const { return now_; }
  std::string Stamp() const;  // "12.345678 s" of the virtual clock since 1970, for people
  // Not before now: an event of the past happens at once.
  void PostAt(absl::Time when, SimulatedEvent event);
  void Post(absl::Duration delay, SimulatedEvent event) { PostAt(now_ + delay, std::move(event)); }

  // InfiniteFuture: there is no event.
  absl::Time next() const { return heap_.empty() ? absl::InfiniteFuture() : heap_.front().when; }
  // Moves the clock to the next event and runs it. There must be one.
  void RunNext();
  // Moves the clock; never backwards, never past the next event.
  void AdvanceTo(absl::Time when);

 private:
  // The event is kept apart: what a heap moves about is small.
  struct Entry {
    absl::Time when;
    uint64_t number = 0;
    size_t slot = 0;  // of its event
    // A heap's front is its greatest: the earliest here.
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.when > b.when || (a.when == b.when && a.number > b.number);
    }
  };

  absl::Time now_;
  uint64_t posted_ = 0;
  std::vector<Entry> heap_;
  Slots<SimulatedEvent> events_;
};

}  // namespace th

#endif  // TH_SIMULATOR_EVENT_QUEUE_H_
