// tensorhub_server with --policy: for `th bench`, not for use.
#include "th/bench/policy_flag.h"
#include "th/server/server_program.h"

int main(int argc, char** argv) { return th::RunServerProgram(argc, argv, th::AddPolicyFlag); }
