// th list: models, versions and who holds them.
#include <cstddef>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
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
  std::optional<size_t> limit;  // none: all versions
  bool all = false;
};

ExitStatus RunList(const ListFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  absl::StatusOr<Catalog> catalog = (*controller)->List();
  if (!catalog.ok()) return flags.reporter.Fail(catalog.status());
  const absl::Status named = CheckNamed(*catalog, flags.connection.key());
  if (!named.ok()) return flags.reporter.Fail(named);
  const size_t left_out = flags.limit ? LimitVersions(*flags.limit, *catalog) : 0;
  nlohmann::json report = ToJson(*catalog);
  report["left_out"] = left_out;
  flags.reporter.Report(report,
                        absl::StrCat(CatalogTable(*catalog),
                                     left_out == 0 ? ""
                                                   : absl::StrCat(left_out,
                                                                  " older versions are left out "
                                                                  "(--limit)\n")));
  return ExitStatus::kOk;
}

}  // namespace

void AddListCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* list = app->add_subcommand(
      "list", "models, versions and who holds them; all runs and models unless named");
  AddConnectionFlags(list, &flags->connection);
  list->add_option("--limit", flags->limit, "the newest versions of each model, so many of them")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("INT");
  list->add_flag("--all", flags->all,
                 "every run and model, whatever TH_RUN, TH_MODEL and the configuration file name");
  flags->reporter.AddFlag(list);
  list->callback([flags, exit] {
    if (flags->all) flags->connection.run = flags->connection.model = "";
    *exit = RunList(*flags);
  });
}

}  // namespace th
