// th simulate SCENARIO: runs of a scenario file, one for each policy and each setting of the
// variables that are swept.
#ifndef TH_SCENARIO_RUNS_SIMULATE_SCENARIO_H_
#define TH_SCENARIO_RUNS_SIMULATE_SCENARIO_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "th/command_line/exit_status.h"
#include "th/command_line/reporter.h"
#include "th/scenario_runs/scenario_report.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// The limit of runs of one command: settings times policies.
inline constexpr size_t kMaxScenarioRuns = 1'000;

struct ScenarioFlags {
  std::string file;
  std::vector<std::string> policies;  // names; "all"
  std::vector<std::string> set;       // "name=value"
  std::vector<std::string> sweep;     // "name=value,value"
  std::string svg;                    // empty: no picture
  bool trace = false;
};

// NOT_FOUND saying why the file cannot be read.
absl::StatusOr<std::string> ReadScenarioFile(const std::string& file);
// Parses overrides, each "name=value". INVALID_ARGUMENT naming the one that is none, or comes
// twice.
absl::StatusOr<ScenarioOverrides> OverridesOf(const std::vector<std::string>& set);
// Parses names of policies; "all" is every policy, none is `nearest` alone. INVALID_ARGUMENT naming
// them all.
absl::StatusOr<std::vector<ScenarioPolicy>> PoliciesOf(const std::vector<std::string>& names);

// The runs that were made of those that the flags ask for: fewer where a stop came first.
struct ScenarioRuns {
  std::vector<ScenarioRunReport> done;
  size_t planned = 0;
  bool interrupted() const { return done.size() < planned; }
};
// Every setting under every policy, as long as `stopped`, asked between two runs, says no. `text`
// is the file's. INVALID_ARGUMENT: the flags or the scenario are wrong.
absl::StatusOr<ScenarioRuns> RunScenarios(const ScenarioFlags& flags, const std::string& text,
                                          const std::function<bool()>& stopped);

// Flags that are wrong, or a scenario that is: kUsage. What must hold is violated: kFailed. A
// signal between two runs: kInterrupted, what has run is reported.
ExitStatus SimulateScenario(const ScenarioFlags& flags, const Reporter& reporter);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_SIMULATE_SCENARIO_H_
