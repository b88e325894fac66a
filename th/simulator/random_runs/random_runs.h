// Random runs: fleets that a seed describes, faults included, under the simulator's checks.
//
//   RunAtRandom({.seed = 17})        one run
//   DescribeFailedRun(spec, result)  what it violated, and the fewest faults for that
#ifndef TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUNS_H_
#define TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUNS_H_

#include "th/simulator/random_runs/failed_run.h"
#include "th/simulator/random_runs/random_run.h"
#include "th/simulator/transition_coverage.h"
#include "th/simulator/transition_tables.h"

#endif  // TH_SIMULATOR_RANDOM_RUNS_RANDOM_RUNS_H_
