#include "th/cli/pulling.h"

#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/progress_screen.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// The progress of all ranks on stderr, told by TensorHub's threads.
class PullScreen {
 public:
  explicit PullScreen(std::string group)
      : group_(std::move(group)), screen_(stderr, TerminalColumns(stderr)) {}

  void Show(uint32_t rank, const UpdateProgress& progress) {
    absl::MutexLock lock(&mutex_);
    screen_.Show({.name = absl::StrCat(group_, "/", rank),
                  .bytes = progress.bytes_received,
                  .total = progress.bytes_total,
                  .source = progress.source},
                 MonotonicNow());
  }

  void ShowLine(const std::string& text) {
    absl::MutexLock lock(&mutex_);
    screen_.ShowLine(text);
  }

 private:
  absl::Mutex mutex_;
  const std::string group_;
  ProgressScreen screen_;
};

// How often it looks whether the server is away.
constexpr absl::Duration kServerPoll = absl::Milliseconds(200);

std::string TimeOfDay(absl::Time time) {
  return absl::FormatTime("%H:%M:%S", time, absl::LocalTimeZone());
}

// The update's end; nothing when a signal comes first. Says meanwhile when the server goes and
// comes: whoever waits in silence wants to know for what.
std::optional<absl::StatusOr<GroupUpdate>> Await(
    PendingResult<absl::StatusOr<GroupUpdate>>& pending, const StopSignals& stop,
    const ReaderGroup& readers, const PullFlags& flags, PullScreen& screen) {
  const absl::Time until = absl::Now() + flags.timeout;
  bool away = false;
  for (;;) {
    std::optional<absl::StatusOr<GroupUpdate>> update = pending.AwaitFor(kServerPoll);
    if (update.has_value() || stop.requested()) return update;
    const bool was_away = std::exchange(away, !readers.connected());
    if (was_away == away) continue;
    screen.ShowLine(away ? absl::StrCat("th: the server ", flags.connection.server,
                                        " is away since ", TimeOfDay(absl::Now()),
                                        "; waiting for it until ", TimeOfDay(until), " (--timeout)")
                         : absl::StrCat("th: the server ", flags.connection.server, " is back"));
  }
}

std::string Groups(const std::vector<std::string>& groups) { return absl::StrJoin(groups, ", "); }

// " event=7-1234" of an error's text; empty: it names none.
absl::string_view EventOf(absl::string_view text) {
  const size_t event = text.rfind(" event=");
  return event == absl::string_view::npos ? "" : text.substr(event);
}

absl::Status NobodyHolds(const PullFlags& flags, const Catalog& catalog, const VersionInfo& version,
                         const VersionHolders& holders, absl::string_view event) {
  const std::string gone =
      holders.disconnected.empty()
          ? ""
          : absl::StrCat(
                ": ", Groups(holders.disconnected),
                holders.disconnected.size() == 1 ? ", which did, has" : ", which did, have",
                " lost the server");
  const std::string held = NameHeldVersions(catalog, flags.connection.key(), flags.form);
  const absl::string_view others = absl::StartsWith(held, "held")
                                       ? ": take one of these (--version), or have version '"
                                       : ": have version '";
  return absl::NotFoundError(absl::StrCat("nobody holds version ", version.ToString(), " in form ",
                                          flags.form, " now", gone, "; ", held, others,
                                          version.label.text(), "' published again", event));
}

// Code words and causes in the text of an update's error (th/client/client.h).
constexpr absl::string_view kStalled = "UPDATE_STALLED";
constexpr absl::string_view kNothingInCommon = "no transport in common";

// The advice on sources that are there and could not be read.
std::string WayOut(absl::string_view failed, const VersionHolders& holders) {
  const std::string who = Groups(holders.connected);
  if (absl::StartsWith(failed, kStalled)) {
    return absl::StrCat(
        who,
        " holds it, is connected to the server and sends nothing: is a process of it stopped "
        "(SIGSTOP, a debugger), or its host overloaded? Let it go on, or have another group hold "
        "the version, and ask again");
  }
  if (absl::StrContains(failed, kNothingInCommon)) {
    return absl::StrCat(who, " holds it and can be read over ",
                        absl::StrJoin(holders.transports, ", "),
                        ": leave --transports out, or name one of these that this host has");
  }
  return absl::StrCat(who,
                      " holds it, and could not be read from here: th describe shows its "
                      "addresses, th doctor --to ADDRESS examines the way to one");
}

absl::Status CheckMoved(const PullFlags& flags, const FoundVersion& found,
                        const UpdateResult& result) {
  if (result.moved() || result.already_there()) return absl::OkStatus();
  return WhyNotRead(*found.controller, flags, found.shards.version,
                    absl::NotFoundError("the version is no longer available"));
}

// The error of an update that has not moved.
absl::Status Explain(const PullFlags& flags, const FoundVersion& found,
                     const absl::Status& update) {
  const bool stalled = absl::StartsWith(update.message(), kStalled);
  if (absl::IsUnavailable(update) || stalled) {
    return WhyNotRead(*found.controller, flags, found.shards.version, update);
  }
  // The flags were good.
  if (absl::IsInvalidArgument(update)) return absl::FailedPreconditionError(update.message());
  return update;
}

}  // namespace

absl::StatusOr<ClientOptions> ReaderOptions(const PullFlags& flags) {
  TH_ASSIGN_OR_RETURN(ClientOptions options, flags.member.ToClientOptions(flags.connection));
  if (options.group.empty()) options.group = GroupOfThisProcess(flags.command);
  options.spot = true;  // it ends once it has read
  return options;
}

absl::Status WhyNotRead(Controller& controller, const PullFlags& flags, const VersionInfo& version,
                        const absl::Status& failed) {
  const absl::StatusOr<Catalog> catalog = controller.List();
  if (!catalog.ok()) {
    return absl::UnavailableError(absl::StrCat(
        failed.message(), "; and the server does not answer: ", catalog.status().message()));
  }
  const VersionHolders holders =
      FindHolders(*catalog, flags.connection.key(), version.sequence, flags.form);
  if (holders.connected.empty()) {
    return NobodyHolds(flags, *catalog, version, holders, EventOf(failed.message()));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(failed.message(), "; ", WayOut(failed.message(), holders)));
}

void AddPullFlags(CLI::App* app, PullFlags* flags) {
  AddConnectionFlags(app, &flags->connection);
  AddMemberFlags(app, &flags->member);
  app->add_option("--version", flags->version, kVersionHelp)->capture_default_str();
  app->add_option("--form", flags->form, "the form of the weights")->capture_default_str();
  AddDurationFlag(app, "--timeout", &flags->timeout, kTimeouts,
                  "the time, like 10m, for the whole transfer");
}

absl::StatusOr<FoundVersion> FindVersion(const PullFlags& flags) {
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(flags.version));
  TH_ASSIGN_OR_RETURN(auto controller, flags.connection.Connect());
  const absl::StatusOr<VersionInfo> version =
      flags.wait ? controller->WaitFor(selector, flags.timeout) : controller->Resolve(selector);
  if (!version.ok() && !absl::IsNotFound(version.status())) return version.status();
  TH_ASSIGN_OR_RETURN(const Catalog catalog, controller->List());
  if (!version.ok()) {
    return absl::NotFoundError(
        absl::StrCat(version.status().message(), "; ",
                     NameHeldVersions(catalog, flags.connection.key(), flags.form)));
  }
  TH_ASSIGN_OR_RETURN(VersionShards shards, FindVersionShards(catalog, flags.connection.key(),
                                                              version->sequence, flags.form));
  return FoundVersion{.controller = std::move(controller), .shards = std::move(shards)};
}

absl::StatusOr<PulledModel> Pull(const PullFlags& flags, const FoundVersion& found,
                                 StopSignals* stop) {
  TH_ASSIGN_OR_RETURN(std::vector<ShardLayout> layouts,
                      FetchLayouts(*found.controller, found.shards));
  TH_ASSIGN_OR_RETURN(ModelMemory model, ModelMemory::Allocate(std::move(layouts)));
  ReaderGroupOptions options{.buffer_name = found.shards.buffer_name, .form = found.shards.form};
  TH_ASSIGN_OR_RETURN(options.client, ReaderOptions(flags));
  const auto joined = ReaderGroup::Join(options, model);
  if (!joined.ok()) return ExplainJoin(joined.status());
  ReaderGroup* const readers = joined->get();

  stop->HoldOff();
  // Shared with the callback, which TensorHub may hold a little longer than the update takes.
  auto screen = std::make_shared<PullScreen>(options.client.group);
  PendingResult<absl::StatusOr<GroupUpdate>> pending(stop);
  const absl::Time begin = MonotonicNow();
  readers->UpdateAsync(
      found.shards.version.sequence,
      {.timeout = flags.timeout,
       .on_progress = [screen](uint32_t rank,
                               const UpdateProgress& progress) { screen->Show(rank, progress); }},
      pending.Callback());
  std::optional<absl::StatusOr<GroupUpdate>> update =
      Await(pending, *stop, *readers, flags, *screen);
  const absl::Duration seconds = MonotonicNow() - begin;
  // Nobody is to fill from a process that is about to end.
  (void)readers->Leave();
  if (!update) return absl::CancelledError("interrupted; nothing was written");
  if (!update->ok()) return Explain(flags, found, update->status());
  TH_RETURN_IF_ERROR(CheckMoved(flags, found, (*update)->first()));
  TH_RETURN_IF_ERROR(model.Gather());
  return PulledModel{.model = std::move(model), .update = **std::move(update), .seconds = seconds};
}

nlohmann::json ToJson(const PulledModel& pulled) {
  nlohmann::json sources = nlohmann::json::array();
  for (size_t rank = 0; rank < pulled.update.ranks.size(); ++rank) {
    for (const SourceShare& source : pulled.update.ranks[rank].sources) {
      sources.push_back({{"rank", rank},
                         {"name", source.name},
                         {"transport", source.transport},
                         {"passed_over", source.passed_over},
                         {"bytes", source.bytes}});
    }
  }
  const double seconds = absl::ToDoubleSeconds(pulled.seconds);
  const uint64_t bytes = pulled.update.bytes_received();
  return {{"bytes", bytes},
          {"seconds", seconds},
          {"gbytes_per_s", seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0},
          {"reroutes", pulled.update.reroutes()},
          {"event", pulled.update.first().event.ToString()},
          {"sources", std::move(sources)}};
}

}  // namespace th
