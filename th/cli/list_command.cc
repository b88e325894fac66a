// th list: models, versions and who holds them.
#include <memory>

#include "th/cli/catalog_view.h"
#include "th/cli/commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

struct ListFlags {
  ConnectionFlags connection{.run = "", .model = ""};
  Reporter reporter;
};

ExitStatus RunList(const ListFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<Catalog> catalog = (*controller)->List();
  if (!catalog.ok()) return flags.reporter.Fail(catalog.status());
  const absl::Status named = CheckNamed(*catalog, flags.connection.key());
  if (!named.ok()) return flags.reporter.Fail(named);
  flags.reporter.Report(ToJson(*catalog), CatalogTable(*catalog));
  return ExitStatus::kOk;
}

}  // namespace

void AddListCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* list = app->add_subcommand(
      "list", "models, versions and who holds them; all runs and models unless named");
  AddConnectionFlags(list, &flags->connection);
  flags->reporter.AddFlag(list);
  list->callback([flags, exit] { *exit = RunList(*flags); });
}

}  // namespace th
