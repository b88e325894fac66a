// th describe: one version or one group in detail.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/cli/catalog_view.h"
#include "th/cli/commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

struct DescribeFlags {
  ConnectionFlags connection;
  std::string what = "latest";
  Reporter reporter;
};

ExitStatus ReportGroup(const DescribeFlags& flags, const CatalogModel& model) {
  const absl::StatusOr<std::string> text = DescribeGroup(model, flags.what);
  if (!text.ok()) return flags.reporter.Fail(text.status());
  flags.reporter.Report(*GroupToJson(model, flags.what), *text);
  return ExitStatus::kOk;
}

// A version's name goes before a group's of the same name.
ExitStatus Report(const DescribeFlags& flags, const CatalogModel& model) {
  const absl::StatusOr<VersionSelector> selector = ParseVersionSelector(flags.what);
  if (!selector.ok()) return ReportGroup(flags, model);
  const absl::StatusOr<const CatalogVersion*> version = SelectVersion(model, *selector);
  if (!version.ok()) return ReportGroup(flags, model);
  flags.reporter.Report(ToJson(**version), DescribeVersion(model, **version));
  return ExitStatus::kOk;
}

// INVALID_ARGUMENT: neither a version nor a group can have this name.
absl::Status CheckName(const std::string& what) {
  const absl::Status version = ParseVersionSelector(what).status();
  const bool number = absl::StartsWith(what, "#");  // a group of such a name is none that is meant
  return !number && ValidateName("group", what).ok() ? absl::OkStatus() : version;
}

ExitStatus RunDescribe(const DescribeFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  const absl::Status name = CheckName(flags.what);
  if (!name.ok()) return flags.reporter.Fail(name, ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<Catalog> catalog = (*controller)->List();
  if (!catalog.ok()) return flags.reporter.Fail(catalog.status());
  const ModelKey key = flags.connection.key();
  const CatalogModel* model = FindModel(*catalog, key);
  if (model == nullptr) {
    return flags.reporter.Fail(absl::NotFoundError(
        absl::StrCat("the server knows nothing of ", key.ToString(), "; see th list")));
  }
  return Report(flags, *model);
}

}  // namespace

void AddDescribeCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<DescribeFlags>();
  CLI::App* describe = app->add_subcommand(
      "describe", "one version or group in detail: its ranks, and who fills from whom");
  describe->add_option("what", flags->what, absl::StrCat("a group, or a version: ", kVersionHelp))
      ->capture_default_str();
  AddConnectionFlags(describe, &flags->connection);
  flags->reporter.AddFlag(describe);
  describe->callback([flags, exit] { *exit = RunDescribe(*flags); });
}

}  // namespace th
