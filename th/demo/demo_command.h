// `th demo`, as a command of th and as a program of its own.
#ifndef TH_DEMO_DEMO_COMMAND_H_
#define TH_DEMO_DEMO_COMMAND_H_

#include "th/command_line/cli_app.h"
#include "th/command_line/exit_status.h"

namespace th {

void AddDemoCommand(CLI::App* app, ExitStatus* exit);

// main() of th_demo. Returns the exit status.
int RunDemoProgram(int argc, char** argv);

}  // namespace th

#endif  // TH_DEMO_DEMO_COMMAND_H_
