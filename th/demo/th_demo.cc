// The demo as a program of its own: tools/demo builds it without all else that th can do.
//
//   th_demo demo --rollouts 2
#include "th/demo/demo_command.h"

int main(int argc, char** argv) { return th::RunDemoProgram(argc, argv); }
