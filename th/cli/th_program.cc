#include "th/cli/th_program.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "th/cli/commands.h"
#include "th/cli/live/live_commands.h"
#include "th/client_flags/config_file.h"
#include "th/command_line/process_setup.h"
#include "th/command_line/reporter.h"
#include "th/command_line/run_command_line.h"
#include "th/demo/demo_command.h"
#include "th/version/version.h"

namespace th {
namespace {

constexpr char kFooter[] =
    "Exit status: 0 done, 1 failed or different, 2 usage, 3 no server, 4 not there, 5 local files, "
    "130 "
    "interrupted.\nth COMMAND --help says more.";

// Null: there is none of this name.
const CLI::App* FindCommand(const CLI::App* app, const std::string& name) {
  for (const CLI::App* each : app->get_subcommands([](const CLI::App*) { return true; })) {
    if (each->get_name() == name) return each;
  }
  return nullptr;
}

// `th help`, `th help bench fanout`: the same as --help, for who does not think of flags.
void AddHelpCommand(CLI::App* app, ExitStatus* exit) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* help = app->add_subcommand("help", "what th can do, or one of its commands");
  help->add_option("command", *words, "the command in question: pull, bench fanout");
  help->callback([app, words, exit] {
    const CLI::App* shown = app;
    std::string name = "th";
    for (const std::string& word : *words) {
      shown = FindCommand(shown, word);
      if (shown == nullptr) {
        std::cerr << name << " has no command " << word << "; "
                  << (name == "th" ? "th help" : name + " --help") << " lists them\n";
        *exit = ExitStatus::kUsage;
        return;
      }
      name += " " + word;
    }
    // App::help would show the command that was given: this one.
    std::cout << app->get_formatter()->make_help(shown, name, CLI::AppFormatMode::Normal)
              << std::flush;
  });
}

}  // namespace

int RunTh(int argc, char** argv) {
  SetUpProcess(argv[0]);

  CLI::App app("TensorHub: who holds which weight version, and how to get it");
  app.name("th");
  app.set_version_flag("--version", "th " + BuildVersion());
  app.require_subcommand(1);
  app.footer(kFooter);
  AddConfigFile(&app);
  ExitStatus exit = ExitStatus::kOk;
  for (const auto add :
       {&AddDemoCommand, &AddListCommand, &AddDescribeCommand, &AddPullCommand, &AddAttachCommand,
        &AddVerifyCommand, &AddRollBackCommand, &AddTopCommand, &AddEventsCommand, &AddWaitCommand,
        &AddConfigCommand, &AddRetentionCommands, &AddForgetCommand, &AddDoctorCommand,
        &AddBenchCommand, &AddSimulateCommand, &AddHelpCommand}) {
    add(&app, &exit);
  }
  return RunCommandLine(&app, argc, argv, &exit, UsageErrorAsJson(argc, argv));
}

}  // namespace th
