#include "th/worker/worker_program.h"

#include "CLI/CLI.hpp"
#include "th/client_flags/config_file.h"
#include "th/command_line/exit_status.h"
#include "th/command_line/process_setup.h"
#include "th/command_line/run_command_line.h"
#include "th/version/version.h"
#include "th/worker/command.h"

namespace th {
namespace {

constexpr char kFooter[] =
    "Exit status: 0 done or told to stop, 1 failed, 2 usage, 3 no server, 4 not there, 5 local "
    "files.\n"
    "A second signal ends it at once.";

}  // namespace

int RunWorkerProgram(int argc, char** argv) {
  SetUpProcess(argv[0]);

  CLI::App app(
      "TensorHub worker: publishes a checkpoint folder, or follows a model's latest version");
  app.name("tensorhub_worker");
  app.set_version_flag("--version", "tensorhub_worker " + BuildVersion());
  app.require_subcommand(1);
  app.footer(kFooter);
  AddConfigFile(&app);
  ExitStatus exit = ExitStatus::kOk;
  AddPublishCommand(&app, &exit);
  AddFollowCommand(&app, &exit);
  return RunCommandLine(&app, argc, argv, &exit);
}

}  // namespace th
