#include "th/bench/server_bench.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "th/bench/session_fleet.h"
#include "th/client/client.h"
#include "th/command_line/text_table.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/processes/descriptor_limit.h"
#include "th/processes/processor_time.h"
#include "th/processes/resident_memory.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using nlohmann::json;

// No phase takes longer, whatever the machine.
constexpr absl::Duration kPhaseTimeout = absl::Seconds(120);
// Between two looks at signals and at the server, while a phase lasts.
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
constexpr absl::Duration kReportEvery = absl::Seconds(2);
// A worker's one connection. The others are what the process has open beside them, and room for
// connections that are made again before the old ones have gone.
constexpr uint64_t kDescriptorsPerWorker = 1;
constexpr uint64_t kOtherDescriptors = 512;
// The groups that publish, one version each; all others read.
constexpr uint32_t kTrainers = 2;
// Threads that look shards up; each waits for one answer at a time.
constexpr uint32_t kLookingUp = 8;

VersionLabel LabelOf(uint32_t trainer) {
  return VersionLabel::Parse(absl::StrCat("step-", trainer + 1)).value();
}

// The words of the workers so far. Written on th-control, read by whoever waits.
class Scoreboard {
 public:
  explicit Scoreboard(uint32_t ranks) : ranks_(ranks) {}

  absl::Mutex mu;
  std::string failure ABSL_GUARDED_BY(mu);  // the first
  uint64_t registered ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_registered ABSL_GUARDED_BY(mu);
  // The state of the storm under way.
  uint64_t published ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_published ABSL_GUARDED_BY(mu);
  std::vector<bool> assigned ABSL_GUARDED_BY(mu);  // by worker
  uint64_t assigned_count ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_assigned ABSL_GUARDED_BY(mu);
  uint64_t moved ABSL_GUARDED_BY(mu) = 0;  // updates, since the beginning
  absl::Time last_moved ABSL_GUARDED_BY(mu);
  Latencies updates ABSL_GUARDED_BY(mu);      // at the rate
  uint64_t received ABSL_GUARDED_BY(mu) = 0;  // by streaming readers

  void NoteRegistered() {
    absl::MutexLock lock(&mu);
    ++registered;
    last_registered = MonotonicNow();
  }
  void NoteAssigned(FleetRank rank) {
    absl::MutexLock lock(&mu);
    const size_t worker = size_t{rank.group} * ranks_ + rank.rank;
    if (worker >= assigned.size() || assigned[worker]) return;
    assigned[worker] = true;
    ++assigned_count;
    last_assigned = MonotonicNow();
  }
  void NoteFailure(FleetRank rank, absl::string_view what) {
    absl::MutexLock lock(&mu);
    if (failure.empty()) {
      failure = absl::StrCat("worker group-", rank.group, "/", rank.rank, ": ", what);
    }
  }
  void NoteMoved() {
    absl::MutexLock lock(&mu);
    ++moved;
    last_moved = MonotonicNow();
  }

 private:
  const uint32_t ranks_;
};

// The updates at a steady rate: which group is next, and when. On th-control.
struct Schedule {
  absl::Time began;
  absl::Duration interval;  // between two groups' starts
  uint64_t groups_to_start = 0;
  uint64_t groups_started = 0;
  bool timer_set = false;             // for the next start
  std::deque<uint32_t> idle;          // groups, the longest idle first
  std::vector<absl::Time> due;        // by group: when its update had to begin
  std::vector<uint32_t> ranks_ended;  // by group: of its update under way
  std::vector<uint32_t> holds;        // by group: whose version, by trainer

  absl::Time NextDue() const { return began + static_cast<double>(groups_started) * interval; }
  bool AllStarted() const { return groups_started >= groups_to_start; }
};

class ServerBench {
 public:
  explicit ServerBench(const ServerBenchOptions& options)
      : options_(options),
        groups_(std::max(kTrainers + 1, (options.workers + options.ranks - 1) / options.ranks)),
        readers_(uint64_t{groups_ - kTrainers} * options.ranks),
        board_(options.ranks) {}

  absl::StatusOr<ServerMeasurement> Run() {
    measured_ = {.workers = uint64_t{groups_} * options_.ranks,
                 .groups = groups_,
                 .ranks = options_.ranks,
                 .rate = options_.rate};
    TH_RETURN_IF_ERROR(
        EnsureDescriptorLimit(kDescriptorsPerWorker * measured_.workers + kOtherDescriptors));
    TH_ASSIGN_OR_RETURN(cluster_, LocalCluster::Open({.server_program = options_.server_program,
                                                      .folder = options_.folder}));
    fleet_ = std::make_unique<SessionFleet>(
        FleetOptions{.server = cluster_->server_address(),
                     .groups = groups_,
                     .ranks = options_.ranks,
                     .join_timeout = kPhaseTimeout,
                     .update_timeout = kPhaseTimeout},
        FleetEvents{
            .on_registered = [this](FleetRank) { board_.NoteRegistered(); },
            .on_assigned = [this](FleetRank rank) { board_.NoteAssigned(rank); },
            .on_done = [this](FleetRank rank, const OperationDone& done) { OnDone(rank, done); },
            .on_received = [this](FleetRank rank,
                                  const OperationDone& done) { OnReceived(rank, done); },
            .on_failed =
                [this](FleetRank rank, const absl::Status& why) {
                  board_.NoteFailure(rank, why.message());
                }});
    TH_RETURN_IF_ERROR(Join());
    for (uint32_t trainer = 0; trainer < kTrainers; ++trainer) {
      TH_RETURN_IF_ERROR(Storm(trainer));
    }
    TH_RETURN_IF_ERROR(UpdateAtRate());
    if (options_.receives) TH_RETURN_IF_ERROR(Receive());
    TH_ASSIGN_OR_RETURN(measured_.server_bytes_end, ResidentBytes(ServerPid()));
    TH_ASSIGN_OR_RETURN(measured_.server_cpu, ProcessorTime(ServerPid()));
    absl::MutexLock lock(&board_.mu);
    measured_.updates_moved = board_.moved;
    return measured_;
  }

 private:
  pid_t ServerPid() { return cluster_->server().process().pid(); }

  // ---- waiting

  // Until `done()`, which is asked under the board's lock.
  absl::Status Await(absl::FunctionRef<bool()> done, absl::Duration timeout,
                     absl::FunctionRef<std::string()> what) {
    const absl::Time deadline = MonotonicNow() + timeout;
    const auto decided = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return done() || !board_.failure.empty();
    };
    for (;;) {
      std::string text;
      {
        absl::MutexLock lock(&board_.mu);
        const bool awake = board_.mu.AwaitWithTimeout(absl::Condition(&decided), kLookEvery);
        if (!board_.failure.empty()) return absl::InternalError(board_.failure);
        if (awake) return absl::OkStatus();
        text = what();
      }
      TH_RETURN_IF_ERROR(LookAround());
      if (MonotonicNow() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(text, "; this took longer than ", absl::FormatDuration(timeout)));
      }
      ShowLine(text);
    }
  }

  absl::Status LookAround() {
    if (options_.cancelled != nullptr && options_.cancelled()) {
      return absl::CancelledError("interrupted");
    }
    if (!cluster_->server().process().HasEnded()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("tensorhub_server ", cluster_->server().process().Condition()));
  }

  void ShowLine(const std::string& text) {
    const absl::Time now = MonotonicNow();
    if (options_.progress == nullptr || now - reported_at_ < kReportEvery) return;
    reported_at_ = now;
    options_.progress(text);
  }

  // ---- the phases

  absl::Status Join() {
    const absl::Time began = MonotonicNow();
    fleet_->JoinAll();
    TH_RETURN_IF_ERROR(Await(
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return board_.registered == measured_.workers; },
        kPhaseTimeout,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return absl::StrCat(board_.registered, " of ", measured_.workers, " workers have joined");
        }));
    absl::MutexLock lock(&board_.mu);
    measured_.join = board_.last_registered - began;
    measured_.control_bytes_join =
        static_cast<double>(fleet_->control_bytes()) / static_cast<double>(measured_.workers);
    TH_ASSIGN_OR_RETURN(measured_.server_bytes_joined, ResidentBytes(ServerPid()));
    TH_ASSIGN_OR_RETURN(measured_.server_cpu_join, ProcessorTime(ServerPid()));
    return absl::OkStatus();
  }

  absl::Status Storm(uint32_t trainer) {
    uint64_t moved_before = 0;
    {
      absl::MutexLock lock(&board_.mu);
      board_.published = 0;
      board_.assigned.assign(measured_.workers, false);
      board_.assigned_count = 0;
      moved_before = board_.moved;
    }
    const absl::Time began = MonotonicNow();
    fleet_->Publish(trainer, LabelOf(trainer));
    TH_RETURN_IF_ERROR(Await(
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return board_.moved == moved_before + readers_; },
        kPhaseTimeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return absl::StrCat(board_.moved - moved_before, " of ", readers_,
                              " readers have moved to ", LabelOf(trainer).text());
        }));
    absl::MutexLock lock(&board_.mu);
    measured_.storms.push_back({.published = board_.last_published - began,
                                .last_assignment = board_.last_assigned - began,
                                .last_moved = board_.last_moved - began});
    return absl::OkStatus();
  }

  absl::Status UpdateAtRate() {
    const double ranks = options_.ranks;
    schedule_.interval = absl::Seconds(ranks / options_.rate);
    schedule_.groups_to_start = std::max<uint64_t>(
        1, static_cast<uint64_t>(absl::ToDoubleSeconds(options_.duration) * options_.rate / ranks));
    for (uint32_t group = kTrainers; group < groups_; ++group) schedule_.idle.push_back(group);
    schedule_.due.resize(groups_);
    schedule_.ranks_ended.resize(groups_);
    schedule_.holds.assign(groups_, kTrainers - 1);
    const uint64_t wanted = schedule_.groups_to_start * options_.ranks;
    TH_ASSIGN_OR_RETURN(const absl::Duration cpu_before, ProcessorTime(ServerPid()));
    const uint64_t bytes_before = fleet_->control_bytes();
    const absl::Time began = MonotonicNow();
    fleet_->After(absl::ZeroDuration(), [this] {
      schedule_.began = MonotonicNow();
      StartDue();
    });
    TH_RETURN_IF_ERROR(Await(
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return board_.updates.samples() == wanted; },
        options_.duration + kPhaseTimeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return absl::StrCat(board_.updates.samples(), " of ", wanted, " updates have ended");
        }));
    const double updates = static_cast<double>(wanted);
    measured_.control_bytes_update =
        static_cast<double>(fleet_->control_bytes() - bytes_before) / updates;
    TH_ASSIGN_OR_RETURN(const absl::Duration cpu_after, ProcessorTime(ServerPid()));
    measured_.server_cpu_update = (cpu_after - cpu_before) / updates;
    absl::MutexLock lock(&board_.mu);
    measured_.update = board_.updates.Summarize();
    // The last group's own interval belongs to it.
    const absl::Duration took = std::max(board_.last_moved - began, schedule_.interval);
    measured_.rate_reached = updates / absl::ToDoubleSeconds(took);
    return absl::OkStatus();
  }

  absl::Status Receive() {
    TH_ASSIGN_OR_RETURN(const absl::Duration cpu_before, ProcessorTime(ServerPid()));
    const absl::Time began = MonotonicNow();
    TH_RETURN_IF_ERROR(LookUpShards());
    for (uint32_t group = kTrainers; group < groups_; ++group) {
      fleet_->Receive(group, LatestVersion{});
    }
    TH_RETURN_IF_ERROR(Await(
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return board_.received == readers_; }, kPhaseTimeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return absl::StrCat(board_.received, " of ", readers_, " streaming readers have ended");
        }));
    measured_.receives = readers_;
    measured_.receives_took = MonotonicNow() - began;
    TH_ASSIGN_OR_RETURN(const absl::Duration cpu_after, ProcessorTime(ServerPid()));
    measured_.server_cpu_receive = (cpu_after - cpu_before) / static_cast<double>(readers_);
    return absl::OkStatus();
  }

  // Asks for every reader what its first Client::Receive asks for.
  absl::Status LookUpShards() {
    std::atomic<uint64_t> next = 0;
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kLookingUp; ++i) {
      threads.emplace_back([&] {
        for (uint64_t reader = next++; reader < readers_; reader = next++) {
          const uint32_t rank = static_cast<uint32_t>(reader % options_.ranks);
          if (const absl::Status looked = LookUpShard(rank); !looked.ok()) {
            board_.NoteFailure({kTrainers, rank}, looked.message());
            return;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&board_.mu);
    return board_.failure.empty() ? LookAround() : absl::InternalError(board_.failure);
  }

  absl::Status LookUpShard(uint32_t rank) {
    TH_ASSIGN_OR_RETURN(
        const auto controller,
        Controller::Connect(
            {.server = cluster_->server_address(), .run = kFleetRun, .model = kFleetModel}));
    TH_ASSIGN_OR_RETURN(const FoundShard found,
                        controller->FindShard({.group = FleetGroupName(0), .rank = Rank(rank)}));
    return controller->GetLayout(found.layout).status();
  }

  // ---- th-control

  void OnReceived(FleetRank rank, const OperationDone& done) {
    if (!done.status.ok()) return board_.NoteFailure(rank, done.status.message());
    if (done.outcome != UpdateOutcome::kMoved) {
      return board_.NoteFailure(rank, "a receive did not come through");
    }
    absl::MutexLock lock(&board_.mu);
    ++board_.received;
  }

  // Starts the groups whose time has come, as far as there are idle ones, and comes again for the
  // next; one that ends calls it too.
  void StartDue() {
    const absl::Time now = MonotonicNow();
    while (!schedule_.AllStarted() && schedule_.NextDue() <= now && !schedule_.idle.empty()) {
      const uint32_t group = schedule_.idle.front();
      schedule_.idle.pop_front();
      schedule_.due[group] = schedule_.NextDue();
      schedule_.ranks_ended[group] = 0;
      schedule_.holds[group] = (schedule_.holds[group] + 1) % kTrainers;
      ++schedule_.groups_started;
      fleet_->Update(group, LabelOf(schedule_.holds[group]));
    }
    const bool waits_for_a_group = schedule_.NextDue() <= now;
    if (schedule_.AllStarted() || waits_for_a_group || schedule_.timer_set) return;
    schedule_.timer_set = true;
    fleet_->After(schedule_.NextDue() - now, [this] {
      schedule_.timer_set = false;
      StartDue();
    });
  }

  void OnDone(FleetRank rank, const OperationDone& done) {
    if (!done.status.ok()) return board_.NoteFailure(rank, done.status.message());
    if (done.kind == OperationKind::kPublish) return OnPublished();
    if (done.outcome != UpdateOutcome::kMoved) {
      return board_.NoteFailure(rank, "an update did not move");
    }
    board_.NoteMoved();
    if (schedule_.groups_started == 0) return;  // a storm's
    {
      absl::MutexLock lock(&board_.mu);
      board_.updates.Add(MonotonicNow() - schedule_.due[rank.group]);
    }
    if (++schedule_.ranks_ended[rank.group] < options_.ranks) return;
    schedule_.idle.push_back(rank.group);
    StartDue();
  }

  void OnPublished() {
    {
      absl::MutexLock lock(&board_.mu);
      if (++board_.published < options_.ranks) return;
      board_.last_published = MonotonicNow();
    }
    for (uint32_t group = kTrainers; group < groups_; ++group) {
      fleet_->Update(group, LatestVersion{});
    }
  }

  const ServerBenchOptions& options_;
  const uint32_t groups_;
  const uint64_t readers_;  // ranks
  Scoreboard board_;
  Schedule schedule_;
  ServerMeasurement measured_;
  absl::Time reported_at_ = MonotonicNow();
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<SessionFleet> fleet_;  // last: it ends first, and its events with it
};

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }
double Millis(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// The slowest of the storms.
absl::Duration Slowest(const ServerMeasurement& measured, absl::Duration PublishStorm::*field) {
  absl::Duration slowest;
  for (const PublishStorm& storm : measured.storms) slowest = std::max(slowest, storm.*field);
  return slowest;
}

}  // namespace

absl::StatusOr<ServerMeasurement> MeasureServer(const ServerBenchOptions& options) {
  return ServerBench(options).Run();
}

std::string TextOf(const ServerMeasurement& measured) {
  TextTable table({{"WHAT"}, {"MEASURED", Align::kRight}});
  const auto row = [&](std::string what, std::string value) {
    table.AddRow({std::move(what), std::move(value)});
  };
  const auto seconds = [](absl::Duration d) { return absl::StrFormat("%.3f s", Seconds(d)); };
  const auto millis = [](absl::Duration d) { return absl::StrFormat("%.2f ms", Millis(d)); };
  const auto mebibytes = [](uint64_t bytes) {
    return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  };
  row("all have joined after", seconds(measured.join));
  row("publish to the last assignment", seconds(Slowest(measured, &PublishStorm::last_assignment)));
  row("publish to the last rank moved", seconds(Slowest(measured, &PublishStorm::last_moved)));
  row("updates a second, asked for", absl::StrCat(measured.rate));
  row("updates a second, reached", absl::StrFormat("%.1f", measured.rate_reached));
  row("update, half within", millis(measured.update.median));
  row("update, 99 % within", millis(measured.update.p99));
  row("update, the longest", millis(measured.update.max));
  row("control bytes of a join", absl::StrFormat("%.0f", measured.control_bytes_join));
  row("control bytes of an update", absl::StrFormat("%.0f", measured.control_bytes_update));
  row("server's memory after the join", mebibytes(measured.server_bytes_joined));
  row("server's memory at the end", mebibytes(measured.server_bytes_end));
  row("server's processor time, join", seconds(measured.server_cpu_join));
  row("server's processor time, an update", millis(measured.server_cpu_update));
  row("server's processor time, in all", seconds(measured.server_cpu));
  if (measured.receives > 0) {
    row("streaming readers, all have received after", seconds(measured.receives_took));
    row("server's processor time, a receive", millis(measured.server_cpu_receive));
  }
  return absl::StrFormat("%d workers in %d groups of %d; %d updates, every one moved\n%s",
                         measured.workers, measured.groups, measured.ranks, measured.updates_moved,
                         table.ToString());
}

json ToJson(const ServerMeasurement& measured) {
  json storms = json::array();
  for (const PublishStorm& storm : measured.storms) {
    storms.push_back({{"published_seconds", Seconds(storm.published)},
                      {"last_assignment_seconds", Seconds(storm.last_assignment)},
                      {"last_moved_seconds", Seconds(storm.last_moved)}});
  }
  return {{"workers", measured.workers},
          {"groups", measured.groups},
          {"ranks", measured.ranks},
          {"join_seconds", Seconds(measured.join)},
          {"publish_to_last_assignment_seconds",
           Seconds(Slowest(measured, &PublishStorm::last_assignment))},
          {"publish_to_last_moved_seconds", Seconds(Slowest(measured, &PublishStorm::last_moved))},
          {"storms", std::move(storms)},
          {"rate", measured.rate},
          {"rate_reached", measured.rate_reached},
          {"updates", measured.update.samples},
          {"updates_moved", measured.updates_moved},
          {"update_p50_ms", Millis(measured.update.median)},
          {"update_p99_ms", Millis(measured.update.p99)},
          {"update_max_ms", Millis(measured.update.max)},
          {"control_bytes_per_join", measured.control_bytes_join},
          {"control_bytes_per_update", measured.control_bytes_update},
          {"server_bytes_after_join", measured.server_bytes_joined},
          {"server_bytes_at_end", measured.server_bytes_end},
          {"server_cpu_seconds_join", Seconds(measured.server_cpu_join)},
          {"server_cpu_ms_per_update", Millis(measured.server_cpu_update)},
          {"server_cpu_seconds", Seconds(measured.server_cpu)},
          {"receives", measured.receives},
          {"receives_seconds", Seconds(measured.receives_took)},
          {"server_cpu_ms_per_receive", Millis(measured.server_cpu_receive)}};
}

}  // namespace th
