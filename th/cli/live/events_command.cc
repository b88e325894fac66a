// th events: what happened of late, and the way of one operation.
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "th/cli/catalog_view.h"
#include "th/cli/live/event_lines.h"
#include "th/cli/live/live_commands.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"
#include "th/server/event_filter.h"
#include "th/server/event_log_lines.h"

namespace th {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(2);
constexpr DurationRange kIntervals = {absl::Milliseconds(50), absl::Hours(1)};

struct EventsFlags {
  ConnectionFlags connection{.run = "", .model = ""};
  Reporter reporter;
  std::string id;
  std::string log;  // the file to read in the place of asking a server; empty: ask
  bool follow = false;
  absl::Duration interval = absl::Milliseconds(500);
};

// Returns false when stdout is closed.
bool Print(const std::string& line) {
  return std::fwrite(line.data(), 1, line.size(), stdout) == line.size();
}

// Prints a line for each event. Returns false when stdout is closed.
bool PrintLines(const RecentEvents& events, const Reporter& reporter) {
  for (const RecentEvent& event : events.events) {
    if (!Print((reporter.json() ? ToJson(event).dump() : EventLine(event)) + "\n")) return false;
  }
  return std::fflush(stdout) == 0;
}

// True unless the event is the server's own and a run or model is named.
bool IsAskedFor(const RecentEvent& event, const ModelKey& named) {
  return event.key != ModelKey() || named == ModelKey();
}

// The file's identity on its disk; zeros where there is none.
std::pair<dev_t, ino_t> IdentityOf(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

// The log and the file before it, older first, as they lie beside one another: a server that
// rotates them meanwhile would have hidden one of them.
std::array<std::ifstream, 2> OpenLog(const std::string& path) {
  constexpr int kMaxRotations = 8;  // in the time that opening two files takes
  std::array<std::ifstream, 2> files;
  for (int i = 0; i < kMaxRotations; ++i) {
    const auto before = IdentityOf(path);
    files = {std::ifstream(absl::StrCat(path, ".1")), std::ifstream(path)};
    if (IdentityOf(path) == before) break;
  }
  return files;
}

// Shows what a server has written to its --event-log, the oldest first, whether it runs or not.
ExitStatus ShowLog(const EventsFlags& flags, EventId id) {
  const EventFilter wanted{.run = flags.connection.run, .model = flags.connection.model, .id = id};
  std::array<std::ifstream, 2> files = OpenLog(flags.log);
  const bool is_there =
      (files[0].is_open() || files[1].is_open()) && !std::filesystem::is_directory(flags.log);
  if (!is_there) {
    return flags.reporter.Fail(
        absl::NotFoundError(absl::StrCat("no file ", flags.log,
                                         " can be read; tensorhub_server --event-log writes one")),
        ExitStatus::kLocalFiles);
  }
  bool found = false;
  std::string before;  // the server's own events before the first that is asked for
  uint64_t unreadable = 0;
  for (std::ifstream& file : files) {
    for (std::string line; std::getline(file, line);) {
      const absl::StatusOr<LoggedEvent> logged = ParseEventLogLine(line);
      if (!logged.ok()) {
        if (!line.empty()) ++unreadable;
        continue;
      }
      if (!Matches(logged->event, wanted)) continue;
      found = found || IsAskedFor(logged->event, flags.connection.key());
      before += flags.reporter.json() ? EventLogLine(*logged) : EventLine(logged->event) + "\n";
      if (!found) continue;
      if (!Print(std::exchange(before, ""))) return ExitStatus::kOk;  // stdout is closed
    }
  }
  LOG_IF(WARNING, unreadable > 0) << unreadable << " lines of " << flags.log
                                  << " and the file before it are no events and were left out; a "
                                     "server that is killed while it writes leaves such a line";
  if (found) return ExitStatus::kOk;
  return flags.reporter.Fail(absl::NotFoundError(
      absl::StrCat(flags.log, " has no event of the run, model or id that is named")));
}

// Prints events as they happen, until a stop is requested or stdout is closed.
void Follow(Controller& controller, const EventsFlags& flags, EventId id, StopSignals& stop) {
  Epoch epoch;
  uint64_t after = 0;
  RecentEvent shown;  // the last one
  bool away = false;
  do {
    absl::StatusOr<RecentEvents> events = controller.Events(after, id, kAskTimeout);
    if (events.ok() && events->epoch != epoch && after > 0) {
      // A server that was started again counts its events anew; one that raised its epoch does not.
      events = controller.Events(0, id, kAskTimeout);
      if (events.ok() && !DropShown(shown, &events->events)) {
        LOG(WARNING) << "the server has restarted; what it had remembered is gone";
      }
    }
    if (!events.ok()) {
      LOG_IF(WARNING, !std::exchange(away, true))
          << "the server does not answer: " << events.status().message();
      continue;
    }
    LOG_IF(WARNING, std::exchange(away, false)) << "the server answers again";
    LOG_IF(WARNING, events->lost) << "some events were forgotten before they could be shown";
    epoch = events->epoch;
    after = events->last;
    if (!PrintLines(*events, flags.reporter)) return;
    if (!events->events.empty()) shown = std::move(events->events.back());
  } while (!stop.WaitFor(flags.interval));
}

// NOT_FOUND: the server remembers no event of `id`, or the named run or model has neither events
// nor an entry in the catalog. Events suffice, for they outlive a run that has ended. Errors of
// Controller::List otherwise.
absl::Status CheckNamedExists(Controller& controller, const RecentEvents& events, EventId id,
                              const ModelKey& key) {
  const auto is_asked_for = [&key](const RecentEvent& event) { return IsAskedFor(event, key); };
  if (absl::c_any_of(events.events, is_asked_for)) return absl::OkStatus();
  if (!id.empty()) return absl::NotFoundError(WhyUnknown(id, events.epoch));
  if (key == ModelKey()) return absl::OkStatus();
  const absl::StatusOr<Catalog> catalog = controller.List();
  return catalog.ok() ? CheckNamed(*catalog, key) : catalog.status();
}

ExitStatus RunEvents(const EventsFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  EventId id;
  if (!flags.id.empty()) {
    const absl::StatusOr<EventId> parsed = ParseEventId(flags.id);
    if (!parsed.ok()) return flags.reporter.Fail(parsed.status(), ExitStatus::kUsage);
    id = *parsed;
  }
  if (!flags.log.empty()) {
    if (flags.follow) {
      return flags.reporter.Fail(
          absl::InvalidArgumentError("--follow asks a server, and --log reads a file; give one of "
                                     "the two (tail -F follows a file)"),
          ExitStatus::kUsage);
    }
    return ShowLog(flags, id);
  }
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<RecentEvents> events = (*controller)->Events(0, id);
  if (!events.ok()) return flags.reporter.Fail(events.status());
  const absl::Status there = CheckNamedExists(**controller, *events, id, flags.connection.key());
  if (flags.follow) {
    LOG_IF(WARNING, !there.ok()) << there.message();  // it may come yet
    stop.HoldOff();
    Follow(**controller, flags, id, stop);
    return ExitStatus::kOk;
  }
  if (!there.ok()) return flags.reporter.Fail(there);
  flags.reporter.Report(ToJson(*events, id), EventTable(*events));
  LOG_IF(INFO, events->events.size() == kMaxEventsOfAnswer)
      << "these are the newest " << kMaxEventsOfAnswer
      << "; --run, --model and --id narrow them, and tensorhub_server --event-log keeps all";
  return ExitStatus::kOk;
}

}  // namespace

void AddEventsCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<EventsFlags>();
  CLI::App* events = app->add_subcommand(
      "events",
      "what happened of late: publications, updates, lost sources, expired leases; what befell the "
      "server is shown with --run and --model too");
  AddConnectionFlags(events, &flags->connection);
  events->add_option("--id", flags->id,
                     "of one operation alone, by the id in logs and errors (event=7-1234)");
  events->add_option("--log", flags->log,
                     "read this file, which tensorhub_server --event-log has written, and the one "
                     "before it, instead of asking a server; prints a line for each event");
  events->add_flag("--follow", flags->follow, "go on with what happens, a line for each event");
  AddDurationFlag(events, "--interval", &flags->interval, kIntervals,
                  "the time between two requests of --follow, like 500ms");
  flags->reporter.AddFlag(events);
  events->callback([flags, exit] { *exit = RunEvents(*flags); });
}

}  // namespace th
