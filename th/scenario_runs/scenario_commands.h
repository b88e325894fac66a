// `th bench scenario` and `th bench model`. Each adds one; its callback leaves how it ended in
// `*exit`.
#ifndef TH_SCENARIO_RUNS_SCENARIO_COMMANDS_H_
#define TH_SCENARIO_RUNS_SCENARIO_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

void AddBenchScenarioCommand(CLI::App* bench, ExitStatus* exit);
void AddBenchModelCommand(CLI::App* bench, ExitStatus* exit);

}  // namespace th

#endif  // TH_SCENARIO_RUNS_SCENARIO_COMMANDS_H_
