// Runs a scenario: the cores of the binaries on a virtual clock, driven as its file says.
//
//   TH_ASSIGN_OR_RETURN(const ScenarioResult result,
//                       RunScenario(scenario, ScenarioPolicy::kNearest, {}));
//
// Equal scenarios and policies give equal results. The checker watches as in every simulation; what
// it finds is in `violations`. Ends when everything that the scenario asks for has come to its end,
// or at its `end`. Thread-safety: a pure function.
#ifndef TH_SIMULATOR_SCENARIOS_SCENARIO_RUN_H_
#define TH_SIMULATOR_SCENARIOS_SCENARIO_RUN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/simulator/scenarios/scenario.h"
#include "th/simulator/scenarios/scenario_result.h"

namespace th {

// A group whose update failed asks again after this long.
inline constexpr absl::Duration kScenarioRetry = absl::Milliseconds(100);

struct ScenarioRunOptions {
  std::function<void(const std::string&)> trace;  // as in ClusterSpec
};

// INVALID_ARGUMENT when the policy needs what the scenario does not say.
absl::StatusOr<ScenarioResult> RunScenario(const Scenario& scenario, ScenarioPolicy policy,
                                           const ScenarioRunOptions& options);

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_SCENARIO_RUN_H_
