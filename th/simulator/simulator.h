// The simulator: a reference server, workers and the network between them on a virtual clock,
// around the cores of the binaries.
//
//   RunAtRandom({.seed = 17})      one run of a fleet that its seed describes, faults included
//   DescribeFailedRun(spec, result) what it violated, and the fewest faults for that
//   Cluster cluster({...});        a fleet of one's own, driven by hand
//   ParseScenario, RunScenario     a fleet and a course of events that a file describes
#ifndef TH_SIMULATOR_SIMULATOR_H_
#define TH_SIMULATOR_SIMULATOR_H_

#include "th/simulator/cluster.h"
#include "th/simulator/failed_run.h"
#include "th/simulator/random_run.h"
#include "th/simulator/scenario.h"
#include "th/simulator/scenario_result.h"
#include "th/simulator/scenario_run.h"
#include "th/simulator/timeline_picture.h"
#include "th/simulator/transition_coverage.h"
#include "th/simulator/transition_tables.h"

#endif  // TH_SIMULATOR_SIMULATOR_H_
