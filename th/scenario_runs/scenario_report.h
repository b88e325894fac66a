// The report of simulated scenarios, for people and for scripts. Pure: equal runs give equal texts.
#ifndef TH_SCENARIO_RUNS_SCENARIO_REPORT_H_
#define TH_SCENARIO_RUNS_SCENARIO_REPORT_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/command_line/text_table.h"
#include "th/simulator/scenarios/scenarios.h"

namespace th {

// One run: how the variables stood that were swept, and its result.
struct ScenarioRunReport {
  ScenarioOverrides swept;
  ScenarioResult result;
};

// A line a run, compared with the first run of the same variables, and what a single run came to in
// detail.
std::string ScenarioTable(const std::vector<ScenarioRunReport>& runs);
// Stall by cause and of the slowest ranks, versions, bytes by distance, the busiest links.
std::string ScenarioDetails(const ScenarioResult& result);

// The stall of all ranks together.
absl::Duration TotalStall(const ScenarioResult& result);
// The columns that every table of results has between its first and last ones, TRAINER STALL to
// FAILED, and a row's cells there; `ratio` is what the table compares.
std::vector<TextTable::Column> ResultColumns();
std::vector<std::string> ResultCells(const ScenarioResult& result, std::string ratio);

// {"scenario", "seed", "violations", "runs": [...]}; seconds are of the virtual clock. Violations
// are counted, and each run's `violated` tells them. `ranks`: each run has its ranks too.
nlohmann::json ScenarioToJson(const std::vector<ScenarioRunReport>& runs, bool ranks);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_SCENARIO_REPORT_H_
