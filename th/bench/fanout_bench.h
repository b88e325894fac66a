// How fast a version reaches many hosts at once, beside what one plain TCP flow takes.
//
// The question: how much longer than one transfer over one link does it take until the last of N
// readers, each on a host with a link of its own, has the version; and how often does the trainer
// send it? Each round publishes other bytes, lets all readers update at once, compares their bytes,
// and then sends the same bytes over one plain TCP flow from a holder to one reader of each class
// of links. The first round of each arm warms up. An arm is a policy of the server, with its own
// processes.
#ifndef TH_BENCH_FANOUT_BENCH_H_
#define TH_BENCH_FANOUT_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/bench/fanout_figures.h"
#include "th/bench/link_classes.h"
#include "th/controlled_rank/local_cluster.h"

namespace th {

struct FanoutOptions {
  LocalClusterOptions cluster;  // its folder exists
  std::vector<LinkClass>
      classes;  // of the readers, in their order; the server has the fastest link
  uint32_t holders = 1;
  uint64_t holder_rate = 0;           // of a holder's link, in bytes a second
  uint32_t rounds = 3;                // besides the first
  std::vector<std::string> policies;  // "ours", or as policy_server --policy names them
  std::string policy_server;          // serves the others; empty where there are none
  std::string disturbance;            // "stop", "cut", "leave"; empty: none
  // A line when an arm's processes are started and one after each round; may be empty.
  std::function<void(const std::string& line)> progress;
};

// Several holders bring an arm "one_holder" too: ours, with one. CANCELLED after SIGINT or
// SIGTERM; FAILED_PRECONDITION where there are no virtual hosts (virtual_hosts.h).
absl::StatusOr<FanoutMeasurement> MeasureFanout(const FanoutOptions& options);

}  // namespace th

#endif  // TH_BENCH_FANOUT_BENCH_H_
