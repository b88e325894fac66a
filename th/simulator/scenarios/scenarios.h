// Scenarios: a fleet and a course of events that a file describes, simulated.
//
//   ParseScenario                      reads a file
//   RunScenario                        simulates it
//   timeline_picture.h                 draws what came of it
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIOS_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIOS_H_

#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/scenario_result.h"
#include "th/simulator/scenarios/scenario_run.h"
#include "th/simulator/scenarios/timeline_picture.h"

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIOS_H_
