// A scenario run for real and simulated, side by side. Pure: values in, values out; thread-safe.
//
//   std::vector<ComparedRun> runs = {{real, simulated}, ...};   // a policy each
//   std::cout << ComparisonTable(runs) << ComparisonToJson(runs).dump();
#ifndef TH_SCENARIO_RUNS_SCENARIO_COMPARISON_H_
#define TH_SCENARIO_RUNS_SCENARIO_COMPARISON_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// Under one policy.
struct ComparedRun {
  ScenarioResult real, simulated;
};

// Two lines a policy; RATIO compares the sum of all stalls with the first policy's.
std::string ComparisonTable(const std::vector<ComparedRun>& runs);
// {"scenario", "runs": [{"policy", "real": {...}, "simulated": {...}, "difference"}]}: `difference`
// is of the sum of all stalls, simulated over real, less 1.
nlohmann::json ComparisonToJson(const std::vector<ComparedRun>& runs);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_SCENARIO_COMPARISON_H_
