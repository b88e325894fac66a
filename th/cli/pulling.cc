#include "th/cli/pulling.h"

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/progress_screen.h"
#include "th/transfer/monotonic_clock.h"
#include "th/weights/status_macros.h"

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

  void Tell(const std::string& text) {
    absl::MutexLock lock(&mutex_);
    screen_.Tell(text);
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
  const absl::Time until = absl::Now() + absl::Seconds(flags.timeout_s);
  bool away = false;
  for (;;) {
    std::optional<absl::StatusOr<GroupUpdate>> update = pending.AwaitFor(kServerPoll);
    if (update.has_value() || stop.requested()) return update;
    const bool was_away = std::exchange(away, !readers.connected());
    if (was_away == away) continue;
    screen.Tell(away ? absl::StrCat("th: the server ", flags.connection.server, " is away since ",
                                    TimeOfDay(absl::Now()), "; waiting for it until ",
                                    TimeOfDay(until), " (--timeout)")
                     : absl::StrCat("th: the server ", flags.connection.server, " is back"));
  }
}

absl::Status NobodyHoldsIt(absl::string_view why) {
  return absl::NotFoundError(absl::StrCat(
      why,
      "; th list shows which versions are held: take one by its name (--version), or have "
      "this one published again"));
}

absl::Status CheckMoved(const UpdateResult& result) {
  if (result.moved() || result.already_there()) return absl::OkStatus();
  return NobodyHoldsIt("the version is no longer available: nobody holds it now");
}

}  // namespace

std::string PullGroupName() {
  char host[65] = {};
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("pull-", host, "-", getpid());
}

void AddPullFlags(CLI::App* app, PullFlags* flags) {
  AddConnectionFlags(app, &flags->connection);
  AddMemberFlags(app, &flags->member);
  app->add_option("--version", flags->version, kVersionHelp)->capture_default_str();
  app->add_option("--form", flags->form, "the form of the weights")->capture_default_str();
  app->add_option("--timeout", flags->timeout_s, "seconds for the whole transfer")
      ->check(IsSeconds(kMinTimeoutSeconds, kMaxTimeoutSeconds))
      ->capture_default_str();
}

absl::StatusOr<FoundVersion> FindVersion(const PullFlags& flags) {
  TH_ASSIGN_OR_RETURN(const VersionSelector selector, ParseVersionSelector(flags.version));
  TH_ASSIGN_OR_RETURN(auto controller, flags.connection.Connect());
  TH_ASSIGN_OR_RETURN(const VersionInfo version, controller->Resolve(selector));
  TH_ASSIGN_OR_RETURN(const Catalog catalog, controller->List());
  TH_ASSIGN_OR_RETURN(VersionShards shards, FindVersionShards(catalog, flags.connection.key(),
                                                              version.sequence, flags.form));
  return FoundVersion{.controller = std::move(controller), .shards = std::move(shards)};
}

absl::StatusOr<PulledModel> Pull(const PullFlags& flags, const FoundVersion& found,
                                 StopSignals* stop) {
  TH_ASSIGN_OR_RETURN(std::vector<ShardLayout> layouts,
                      FetchLayouts(*found.controller, found.shards));
  TH_ASSIGN_OR_RETURN(ModelMemory model, ModelMemory::Allocate(std::move(layouts)));
  ReaderGroupOptions options{.buffer_name = found.shards.buffer_name, .form = found.shards.form};
  TH_ASSIGN_OR_RETURN(options.client, flags.member.ToClientOptions(flags.connection));
  if (options.client.group.empty()) options.client.group = PullGroupName();
  options.client.spot = true;  // it ends once it has read: what is retained must not rely on it
  TH_ASSIGN_OR_RETURN(const auto readers, ReaderGroup::Join(options, model));

  stop->HoldOff();
  // Shared with the callback, which TensorHub may hold a little longer than the update takes.
  auto screen = std::make_shared<PullScreen>(options.client.group);
  PendingResult<absl::StatusOr<GroupUpdate>> pending(stop);
  const absl::Time begin = MonotonicNow();
  readers->UpdateAsync(
      found.shards.version.sequence,
      {.timeout = absl::Seconds(flags.timeout_s),
       .on_progress = [screen](uint32_t rank,
                               const UpdateProgress& progress) { screen->Show(rank, progress); }},
      pending.Callback());
  std::optional<absl::StatusOr<GroupUpdate>> update =
      Await(pending, *stop, *readers, flags, *screen);
  const absl::Duration seconds = MonotonicNow() - begin;
  // Nobody is to fill from a process that is about to end.
  (void)readers->Leave();
  if (!update) return absl::CancelledError("interrupted; nothing was written");
  // The server is there, the sources are not: nobody holds it any more.
  if (absl::IsUnavailable(update->status())) return NobodyHoldsIt(update->status().message());
  TH_RETURN_IF_ERROR(update->status());
  TH_RETURN_IF_ERROR(CheckMoved((*update)->first()));
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
