#include "th/client_flags/config_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/client_flags/connection_flags.h"

namespace th {
namespace {

constexpr char kFileVariable[] = "TH_CONFIG";
constexpr char kFileOfHost[] = "/etc/tensorhub/config.toml";
constexpr char kFileInFolder[] = "tensorhub/config.toml";
constexpr size_t kMaxFileBytes = size_t{64} << 10;

std::vector<Setting> AllSettings() {
  const ConnectionFlags defaults;
  return {{.name = "server", .variable = "TH_SERVER", .default_value = defaults.server},
          {.name = "run", .variable = "TH_RUN", .default_value = defaults.run},
          {.name = "model", .variable = "TH_MODEL", .default_value = defaults.model}};
}

// Empty: the variable is not set, or empty, which counts as that.
std::string Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// "server, run, model".
std::string NamesOf(const std::vector<Setting>& settings) {
  return absl::StrJoin(settings, ", ", [](std::string* out, const Setting& setting) {
    absl::StrAppend(out, setting.name);
  });
}

absl::Status Take(const CLI::ConfigItem& item, std::vector<Setting>& settings) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& setting) {
    return setting.name == item.fullname();
  });
  if (found == settings.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", item.fullname(), "' is not a setting; a configuration file may set ",
                     NamesOf(settings)));
  }
  if (item.inputs.size() != 1 || item.inputs[0].empty()) {
    return absl::InvalidArgumentError(absl::StrCat(item.name, " takes one value, as in ", item.name,
                                                   " = \"", found->default_value, "\""));
  }
  found->in_file = item.inputs[0];
  return absl::OkStatus();
}

// Entries of `[section]` come between two of these, which say nothing themselves.
bool IsMark(const CLI::ConfigItem& item) { return item.name == "++" || item.name == "--"; }

// True for a file that is not there, as far as this user can see: it may have another user's HOME,
// whose folders it cannot enter. `error`: of opening it.
bool IsAbsent(const std::string& path, int error) {
  struct stat found {};
  return error == ENOENT || error == ENOTDIR ||
         (error == EACCES && stat(path.c_str(), &found) != 0);
}

// NOT_FOUND, UNKNOWN with the system's word, or INVALID_ARGUMENT for more than kMaxFileBytes.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    const int error = errno;
    const std::string why = absl::StrCat(path, ": ", std::strerror(error));
    return IsAbsent(path, error) ? absl::NotFoundError(why) : absl::UnknownError(why);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() <= kMaxFileBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": more than ", kMaxFileBytes, " bytes are no configuration file"));
}

std::vector<std::string> UsualPlaces() {
  std::vector<std::string> places;
  const std::string folder = Variable("XDG_CONFIG_HOME"), home = Variable("HOME");
  if (!folder.empty()) {
    places.push_back(absl::StrCat(folder, "/", kFileInFolder));
  } else if (!home.empty()) {
    places.push_back(absl::StrCat(home, "/.config/", kFileInFolder));
  }
  places.push_back(kFileOfHost);
  return places;
}

}  // namespace

absl::StatusOr<ConfigFile> ParseConfigFile(const std::string& path, const std::string& text) {
  ConfigFile file{.path = path, .settings = AllSettings()};
  std::istringstream lines(text);
  // The library reports by exceptions; they end here.
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
      if (IsMark(item)) continue;
      if (const absl::Status taken = Take(item, file.settings); !taken.ok()) {
        return absl::Status(taken.code(), absl::StrCat(path, ": ", taken.message()));
      }
    }
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  return file;
}

absl::StatusOr<ConfigFile> ReadConfigFile() {
  const ConfigFile none{.settings = AllSettings()};
  if (const char* const named = std::getenv(kFileVariable); named != nullptr) {
    if (*named == '\0') return none;
    const absl::StatusOr<std::string> text = ReadText(named);
    if (text.ok()) return ParseConfigFile(named, *text);
    const std::string remedy = absl::IsNotFound(text.status()) ? "write it" : "mend it";
    return absl::Status(
        text.status().code(),
        absl::StrCat(text.status().message(), " (the environment sets ", kFileVariable,
                     " to it): ", remedy, ", or unset ", kFileVariable));
  }
  for (const std::string& path : UsualPlaces()) {
    const absl::StatusOr<std::string> text = ReadText(path);
    if (text.ok()) return ParseConfigFile(path, *text);
    if (!absl::IsNotFound(text.status())) return text.status();
  }
  return none;
}

void SetEnvironmentFrom(const ConfigFile& file) {
  for (const Setting& setting : file.settings) {
    if (setting.in_file.empty() || !Variable(setting.variable).empty()) continue;
    setenv(setting.variable.c_str(), setting.in_file.c_str(), /*overwrite=*/1);
  }
}

std::vector<SettingInForce> SettingsInForce(const ConfigFile& file) {
  std::vector<SettingInForce> in_force;
  for (const Setting& setting : file.settings) {
    const std::string variable = Variable(setting.variable);
    const bool of_file =
        !setting.in_file.empty() && (variable.empty() || variable == setting.in_file);
    if (of_file) {
      in_force.push_back({setting.name, setting.in_file, file.path});
    } else if (!variable.empty()) {
      in_force.push_back({setting.name, variable, setting.variable});
    } else {
      in_force.push_back({setting.name, setting.default_value, "default"});
    }
  }
  return in_force;
}

void AddConfigFile(CLI::App* app) {
  const auto read = std::make_shared<absl::Status>();
  app->preparse_callback([read](size_t) {
    const absl::StatusOr<ConfigFile> file = ReadConfigFile();
    *read = file.status();
    if (file.ok()) SetEnvironmentFrom(*file);
  });
  // Only now, so that --help helps whatever the file says.
  app->parse_complete_callback([read] {
    if (read->ok()) return;
    throw CLI::ConfigError(std::string(read->message()), CLI::ExitCodes::ConfigError);
  });
}

}  // namespace th
