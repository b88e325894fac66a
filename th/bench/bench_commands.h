// The benchmarks as subcommands of `th bench`. Each adds one; its callback leaves how it ended in
// `*exit`.
#ifndef TH_BENCH_BENCH_COMMANDS_H_
#define TH_BENCH_BENCH_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

void AddBenchTransferCommand(CLI::App* bench, ExitStatus* exit);
void AddBenchServerCommand(CLI::App* bench, ExitStatus* exit);
void AddBenchRegistryCommand(CLI::App* bench, ExitStatus* exit);
void AddBenchFanoutCommand(CLI::App* bench, ExitStatus* exit);

}  // namespace th

#endif  // TH_BENCH_BENCH_COMMANDS_H_
