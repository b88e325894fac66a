// The configuration file of th and tensorhub_worker: each of its settings counts where neither its
// flag nor its environment variable is given.
//
//   # /etc/tensorhub/config.toml
//   server = "10.0.0.1:7077"     # TH_SERVER
//   run = "r1"                   # TH_RUN
//   model = "qwen3-8b"           # TH_MODEL
//
// The first of these files that is there is read, and no other: $TH_CONFIG, which has to be there;
// $XDG_CONFIG_HOME/tensorhub/config.toml (~/.config without the variable);
// /etc/tensorhub/config.toml. TH_CONFIG with an empty value: none is read. One below a folder that
// this user may not enter is not there.
//
// Not thread-safe where the environment is changed at the same time.
#ifndef TH_CLIENT_FLAGS_CONFIG_FILE_H_
#define TH_CLIENT_FLAGS_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace th {

// A setting: in the file, by default, and the environment variable that overrides both.
struct Setting {
  std::string name;  // "server": that of the flag
  std::string variable;
  std::string default_value;
  std::string in_file;  // empty: the file does not set it
};

struct ConfigFile {
  std::string path;  // empty: there is none
  // All that a file may set, whether it does or not.
  std::vector<Setting> settings;
};

// The settings of a file at `path` with that text. INVALID_ARGUMENT naming the path and what is
// wrong: it is no TOML of this kind, a setting is not known, or has not exactly one value.
absl::StatusOr<ConfigFile> ParseConfigFile(const std::string& path, const std::string& text);

// Finds and reads it. NOT_FOUND: TH_CONFIG names a file that is not there; UNKNOWN: one cannot be
// read; INVALID_ARGUMENT: it has more than 64 KiB; else as ParseConfigFile.
absl::StatusOr<ConfigFile> ReadConfigFile();

// Sets the variables that the file has and the environment has not, or has empty: the flags take
// them from there. Before any thread is started.
void SetEnvironmentFrom(const ConfigFile& file);

// The value of a setting where its flag is not given, and its source.
struct SettingInForce {
  std::string name;
  std::string value;
  std::string from;  // a variable, the path of the file, or "default"
};
// The same before and after SetEnvironmentFrom: a variable that equals the file's value is taken
// for the file's.
std::vector<SettingInForce> SettingsInForce(const ConfigFile& file);

// Has `app` read the file and set the environment from it before it parses. A bad file is a usage
// error, but for --help and --version. For a program's own app, not for a subcommand.
void AddConfigFile(CLI::App* app);

}  // namespace th

#endif  // TH_CLIENT_FLAGS_CONFIG_FILE_H_
