// th wait: until a version is published, or until groups hold it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "th/cli/commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

struct WaitFlags {
  ConnectionFlags connection;
  std::string version;
  std::vector<std::string> groups;
  absl::Duration timeout = absl::Hours(1);
  Reporter reporter;
};

std::string LackingText(const AppliedResult::Lacking& lacking) {
  return absl::StrCat(lacking.group, " ", lacking.why);
}

nlohmann::json ToJson(const AppliedResult& result) {
  nlohmann::json lacking = nlohmann::json::array();
  for (const AppliedResult::Lacking& one : result.lacking) {
    lacking.push_back({{"group", one.group}, {"why", one.why}});
  }
  return {{"version", result.version.label.text()},
          {"sequence", result.version.sequence.ToString()},
          {"applied", result.applied},
          {"lacking", std::move(lacking)}};
}

std::string TextOf(const AppliedResult& result, const WaitFlags& flags) {
  const std::string version = absl::StrCat("version ", result.version.ToString());
  if (flags.groups.empty()) return absl::StrCat(version, " is published");
  const std::string held =
      result.applied.empty() ? "nobody of those named" : absl::StrJoin(result.applied, ", ");
  if (result.all()) return absl::StrCat(version, " is held by ", held);
  std::vector<std::string> lacking;
  for (const AppliedResult::Lacking& one : result.lacking) lacking.push_back(LackingText(one));
  return absl::StrCat(version, " is held by ", held, " after ", absl::FormatDuration(flags.timeout),
                      " (--timeout); ", absl::StrJoin(lacking, "; "));
}

absl::StatusOr<AppliedResult> Wait(Controller& controller, const VersionSelector& selector,
                                   const WaitFlags& flags) {
  if (!flags.groups.empty()) {
    return controller.WaitApplied(selector, flags.groups, flags.timeout);
  }
  TH_ASSIGN_OR_RETURN(const VersionInfo version, controller.WaitFor(selector, flags.timeout));
  return AppliedResult{.version = version};
}

ExitStatus RunWait(const WaitFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> selector = ParseVersionSelector(flags.version);
  if (!selector.ok()) return flags.reporter.Fail(selector.status(), ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<AppliedResult> result = Wait(**controller, *selector, flags);
  if (!result.ok()) return flags.reporter.Fail(result.status());
  flags.reporter.Report(ToJson(*result), TextOf(*result, flags));
  return result->all() ? ExitStatus::kOk : ExitStatus::kFailed;
}

}  // namespace

void AddWaitCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<WaitFlags>();
  CLI::App* wait = app->add_subcommand(
      "wait", "until a version is published, or until groups hold it on all their ranks");
  wait->add_option("version", flags->version, absl::StrCat("the version: ", kVersionHelp))
      ->required();
  wait->add_option("--groups", flags->groups,
                   "the groups that are to hold it, with commas; without it that it is published "
                   "is enough")
      ->delimiter(',')
      ->check(IsName("group"));
  AddDurationFlag(wait, "--timeout", &flags->timeout, kTimeouts, "the longest time, like 10m");
  AddConnectionFlags(wait, &flags->connection);
  flags->reporter.AddFlag(wait);
  wait->callback([flags, exit] { *exit = RunWait(*flags); });
}

}  // namespace th
