// The commands that show a server at work: `th top` and `th events`.
#ifndef TH_CLI_LIVE_LIVE_COMMANDS_H_
#define TH_CLI_LIVE_LIVE_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

void AddTopCommand(CLI::App* app, ExitStatus* exit);
void AddEventsCommand(CLI::App* app, ExitStatus* exit);

}  // namespace th

#endif  // TH_CLI_LIVE_LIVE_COMMANDS_H_
