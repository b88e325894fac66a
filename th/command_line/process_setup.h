// The first step of every program but the server.
#ifndef TH_COMMAND_LINE_PROCESS_SETUP_H_
#define TH_COMMAND_LINE_PROCESS_SETUP_H_

namespace th {

// Logs go to stderr, and a write that fails is an error of that write and no signal. Called once,
// first in the process; `program` is argv[0].
void SetUpProcess(const char* program);

}  // namespace th

#endif  // TH_COMMAND_LINE_PROCESS_SETUP_H_
