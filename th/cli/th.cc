// The command th.
#include <csignal>
#include <string>

#include "CLI/CLI.hpp"
#include "glog/logging.h"
#include "th/cli/command.h"
#include "th/version/version.h"
#include "th/worker/command_line.h"

namespace {

constexpr char kFooter[] =
    "Exit status: 0 done, 1 failed or different, 2 usage, 3 no server, 4 not there, 5 local files, "
    "130 "
    "interrupted.\nth COMMAND --help says more.";

}  // namespace

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is a write that fails

  CLI::App app("TensorHub: who holds which weight version, and how to get it");
  app.name("th");
  app.set_version_flag("--version", "th " + th::BuildVersion());
  app.require_subcommand(1);
  app.footer(kFooter);
  th::ExitStatus exit = th::ExitStatus::kOk;
  for (const auto add :
       {&th::AddDemoCommand, &th::AddListCommand, &th::AddDescribeCommand, &th::AddPullCommand,
        &th::AddVerifyCommand, &th::AddRollBackCommand, &th::AddRetentionCommands,
        &th::AddBenchCommand, &th::AddControlledRankCommand}) {
    add(&app, &exit);
  }
  return th::RunCommandLine(&app, argc, argv, &exit);
}
