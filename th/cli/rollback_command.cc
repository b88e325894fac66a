// th rollback: withdraws every version after one.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/cli/commands.h"
#include "th/cli/rollback_outcome.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

struct RollBackFlags {
  ConnectionFlags connection;
  std::string to;
  std::string key;
  Reporter reporter;
};

ExitStatus RunRollBack(const RollBackFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> to = ParseVersionSelector(flags.to);
  if (!to.ok()) return flags.reporter.Fail(to.status(), ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<Catalog> before = (*controller)->List();
  if (!before.ok()) return flags.reporter.Fail(before.status());
  const absl::StatusOr<VersionInfo> version = (*controller)->RollBack(*to, flags.key);
  if (!version.ok()) return flags.reporter.Fail(version.status());
  const absl::Status fresh = CheckKeyIsOfThis(*to, *version, flags.key);
  if (!fresh.ok()) return flags.reporter.Fail(fresh);
  const absl::StatusOr<Catalog> after = (*controller)->List();
  if (!after.ok()) return flags.reporter.Fail(after.status());
  const ModelKey key = flags.connection.key();
  const RollBackOutcome outcome = OutcomeOf(*before, *after, key, *version);
  const bool held = IsHeld(*after, key, version->sequence);
  flags.reporter.Report(
      {{"version", version->label.text()},
       {"sequence", version->sequence.ToString()},
       {"withdrawn", outcome.withdrawn},
       {"standing", outcome.standing},
       {"held", held}},
      absl::StrCat(TextOf(outcome, key, *version),
                   held ? "" : "; nobody holds it: it has to be published again"));
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
                        "idempotency key: the same call again has the first one's result and does "
                        "nothing, also after a later publish");
  AddConnectionFlags(roll_back, &flags->connection);
  flags->reporter.AddFlag(roll_back);
  roll_back->callback([flags, exit] { *exit = RunRollBack(*flags); });
}

}  // namespace th
