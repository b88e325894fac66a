// th config: which server, run and model stand where no flag is given, and who says so.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/cli/commands.h"
#include "th/client/server_list.h"
#include "th/client_flags/config_file.h"
#include "th/command_line/reporter.h"
#include "th/command_line/text_table.h"

namespace th {
namespace {

ExitStatus RunConfig(const Reporter& reporter) {
  const absl::StatusOr<ConfigFile> file = ReadConfigFile();
  if (!file.ok()) return reporter.Fail(file.status(), ExitStatus::kUsage);
  nlohmann::json object = {{"file", file->path}, {"settings", nlohmann::json::array()}};
  TextTable table({{"SETTING"}, {"VALUE"}, {"FROM"}});
  std::string problem;  // that every command would have with it
  for (const SettingInForce& setting : SettingsInForce(*file)) {
    const absl::Status usable =
        setting.name == "server" ? CheckServers(setting.value) : absl::OkStatus();
    if (!usable.ok()) problem = absl::StrCat("server: ", usable.message());
    table.AddRow({setting.name, setting.value, setting.from});
    object["settings"].push_back(
        {{"name", setting.name}, {"value", setting.value}, {"from", setting.from}});
  }
  std::string text =
      absl::StrCat(table.ToString(), "file: ", file->path.empty() ? "none is there" : file->path);
  if (!problem.empty()) {
    object["problem"] = problem;
    absl::StrAppend(&text, "\nproblem: ", problem);
  }
  reporter.Report(object, text);
  return problem.empty() ? ExitStatus::kOk : ExitStatus::kUsage;
}

}  // namespace

void AddConfigCommand(CLI::App* app, ExitStatus* exit) {
  auto reporter = std::make_shared<Reporter>();
  CLI::App* config = app->add_subcommand(
      "config",
      "which server, run and model stand where no flag is given: from TH_SERVER, TH_RUN and "
      "TH_MODEL, else from the file that TH_CONFIG names, ~/.config/tensorhub/config.toml or "
      "/etc/tensorhub/config.toml");
  reporter->AddFlag(config);
  config->callback([reporter, exit] { *exit = RunConfig(*reporter); });
}

}  // namespace th
