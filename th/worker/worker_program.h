// tensorhub_worker as a function: main() of that binary, and of the file that has all programs.
#ifndef TH_WORKER_WORKER_PROGRAM_H_
#define TH_WORKER_WORKER_PROGRAM_H_

namespace th {

// Returns the exit status. Sets the process's signal handling and logging: called once, first.
int RunWorkerProgram(int argc, char** argv);

}  // namespace th

#endif  // TH_WORKER_WORKER_PROGRAM_H_
