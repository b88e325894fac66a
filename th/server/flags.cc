#include "th/server/flags.h"

#include <limits>
#include <map>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/command_line/flag_values.h"
#include "th/command_line/quantity.h"
#include "th/monitoring/listen_address.h"
#include "th/server/event_log.h"

namespace th {
namespace {

// The duration in the text of the flag `name`.
absl::Duration ParseFlagDuration(const std::string& name, const std::string& text) {
  const absl::StatusOr<absl::Duration> parsed = ParseTimeSpan(text);
  if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
  return *parsed;
}

// `Duration` is an absl::Duration, or an optional one. `preset` tells what goes without the flag.
template <typename Duration>
void AddDuration(CLI::App& app, const char* name, Duration& duration, const char* help,
                 const std::string& preset) {
  app.add_option_function<std::string>(
         name,
         [&duration, name](const std::string& text) {
           const absl::Duration parsed = ParseFlagDuration(name, text);
           if (parsed == absl::ZeroDuration()) {
             throw CLI::ValidationError(
                 name, absl::StrCat("'", text,
                                    "' is no duration above zero; give one such as 500ms "
                                    "or 5s"));
           }
           duration = parsed;
         },
         absl::StrCat(help, "  [", preset, "]"))
      ->type_name("DURATION");
}

void AddDuration(CLI::App& app, const char* name, absl::Duration& duration, const char* help) {
  AddDuration(app, name, duration, help, absl::FormatDuration(duration));
}

void CheckSuspectAfter(const RegistryLimits& limits) {
  if (!limits.suspect_after.has_value() || *limits.suspect_after <= limits.lease) return;
  throw CLI::ValidationError(
      "--suspect-after",
      absl::StrCat(absl::FormatDuration(*limits.suspect_after), " is longer than --lease, ",
                   absl::FormatDuration(limits.lease),
                   ": a silent source would be dropped before it is suspected"));
}

// A lease that is shorter than a pause that nobody notices would drop workers that run.
void CheckLease(const RegistryLimits& limits) {
  if (limits.lease >= kLeastLease) return;
  throw CLI::ValidationError(
      "--lease",
      absl::StrCat(absl::FormatDuration(limits.lease), " is too short: give at least ",
                   absl::FormatDuration(kLeastLease),
                   ", as a busy machine holds server or workers up for so long and a worker speaks "
                   "every third of the lease; the server would drop workers that run"));
}

// Puts glog's number in the place of a level's name.
CLI::Validator LogLevel() {
  const auto number_of = [](std::string& level) -> std::string {
    static const std::map<std::string, int> levels = {{"info", 0}, {"warning", 1}, {"error", 2}};
    const auto found = levels.find(level);
    if (found == levels.end()) {
      return absl::StrCat("'", level, "' is no level of the log; give info, warning or error");
    }
    level = absl::StrCat(found->second);
    return "";
  };
  return CLI::Validator(number_of, "");
}

void AddFlags(CLI::App& app, ServerFlags& flags) {
  app.add_option("--listen", flags.listen, "Where workers connect; port 0: the system chooses")
      ->check(CLI::Validator(WhyNoListenAddress, "HOST:PORT"))
      ->capture_default_str();
  app.add_option("--http", flags.http, "Where to show status, metrics and health; default: nowhere")
      ->check(CLI::Validator(WhyNoListenAddress, "HOST:PORT"));
  app.add_option("--state-dir", flags.state_dir, "What must survive the server; created if missing")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--event-log", flags.event_log,
                 "Append what happens to this file too, for `th events --log`; default: nowhere")
      ->type_name("FILE");
  app.add_option_function<std::string>(
         "--event-log-limit",
         [&flags](const std::string& text) {
           const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
           if (!bytes.ok()) {
             throw CLI::ValidationError("--event-log-limit", std::string(bytes.status().message()));
           }
           if (*bytes < kLeastEventLogBytes) {
             throw CLI::ValidationError(
                 "--event-log-limit",
                 absl::StrCat("'", text, "' is no size of at least 1MiB; give one such as 64MiB"));
           }
           flags.event_log_limit_bytes = *bytes;
         },
         "The size of that file and of FILE.1, the one before it, together  [64MiB]")
      ->type_name("SIZE");
  app.add_option("--port-file", flags.port_file, "Write the port here once listening")
      ->type_name("FILE");
  app.add_option("--address-file", flags.address_file,
                 "Write HOST:PORT here once listening, for --server file:FILE of workers; HOST is "
                 "this host's name where --listen takes all addresses")
      ->type_name("FILE");
  app.add_flag("--json", flags.json, "Say where it listens as one JSON object");
  app.add_option("--log-level", flags.log_level, "The least severity that is logged")
      ->transform(LogLevel())
      ->type_name("info|warning|error")
      ->default_str("info");
  app.add_flag("--log-json", flags.log_json, "Log as one JSON object a line");
  app.add_option("--end-with-parent", flags.parent,
                 "End as by SIGTERM once the parent process, which has this PID, has ended")
      ->check(CLI::Range(1, std::numeric_limits<pid_t>::max()))
      ->type_name("PID");
  AddDuration(app, "--lease", flags.limits.lease, "Silence after which a worker is dropped");
  AddDuration(app, "--suspect-after", flags.limits.suspect_after,
              "Silence after which a source is a last resort", "half the lease");
  AddDuration(app, "--recovery-window", flags.limits.recovery_window,
              "How long a restarted server waits for workers to announce what they hold");
  app.add_option_function<std::string>(
         "--forget-after",
         [&flags](const std::string& text) {
           const absl::Duration after = ParseFlagDuration("--forget-after", text);
           flags.limits.forget_after =
               after == absl::ZeroDuration() ? absl::InfiniteDuration() : after;
         },
         "How long a model without workers, pins and retention policy stays known; 0: never "
         "forgotten  [168h]")
      ->type_name("DURATION");
  app.add_option("--max-sources", flags.limits.scheduler.max_sources,
                 "Sources that one reader pulls from at once, where a further one adds an uplink")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--max-readers-per-source", flags.limits.scheduler.max_readers_per_source,
                 "Readers of one source; beyond it only when there is no other")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace

ParsedFlags ParseServerFlags(int argc, const char* const* argv, const std::string& version,
                             const AddServerFlags& more_flags) {
  ParsedFlags parsed;
  CLI::App app("The reference server of TensorHub: knows who holds which version of the weights.",
               "tensorhub_server");
  app.set_version_flag("--version", absl::StrCat("tensorhub_server ", version));
  AddFlags(app, parsed.flags);
  if (more_flags) more_flags(app, parsed.flags);
  CheckEveryValue(app);
  // The library reports by exceptions; they end here.
  try {
    app.parse(argc, argv);
    CheckLease(parsed.flags.limits);
    CheckSuspectAfter(parsed.flags.limits);
    if (app.count("--event-log-limit") > 0 && parsed.flags.event_log.empty()) {
      throw CLI::ValidationError("--event-log-limit", "is of --event-log, which is not given");
    }
  } catch (const CLI::ParseError& error) {
    parsed.exit = app.exit(error) == 0 ? ServerExit::kClean : ServerExit::kUsage;
  }
  return parsed;
}

}  // namespace th
