// The subcommands of tensorhub_worker, and how they end.
#ifndef TH_WORKER_COMMAND_H_
#define TH_WORKER_COMMAND_H_

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "th/command_line/exit_status.h"

namespace th {

// Each adds its subcommand, whose callback leaves in `*exit` how it ended.
void AddPublishCommand(CLI::App* app, ExitStatus* exit);
void AddFollowCommand(CLI::App* app, ExitStatus* exit);

}  // namespace th

#endif  // TH_WORKER_COMMAND_H_
