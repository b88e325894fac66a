// The server as a program: its flags, its signals, and what it says of itself until it is told to
// stop. README.md has the flags and exit statuses.
#ifndef TH_SERVER_SERVER_PROGRAM_H_
#define TH_SERVER_SERVER_PROGRAM_H_

#include "th/server/flags.h"

namespace th {

// main() of tensorhub_server, and of servers that take `more_flags`. Returns the exit status.
int RunServerProgram(int argc, char** argv, const AddServerFlags& more_flags = nullptr);

}  // namespace th

#endif  // TH_SERVER_SERVER_PROGRAM_H_
