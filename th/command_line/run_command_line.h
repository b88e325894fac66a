// Parses the command line of th and tensorhub_worker and runs the subcommand.
#ifndef TH_COMMAND_LINE_RUN_COMMAND_LINE_H_
#define TH_COMMAND_LINE_RUN_COMMAND_LINE_H_

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

// Tells elsewhere too what is wrong with a line.
using OnUsageError = std::function<void(const std::string& why)>;

// The status to exit with: what the subcommand's callback left in `*exit`, 0 after --help and
// --version, kUsage (having said why on stderr, and to `on_usage_error`) when the line is wrong. An
// empty value is wrong for every option, and any value but true for a flag that takes none;
// integers are decimal: 010 is 10. What went well but could not be written to stdout is
// kLocalFiles, unless who read it has gone.
int RunCommandLine(CLI::App* app, int argc, char** argv, const ExitStatus* exit,
                   const OnUsageError& on_usage_error = nullptr);

}  // namespace th

#endif  // TH_COMMAND_LINE_RUN_COMMAND_LINE_H_
