// th bench: measurements with their yardstick beside them.
#include "th/bench/bench_commands.h"
#include "th/cli/commands.h"
#include "th/scenario_runs/scenario_commands.h"

namespace th {

void AddBenchCommand(CLI::App* app, ExitStatus* exit) {
  CLI::App* bench = app->add_subcommand("bench", "measure, with a yardstick beside each figure");
  bench->require_subcommand(1);
  AddBenchTransferCommand(bench, exit);
  AddBenchServerCommand(bench, exit);
  AddBenchRegistryCommand(bench, exit);
  AddBenchFanoutCommand(bench, exit);
  AddBenchScenarioCommand(bench, exit);
  AddBenchModelCommand(bench, exit);
}

}  // namespace th
