// The check that a scenario whose lines are all right is one as a whole: somebody publishes and
// somebody reads, over links that there are, and something happens that could be measured. Pure.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_WHOLE_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_WHOLE_H_

#include <vector>

#include "absl/status/status.h"
#include "th/simulator/scenarios/scenario.h"

namespace th {

// INVALID_ARGUMENT: no trainer, or one that does not train; no reader; no end; two sites without a
// link; an event `at` a time after the end, with its line (`event_lines` has that of each event);
// no publish before the end; nobody who ever updates. Such a file is a slip.
absl::Status CheckWhole(const Scenario& scenario, const std::vector<int>& event_lines);

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_WHOLE_H_
