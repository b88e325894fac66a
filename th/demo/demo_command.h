// `th demo`.
#ifndef TH_DEMO_DEMO_COMMAND_H_
#define TH_DEMO_DEMO_COMMAND_H_

#include "CLI/CLI.hpp"
#include "th/command_line/exit_status.h"

namespace th {

void AddDemoCommand(CLI::App* app, ExitStatus* exit);

}  // namespace th

#endif  // TH_DEMO_DEMO_COMMAND_H_
