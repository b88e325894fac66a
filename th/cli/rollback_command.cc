// th rollback: withdraws every version after one.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/cli/command.h"
#include "th/worker/connection_flags.h"
#include "th/worker/stop_signals.h"

namespace th {
namespace {

struct RollBackFlags {
  ConnectionFlags connection;
  std::string to;
  std::string key;
  Reporter reporter;
};

ExitStatus RunRollBack(const RollBackFlags& flags) {
  const StopSignals stop(static_cast<int>(ExitStatus::kInterrupted));
  const absl::StatusOr<VersionSelector> to = ParseVersionSelector(flags.to);
  if (!to.ok()) return flags.reporter.Fail(to.status(), ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<VersionInfo> version = (*controller)->RollBack(*to, flags.key);
  if (!version.ok()) return flags.reporter.Fail(version.status());
  flags.reporter.Report(
      {{"version", version->label.text()}, {"sequence", version->sequence.ToString()}},
      absl::StrCat(flags.connection.key().ToString(), " is back at version ", version->ToString(),
                   "; every later one is withdrawn"));
  return ExitStatus::kOk;
}

}  // namespace

void AddRollBackCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<RollBackFlags>();
  CLI::App* roll_back = app->add_subcommand(
      "rollback",
      "withdraw every version after one; readers of latest move back at their next update");
  roll_back
      ->add_option("version", flags->to, absl::StrCat("the version to go back to: ", kVersionHelp))
      ->required();
  roll_back->add_option("--key", flags->key,
                        "idempotency key: the same call again has the first one's result");
  AddConnectionFlags(roll_back, &flags->connection);
  flags->reporter.AddFlag(roll_back);
  roll_back->callback([flags, exit] { *exit = RunRollBack(*flags); });
}

}  // namespace th
