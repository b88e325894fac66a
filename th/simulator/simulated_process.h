// The base of every simulated process: it has a place, and may die, or stop and go on later.
//
// What happens to a stopped process waits, in order, until it goes on; what happens to a dead one
// is lost. Its lifetime is the cluster's, so events may hold a pointer to it. Not thread-safe.
#ifndef TH_SIMULATOR_SIMULATED_PROCESS_H_
#define TH_SIMULATOR_SIMULATED_PROCESS_H_

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "th/simulator/event_queue.h"
#include "th/simulator/slots.h"
#include "th/topology/location.h"

namespace th {

class SimulatedProcess {
 public:
  SimulatedProcess(EventQueue* queue, Location location)
      : queue_(queue), location_(std::move(location)) {}
  virtual ~SimulatedProcess() = default;
  SimulatedProcess(const SimulatedProcess&) = delete;
  SimulatedProcess& operator=(const SimulatedProcess&) = delete;

  const Location& location() const { return location_; }
  absl::Time now() const { return queue_->now(); }
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }

  void Post(absl::Duration delay, SimulatedEvent event) {
    queue_->Post(delay,
                 [this, slot = posted_.Put(std::move(event))] { RunOrHold(posted_.Take(slot)); });
  }
  // Runs `event` now, unless the process is stopped or has not made up for a stop yet: then in its
  // turn. A dead process never runs it.
  void RunOrHold(SimulatedEvent event) {
    if (!alive_) return;
    if (stopped_ || !backlog_.empty()) {
      backlog_.push_back(std::move(event));
    } else {
      event();
    }
  }

 protected:
  void SetAlive(bool alive) {
    alive_ = alive;
    stopped_ = false;
    backlog_.clear();
    wake_at_ = absl::InfiniteFuture();
  }
  // The core's next deadline, told after everything that happens to it: HandleWake comes then, or
  // earlier where an earlier one was told before.
  void WakeAt(absl::Time deadline) {
    deadline = std::max(deadline, now());
    if (deadline >= wake_at_) return;
    wake_at_ = deadline;
    Post(deadline - now(), [this, deadline] {
      if (deadline != wake_at_) return;  // an earlier one was told since
      wake_at_ = absl::InfiniteFuture();
      HandleWake();
    });
  }
  virtual void HandleWake() = 0;
  void SetStopped(bool stopped) {
    stopped_ = stopped;
    // Not by this class's Post, whose events wait for the backlog.
    if (!stopped && !backlog_.empty()) queue_->Post(absl::ZeroDuration(), [this] { RunBacklog(); });
  }

 private:
  // Runs what has waited, in order, until nothing is left or the process is stopped again.
  void RunBacklog() {
    while (!stopped_ && !backlog_.empty()) {
      SimulatedEvent event = std::move(backlog_.front());
      backlog_.pop_front();
      event();
    }
  }

  EventQueue* const queue_;
  const Location location_;
  bool alive_ = true;
  bool stopped_ = false;
  absl::Time wake_at_ = absl::InfiniteFuture();
  Slots<SimulatedEvent> posted_;
  std::deque<SimulatedEvent> backlog_;
};

// One direction of one connection: what is sent first arrives first.
struct Wire {
  absl::Time last_arrival = absl::InfinitePast();
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_PROCESS_H_
