// The demo as a program of its own: tools/demo builds it without all else that th can do.
//
//   th_demo demo --rollouts 2
#include <csignal>

#include "CLI/CLI.hpp"
#include "glog/logging.h"
#include "th/command_line/reporter.h"
#include "th/command_line/run_command_line.h"
#include "th/demo/demo_command.h"

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is a write that fails
  signal(SIGXFSZ, SIG_IGN);  // and so is a file beyond the limit of the process

  CLI::App app("TensorHub at work among processes of this machine");
  app.name("th_demo");
  app.require_subcommand(1);
  th::ExitStatus exit = th::ExitStatus::kOk;
  th::AddDemoCommand(&app, &exit);
  return th::RunCommandLine(&app, argc, argv, &exit, th::UsageErrorAsJson(argc, argv));
}
