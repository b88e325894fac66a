// The load that one reference server bears: a real one, with thousands of workers that move no
// weights (session_fleet.h). The questions: how fast do all get in, how long until everybody has
// been told where a new version is, and how long does an update's round trip take at a steady rate?
//
//   1. All workers join at once and register a buffer.
//   2. A trainer group publishes; when it has published, all other groups update to `latest` at
//      once. Then the same again with a second trainer, whose version differs.
//   3. The groups update one after the other between the two versions, so many updates a second for
//      so long, each rank's counted. A rank's update lasts from the moment that the schedule gives
//      it until its result, which is its whole group's; what begins late is late. Every one moves.
//   4. With `receives` every rank of those groups looks up its shard of the trainer's, over a
//      connection of its own, and receives it as a streaming reader: what a step of so many such
//      readers costs the server.
//
// Server and workers share this machine's processors, which the figures include.
#ifndef TH_BENCH_SERVER_BENCH_H_
#define TH_BENCH_SERVER_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/bench/latencies.h"

namespace th {

// Each has a connection of its own from here to the server; ports run out beyond.
inline constexpr uint32_t kMaxServerBenchWorkers = 10'000;
inline constexpr uint32_t kMaxServerBenchRanks = 1024;

struct ServerBenchOptions {
  std::string server_program;
  std::string folder;                           // for its state and log; exists
  uint32_t workers = 2000;                      // rounded up to whole groups, at least three
  uint32_t ranks = 8;                           // of a group
  uint32_t rate = 500;                          // updates a second, each rank's counted
  absl::Duration duration = absl::Seconds(10);  // of them
  bool receives = false;                        // whether phase 4 is run
  // Told now and then, in a line, how far it is; may be empty.
  std::function<void(const std::string&)> progress = nullptr;
  // Asked several times a second; true ends it with CANCELLED. May be empty.
  std::function<bool()> cancelled = nullptr;
};

// One publish, and everybody's update to it.
struct PublishStorm {
  absl::Duration published;        // from the trainer's call to its result
  absl::Duration last_assignment;  // from that call until the last rank had its source
  absl::Duration last_moved;       // from that call until the last rank had its result
};

struct ServerMeasurement {
  uint64_t workers = 0;
  uint64_t groups = 0;
  uint32_t ranks = 0;
  absl::Duration join;  // from the first one's start until the last one's buffer is registered
  std::vector<PublishStorm> storms;
  uint32_t rate = 0;                 // asked for
  double rate_reached = 0;           // updates over the seconds from first to last
  LatencySummary update;             // of those at that rate
  uint64_t updates_moved = 0;        // of all readers, in storms and at the rate
  double control_bytes_join = 0;     // of a worker, both ways
  double control_bytes_update = 0;   // of one at the rate, heartbeats between included
  uint64_t server_bytes_joined = 0;  // resident memory after the join
  uint64_t server_bytes_end = 0;
  absl::Duration server_cpu_join;     // processor time of the server
  absl::Duration server_cpu_update;   // of each update at the rate
  absl::Duration server_cpu;          // of all
  uint64_t receives = 0;              // of streaming readers
  absl::Duration receives_took;       // from the first look-up until the last has received
  absl::Duration server_cpu_receive;  // of each receive, its look-up included
};

// The first failure of any worker, naming it; RESOURCE_EXHAUSTED when this user may not have so
// many connections open; UNAVAILABLE when the server ends; DEADLINE_EXCEEDED naming the phase;
// CANCELLED.
absl::StatusOr<ServerMeasurement> MeasureServer(const ServerBenchOptions& options);

std::string TextOf(const ServerMeasurement& measured);
nlohmann::json ToJson(const ServerMeasurement& measured);

}  // namespace th

#endif  // TH_BENCH_SERVER_BENCH_H_
