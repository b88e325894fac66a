// th controlled-rank: a process of th demo and th bench. Hidden: people have no use for it.
#include "th/cli/commands.h"
#include "th/controlled_rank/controlled_rank.h"

namespace th {

void AddControlledRankCommand(CLI::App* app, ExitStatus* exit) {
  CLI::App* command =
      app->add_subcommand("controlled-rank", "a rank that is told what to do on stdin");
  command->group("");
  command->callback([exit] {
    RunControlledRank();
    *exit = ExitStatus::kOk;
  });
}

}  // namespace th
