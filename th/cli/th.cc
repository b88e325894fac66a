// The command th.
#include "th/cli/th_program.h"

int main(int argc, char** argv) { return th::RunTh(argc, argv); }
