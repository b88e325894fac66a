// The command th as a function: main() of th, and of the file that has all programs.
#ifndef TH_CLI_TH_PROGRAM_H_
#define TH_CLI_TH_PROGRAM_H_

namespace th {

// Returns the exit status. Sets the process's signal handling and logging: called once, first.
int RunTh(int argc, char** argv);

}  // namespace th

#endif  // TH_CLI_TH_PROGRAM_H_
