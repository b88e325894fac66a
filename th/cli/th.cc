// The command th.
#include <csignal>
#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "glog/logging.h"
#include "th/cli/command.h"
#include "th/cli/live/live_commands.h"
#include "th/version/version.h"
#include "th/worker/command_line.h"

namespace {

constexpr char kFooter[] =
    "Exit status: 0 done, 1 failed or different, 2 usage, 3 no server, 4 not there, 5 local files, "
    "130 "
    "interrupted.\nth COMMAND --help says more.";

// `th help`, `th help pull`: the same as --help, for who does not think of flags.
void AddHelpCommand(CLI::App* app, th::ExitStatus* exit) {
  auto command = std::make_shared<std::string>();
  CLI::App* help = app->add_subcommand("help", "what th can do, or one of its commands");
  help->add_option("command", *command, "the command in question");
  help->callback([app, command, exit] {
    const CLI::App* shown = command->empty() ? app : nullptr;
    for (const CLI::App* each : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (each->get_name() == *command) shown = each;
    }
    if (shown == nullptr) {
      std::cerr << "th has no command " << *command << "; th help lists them\n";
      *exit = th::ExitStatus::kUsage;
      return;
    }
    std::cout << shown->help(shown == app ? "" : app->get_name()) << std::flush;
  });
}

}  // namespace

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is a write that fails
  signal(SIGXFSZ, SIG_IGN);  // and so is a file beyond the limit of the process

  CLI::App app("TensorHub: who holds which weight version, and how to get it");
  app.name("th");
  app.set_version_flag("--version", "th " + th::BuildVersion());
  app.require_subcommand(1);
  app.footer(kFooter);
  th::ExitStatus exit = th::ExitStatus::kOk;
  for (const auto add :
       {&th::AddDemoCommand, &th::AddListCommand, &th::AddDescribeCommand, &th::AddPullCommand,
        &th::AddVerifyCommand, &th::AddRollBackCommand, &th::AddTopCommand, &th::AddEventsCommand,
        &th::AddRetentionCommands, &th::AddBenchCommand, &th::AddSimulateCommand,
        &th::AddControlledRankCommand, &AddHelpCommand}) {
    add(&app, &exit);
  }
  return th::RunCommandLine(&app, argc, argv, &exit);
}
