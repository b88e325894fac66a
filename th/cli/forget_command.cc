// th forget: the end of a model that nobody uses any more.
#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/cli/catalog_view.h"
#include "th/cli/commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

struct ForgetFlags {
  ConnectionFlags connection;
  Reporter reporter;
};

ExitStatus RunForget(const ForgetFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<Catalog> before = (*controller)->List();
  if (!before.ok()) return flags.reporter.Fail(before.status());
  const ModelKey key = flags.connection.key();
  const absl::Status known = CheckNamed(*before, key);
  if (!known.ok()) return flags.reporter.Fail(known);
  const absl::Status forgotten = (*controller)->Forget();
  if (!forgotten.ok()) return flags.reporter.Fail(forgotten);
  size_t versions = 0, pins = 0;
  for (const CatalogModel& model : before->models) {
    versions += model.versions.size();
    for (const CatalogVersion& version : model.versions) pins += version.pins.size();
  }
  flags.reporter.Report(
      {{"run", key.run}, {"model", key.model}, {"versions", versions}, {"pins", pins}},
      absl::StrCat(key.ToString(), " is forgotten, with the record of ", versions,
                   versions == 1 ? " version" : " versions",
                   pins == 0 ? "" : absl::StrCat(" and ", pins, pins == 1 ? " pin" : " pins")));
  return ExitStatus::kOk;
}

}  // namespace

void AddForgetCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<ForgetFlags>();
  CLI::App* forget = app->add_subcommand(
      "forget",
      "drop the server's record of a model that no worker uses: its versions, pins and policies");
  AddConnectionFlags(forget, &flags->connection);
  flags->reporter.AddFlag(forget);
  forget->callback([flags, exit] { *exit = RunForget(*flags); });
}

}  // namespace th
