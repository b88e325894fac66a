// Runs a scenario for real: the file's course of events on processes on virtual hosts, with the
// clock of the wall. The account has the same form as the simulator's, so that the two stand side
// by side.
//
//   TH_ASSIGN_OR_RETURN(const RealRunResult run,
//                       RunScenarioForReal(scenario, ScenarioPolicy::kNearest, {.cluster = ...}));
//   run.result.RolloutStall().total()
//
// Policies other than `nearest` are models of others, made of what is here (policy_server
// --policy, and who waits for whom): `broadcast` is a static ring in which the trainer and all
// readers wait until the last one has the version; for `snapshot-broadcast` the trainer copies its
// weights in memory first, and waits for the ring only when it wants to write before it is done.
// Each rank's update is one stall, for `bytes`: what it waited for in it is not looked into.
#ifndef TH_SCENARIO_RUNS_REAL_RUN_H_
#define TH_SCENARIO_RUNS_REAL_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

struct RealRunOptions {
  LocalClusterOptions
      cluster;  // programs and folder, which exists; model, shards and places are chosen
  std::string policy_server;  // serves policies other than `nearest`
  // One plain TCP flow of a shard's bytes first, from the trainer's first rank to the first reader
  // that is there from the start.
  bool measure_flow = false;
};

struct RealRunResult {
  ScenarioResult result;
  double flow_seconds = 0;  // 0: not measured
};

// INVALID_ARGUMENT as PlanRealScenario; FAILED_PRECONDITION where there are no virtual hosts
// (virtual_hosts.h); CANCELLED after SIGINT or SIGTERM; DATA_LOSS when a reader of the last version
// holds other bytes than the trainer. Blocks for the scenario's time; one at a time in a process.
absl::StatusOr<RealRunResult> RunScenarioForReal(const Scenario& scenario, ScenarioPolicy policy,
                                                 const RealRunOptions& options);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_REAL_RUN_H_
