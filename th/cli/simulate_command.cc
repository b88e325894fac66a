// th simulate: runs of a simulated fleet at random, each described by its seed, or of a scenario.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "th/cli/commands.h"
#include "th/cli/simulate_soak.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"
#include "th/processes/runfiles.h"
#include "th/processes/scratch_folder.h"
#include "th/scenario_runs/simulate_scenario.h"
#include "th/simulator/random_runs/random_runs.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(2);
constexpr uint64_t kMaxSeeds = 100'000'000;

struct SimulateFlags {
  std::string soak;  // a duration
  uint64_t seeds = 100;
  uint64_t first_seed = 1;
  const CLI::Option* first_seed_flag = nullptr;  // whether it is given
  std::vector<size_t> without;
  bool trace = false;
  ScenarioFlags scenario;
  Reporter reporter;
};

// The most failures that are shortened and told in full; the others are counted.
constexpr size_t kMaxFailuresReported = 20;

struct Totals {
  uint64_t seeds = 0, events = 0, faults = 0, segments = 0;
  uint64_t operations_done = 0, operations_failed = 0;
  uint64_t violations = 0;
  uint64_t failed_seeds = 0;  // with one or more of them
  TransitionCoverage coverage;
  std::vector<FailedRun> failures;
};

// INVALID_ARGUMENT: the schedule has no fault at a place that is to be left out.
absl::Status CheckWithout(const RandomRunSpec& spec, const RandomRunResult& result) {
  if (spec.without.empty() || *spec.without.rbegin() < result.faults.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--without ", *spec.without.rbegin(), ": seed ",
                                                 spec.seed, " has ", result.faults.size(),
                                                 " faults, and their places count from 0"));
}

absl::Status RunSeed(const SimulateFlags& flags, uint64_t seed, Totals* totals) {
  RandomRunSpec spec{.seed = seed, .without = {flags.without.begin(), flags.without.end()}};
  if (flags.trace) spec.trace = [](const std::string& line) { std::cerr << line << "\n"; };
  const RandomRunResult result = RunAtRandom(spec);
  TH_RETURN_IF_ERROR(CheckWithout(spec, result));
  ++totals->seeds;
  totals->events += result.events;
  totals->faults += result.faults_happened;
  totals->segments += result.segments;
  totals->operations_done += result.operations_done;
  totals->operations_failed += result.operations_failed;
  totals->coverage.Add(result.coverage);
  if (result.violations.empty()) return absl::OkStatus();
  totals->violations += result.violations.size();
  if (++totals->failed_seeds > kMaxFailuresReported) return absl::OkStatus();
  totals->failures.push_back(DescribeFailedRun(spec, result));
  std::cerr << totals->failures.back().ToString();
  return absl::OkStatus();
}

nlohmann::json ToJson(const TransitionCoverage& coverage) {
  nlohmann::json tables;
  for (TransitionTable table : kTransitionTables) {
    nlohmann::json impossible = nlohmann::json::object();
    for (const DrawnTransition& drawn : TransitionsOf(table)) {
      if (!drawn.why_not_here.empty()) impossible[drawn.name] = drawn.why_not_here;
    }
    tables[std::string(TransitionTableName(table))] = {{"taken", coverage.taken(table)},
                                                       {"possible", coverage.possible(table)},
                                                       {"not_taken", coverage.NotTaken(table)},
                                                       {"impossible", std::move(impossible)}};
  }
  return tables;
}

std::string CoverageText(const TransitionCoverage& coverage) {
  std::string text = absl::StrCat("coverage: ", coverage.Summary());
  for (TransitionTable table : kTransitionTables) {
    for (const std::string& name : coverage.NotTaken(table)) {
      absl::StrAppend(&text, "\n  not taken: ", TransitionTableName(table), ": ", name);
    }
  }
  return text;
}

bool Interrupted(const SimulateFlags& flags, const Totals& totals) {
  return totals.seeds < flags.seeds;
}

nlohmann::json ToJson(const SimulateFlags& flags, const Totals& totals, double seconds) {
  nlohmann::json failures = nlohmann::json::array();
  for (const FailedRun& failure : totals.failures) {
    failures.push_back({{"seed", failure.seed},
                        {"command", failure.command},
                        {"violated", failure.violations},
                        {"shortest_command", failure.shortest_command},
                        {"faults", failure.faults}});
  }
  return {{"seeds", totals.seeds},
          {"first_seed", flags.first_seed},
          {"interrupted", Interrupted(flags, totals)},
          {"violations", totals.violations},
          {"failed_seeds", totals.failed_seeds},
          {"seconds", seconds},
          {"events", totals.events},
          {"faults", totals.faults},
          {"segments", totals.segments},
          {"operations_done", totals.operations_done},
          {"operations_failed", totals.operations_failed},
          {"coverage", ToJson(totals.coverage)},
          {"failures", std::move(failures)}};
}

std::string TextOf(const SimulateFlags& flags, const Totals& totals, double seconds) {
  const std::string verdict = totals.failed_seeds == 0 ? "GOOD" : "BAD";
  const std::string seeds =
      Interrupted(flags, totals)
          ? absl::StrCat("INTERRUPTED, ", verdict, ": ", totals.seeds, " of ", flags.seeds)
          : absl::StrCat(verdict, ": ", totals.seeds);
  return absl::StrFormat(
      "%s seeds, %d failed; %d events, %d faults, %d segments received in %.1f s\n%s", seeds,
      totals.failed_seeds, totals.events, totals.faults, totals.segments, seconds,
      CoverageText(totals.coverage));
}

ExitStatus RunSimulate(const SimulateFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  const absl::Time started = MonotonicNow();
  absl::Time reported_at = started;
  Totals totals;
  for (uint64_t i = 0; i < flags.seeds && !stop.requested(); ++i) {
    const absl::Status ran = RunSeed(flags, flags.first_seed + i, &totals);
    if (!ran.ok()) return flags.reporter.Fail(ran, ExitStatus::kUsage);
    stop.HoldOff();  // there is a seed to report from here on
    const absl::Time now = MonotonicNow();
    if (now - reported_at < kProgressInterval) continue;
    reported_at = now;
    std::cerr << totals.seeds << " of " << flags.seeds << " seeds, " << totals.failed_seeds
              << " failed\n";
  }
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - started);
  flags.reporter.Report(ToJson(flags, totals, seconds), TextOf(flags, totals, seconds));
  if (Interrupted(flags, totals)) return ExitStatus::kInterrupted;
  return totals.failed_seeds == 0 ? ExitStatus::kOk : ExitStatus::kFailed;
}

// A seed that nobody has looked at, with room for a soak after it.
uint64_t FreshSeed() {
  std::random_device random;
  return (uint64_t{random()} << 20) + (uint64_t{1} << 33);
}

ExitStatus RunSoak(const SimulateFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-soak", "");
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  SoakOptions options{
      .program = OwnPath(),
      .folder = folder->path(),
      .first_seed = flags.first_seed_flag->count() > 0 ? flags.first_seed : FreshSeed(),
      .processes = std::max(1u, std::thread::hardware_concurrency()),
      .print_line = [](const std::string& line) { std::cerr << line << "\n"; },
      .stopped = [&stop](absl::Duration pause) { return stop.WaitFor(pause); }};
  absl::ParseDuration(flags.soak, &options.duration);  // IsDuration has looked at it
  stop.HoldOff();  // from here on there are processes to end, and seeds to report
  const absl::StatusOr<SoakResult> result = Soak(options);
  if (!result.ok()) return flags.reporter.Fail(result.status());
  if (!result->crashes.empty()) folder->Keep();
  flags.reporter.Report(ToJson(*result), TextOf(*result));
  if (result->interrupted) return ExitStatus::kInterrupted;
  return result->good() ? ExitStatus::kOk : ExitStatus::kFailed;
}

constexpr absl::Duration kLongestSoak = absl::Hours(7 * 24);

CLI::Validator IsSoakTime() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        absl::Duration parsed;
        const bool good = absl::ParseDuration(text, &parsed) && parsed > absl::ZeroDuration() &&
                          parsed <= kLongestSoak;
        if (good) return "";
        return absl::StrCat(text, " is no time above 0 and up to ",
                            absl::FormatDuration(kLongestSoak), "; write 90s, 10m or 2h");
      },
      "DURATION");
}

void AddRandomFlags(CLI::App* simulate, SimulateFlags* flags, CLI::Option* file) {
  CLI::Option* seeds =
      simulate->add_option("--seeds", flags->seeds, "how many runs, each of its own seed")
          ->capture_default_str()
          ->check(CLI::Range(uint64_t{1}, kMaxSeeds))
          ->excludes(file);
  flags->first_seed_flag =
      simulate->add_option("--first-seed", flags->first_seed, "the seed of the first run")
          ->capture_default_str()
          ->check(CLI::Range(uint64_t{0}, std::numeric_limits<uint64_t>::max() - kMaxSeeds))
          ->excludes(file);
  CLI::Option* without =
      simulate
          ->add_option("--without", flags->without,
                       "faults to leave out, by their places in the schedule from 0: 0,3,7")
          ->delimiter(',')
          ->excludes(file);
  simulate
      ->add_option("--soak", flags->soak,
                   "run seeds for so long (90s, 10m, 2h), in a process for each core: fresh ones, "
                   "or those from --first-seed on")
      ->check(IsSoakTime())
      ->excludes(file)
      ->excludes(seeds)
      ->excludes(without);
}

void AddScenarioFlags(CLI::App* simulate, ScenarioFlags* flags, CLI::Option* file) {
  simulate
      ->add_option("--policy", flags->policies,
                   "how versions get to the readers: nearest (TensorHub's), or models of others: "
                   "direct, chain, random, broadcast, snapshot-broadcast; several with commas, or "
                   "all (default: nearest)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(file);
  simulate->add_option("--set", flags->set, "a variable of the scenario: name=value")
      ->allow_extra_args(false)
      ->needs(file);
  simulate
      ->add_option("--sweep", flags->sweep,
                   "a variable and its values, each of which is run: name=value,value; several "
                   "times: every combination")
      ->allow_extra_args(false)
      ->needs(file);
  simulate
      ->add_option("--svg", flags->svg, "draw who received from whom and when into this SVG file")
      ->needs(file);
}

}  // namespace

void AddSimulateCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* simulate = app->add_subcommand(
      "simulate",
      "runs the course of events of a scenario file and tells who waited how long for what; "
      "without "
      "one: simulated fleets with faults at random. What must hold is checked after every event");
  CLI::Option* file = simulate->add_option("scenario", flags->scenario.file,
                                           "a scenario file (th/simulator/scenarios/README.md)");
  AddScenarioFlags(simulate, &flags->scenario, file);
  AddRandomFlags(simulate, flags.get(), file);
  simulate->add_flag("--trace", flags->trace,
                     "say on stderr what happens in every run; best with --seeds 1");
  flags->reporter.AddFlag(simulate);
  simulate->callback([flags, exit] {
    flags->scenario.trace = flags->trace;
    if (!flags->soak.empty()) {
      *exit = RunSoak(*flags);
    } else if (flags->scenario.file.empty()) {
      *exit = RunSimulate(*flags);
    } else {
      *exit = SimulateScenario(flags->scenario, flags->reporter);
    }
  });
}

}  // namespace th
