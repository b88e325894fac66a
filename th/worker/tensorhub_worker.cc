// The binary tensorhub_worker: a process that holds weights for others.
#include "th/worker/worker_program.h"

int main(int argc, char** argv) { return th::RunWorkerProgram(argc, argv); }
