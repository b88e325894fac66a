// The subcommands of th, and how they are registered.
//
// A subcommand is a file with one function that adds it to the application; its callback leaves how
// it ended in `*exit`.
#ifndef TH_CLI_COMMANDS_H_
#define TH_CLI_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

void AddListCommand(CLI::App* app, ExitStatus* exit);
void AddDescribeCommand(CLI::App* app, ExitStatus* exit);
void AddPullCommand(CLI::App* app, ExitStatus* exit);
void AddAttachCommand(CLI::App* app, ExitStatus* exit);
void AddVerifyCommand(CLI::App* app, ExitStatus* exit);
void AddRollBackCommand(CLI::App* app, ExitStatus* exit);
void AddRetentionCommands(CLI::App* app, ExitStatus* exit);  // retain, pin, release
void AddForgetCommand(CLI::App* app, ExitStatus* exit);
void AddWaitCommand(CLI::App* app, ExitStatus* exit);
void AddConfigCommand(CLI::App* app, ExitStatus* exit);
void AddDoctorCommand(CLI::App* app, ExitStatus* exit);
void AddBenchCommand(CLI::App* app, ExitStatus* exit);
void AddSimulateCommand(CLI::App* app, ExitStatus* exit);

}  // namespace th

#endif  // TH_CLI_COMMANDS_H_
