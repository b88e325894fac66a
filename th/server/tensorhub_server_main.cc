// The reference server's binary. See README.md for its flags and exit statuses.
#include "th/server/server_program.h"

int main(int argc, char** argv) { return th::RunServerProgram(argc, argv); }
