// Many workers of one machine that take part in everything but the data: each a th/worker_session
// over a gRPC connection of its own, as th/client drives it, but no weights are there to be moved.
//
//   SessionFleet fleet({.server = address, .groups = 250, .ranks = 8},
//                      {.on_registered = [&](FleetRank rank) { ... },
//                       .on_done = [&](FleetRank rank, const OperationDone& done) { ... }});
//   fleet.JoinAll();
//   fleet.Publish(0, label);            // all ranks of the group
//   fleet.Update(1, LatestVersion{});
//
// A publisher has its sums at once. A reader's fill is complete as soon as it has both a source and
// the root of its shard, which must be the publisher's: so groups really commit, and a version that
// was mixed up with another fails. Nobody asks a source for a byte.
//
// All sessions run on one thread, th-control; the events come on it, and must not block. The verbs
// are thread-safe. A rank whose verb is refused or whose session ends is told of by on_failed.
#ifndef TH_BENCH_SESSION_FLEET_H_
#define TH_BENCH_SESSION_FLEET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/client/control_stream.h"
#include "th/client/runtime.h"
#include "th/weights/version.h"
#include "th/worker_session/session_types.h"

namespace th {

// The model that the fleet shares.
inline constexpr char kFleetRun[] = "bench";
inline constexpr char kFleetModel[] = "model";
std::string FleetGroupName(uint32_t group);

// A rank of the fleet.
struct FleetRank {
  uint32_t group = 0;
  uint32_t rank = 0;
};

struct FleetOptions {
  std::string server;  // host:port
  uint32_t groups = 1;
  uint32_t ranks = 1;                                 // of each group
  absl::Duration join_timeout = absl::Seconds(60);    // of each worker, its retries included
  absl::Duration update_timeout = absl::Seconds(60);  // of each publish and update
};

// Each may be empty.
struct FleetEvents {
  // It has joined and the server has its buffer. Once a rank.
  std::function<void(FleetRank)> on_registered;
  // It was given a source. Once an update at least.
  std::function<void(FleetRank)> on_assigned;
  // A publish or update has ended, well or not.
  std::function<void(FleetRank, const OperationDone&)> on_done;
  // A receive has, likewise.
  std::function<void(FleetRank, const OperationDone&)> on_received;
  // A verb was refused, or its session has ended though nobody left.
  std::function<void(FleetRank, const absl::Status&)> on_failed;
};

class SessionFleet {
 public:
  SessionFleet(FleetOptions options, FleetEvents events);
  // Leaves, and waits until every stream has ended: kFleetLeaveTimeout, then they are cut. No event
  // comes once it has begun.
  ~SessionFleet();
  SessionFleet(const SessionFleet&) = delete;
  SessionFleet& operator=(const SessionFleet&) = delete;

  // At once: the server sees them all arrive together.
  void JoinAll();
  // By all ranks of the group.
  void Publish(uint32_t group, VersionLabel label);
  void Update(uint32_t group, VersionSelector selector);
  // As a streaming reader of the rank's shard (th/client/receive.h), beside what the rank holds.
  void Receive(uint32_t group, VersionSelector selector);
  // Runs `task` on th-control in so long, unless the fleet ends before.
  void After(absl::Duration delay, std::function<void()> task);

  // Serialised messages of all workers, both ways, without gRPC's framing.
  uint64_t control_bytes() const { return *bytes_; }

 private:
  class Worker;
  struct Shared;

  template <typename Verb>
  void ForGroup(uint32_t group, Verb verb);

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<ControlByteCount> bytes_;  // streams may end after the fleet
  const std::shared_ptr<Shared> shared_;           // likewise
  std::vector<std::shared_ptr<Worker>> workers_;   // group by group; shared with their streams
};

// For streams to end by themselves when the fleet leaves; then they are cut, and get as long again.
inline constexpr absl::Duration kFleetLeaveTimeout = absl::Seconds(10);

}  // namespace th

#endif  // TH_BENCH_SESSION_FLEET_H_
