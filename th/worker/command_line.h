// Parses the command line of th and tensorhub_worker and runs the subcommand.
#ifndef TH_WORKER_COMMAND_LINE_H_
#define TH_WORKER_COMMAND_LINE_H_

#include "CLI/CLI.hpp"
#include "th/worker/exit_status.h"

namespace th {

// The status to exit with: what the subcommand's callback left in `*exit`, 0 after --help and
// --version, kUsage (having said why on stderr) when the line is wrong.
int RunCommandLine(CLI::App* app, int argc, char** argv, const ExitStatus* exit);

}  // namespace th

#endif  // TH_WORKER_COMMAND_LINE_H_
