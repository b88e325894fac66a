// One run at random: a fleet, a network, frameworks that call the verbs, and faults, all drawn from
// the seed. What must hold is checked as the run goes on; in the end everything is healed, and the
// fleet must get going again and every call must end.
//
//   RandomRunResult result = RunAtRandom({.seed = 17});
//   if (!result.violations.empty()) Print(DescribeFailedRun({.seed = 17}, result).ToString());
#ifndef TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUN_H_
#define TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/simulator/random_runs/fault_schedule.h"
#include "th/simulator/transition_coverage.h"

namespace th {

// How long things go wrong.
inline constexpr absl::Duration kFaultPeriod = absl::Seconds(12);
// By when the healed fleet must work. Longer than three operations: two expire before a group that
// lost step counts anew.
inline constexpr absl::Duration kRecoveryLimit = absl::Seconds(90);
// A fleet that had little to do goes on until so many events have happened, kRecoveryLimit at most.
inline constexpr uint64_t kMinEventsPerRun = 1'000;
// The registry's invariants, which look at the whole fleet, are checked after every so many of its
// events. A run that violates anything is repeated with a check after every event, which names the
// moment.
inline constexpr uint32_t kRegistryEventsPerCheck = 64;

struct RandomRunSpec {
  uint64_t seed = 1;
  std::set<size_t> without;  // faults that are left out, by their place in the schedule
  std::function<void(const std::string&)> trace;  // as in ClusterSpec
};

struct RandomRunResult {
  std::vector<std::string> violations;  // with the moment; empty: good
  std::vector<Fault> faults;            // that were drawn; the later kinds come last
  uint64_t faults_happened = 0;
  uint64_t events = 0;           // messages and segments delivered
  uint64_t segments = 0;         // accepted by readers
  uint64_t operations_done = 0;  // by ranks
  uint64_t operations_failed = 0;
  uint64_t staged = 0, applied = 0;  // by whole groups
  uint64_t received = 0;             // streams, by ranks
  TransitionCoverage coverage;       // of the drawn transition tables
};

RandomRunResult RunAtRandom(const RandomRunSpec& spec);

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUN_H_
