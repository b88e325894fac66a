// th bench scenario: a scenario file for real and simulated, side by side. th bench model: whether
// the simulator says what real fan-outs show.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/bench/bench_flags.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/quantity.h"
#include "th/command_line/reporter.h"
#include "th/controlled_rank/local_cluster.h"
#include "th/processes/held_signals.h"
#include "th/processes/scratch_folder.h"
#include "th/scenario_runs/link_model.h"
#include "th/scenario_runs/model_check.h"
#include "th/scenario_runs/real_run.h"
#include "th/scenario_runs/real_scenario.h"
#include "th/scenario_runs/scenario_commands.h"
#include "th/scenario_runs/scenario_comparison.h"
#include "th/scenario_runs/simulate_scenario.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// One thread moves weights: there are many ranks, and their links are slow.
struct ScenarioProcessFlags : ProcessFlags {
  ScenarioProcessFlags() { data_threads = 1; }
};

struct ScenarioBenchFlags : ScenarioProcessFlags {
  std::string file;
  std::vector<std::string> policies;
  std::vector<std::string> set;
};

struct ModelFlags : ScenarioProcessFlags {
  std::string rate = "250mbit";
  uint64_t bytes = uint64_t{64} << 20;
  uint32_t rounds = 3;
  std::vector<uint32_t> hosts = {8, 16};
};

// A run that is refused is the fault of the file or of a flag.
ExitStatus FailRunning(const ProcessFlags& flags, ScratchFolder& folder, const absl::Status& why) {
  if (absl::IsInvalidArgument(why)) return flags.reporter.Fail(why, ExitStatus::kUsage);
  return FailMeasuring(flags, folder, why);
}

// ---- th bench scenario

// The policies' checks come before the first process starts.
absl::Status CheckPolicies(const Scenario& scenario, const std::vector<ScenarioPolicy>& policies) {
  TH_RETURN_IF_ERROR(PlanRealScenario(scenario).status());
  for (ScenarioPolicy policy : policies) {
    if (policy != ScenarioPolicy::kSnapshotBroadcast || scenario.copy_rate.has_value()) continue;
    return absl::InvalidArgumentError(
        "policy snapshot-broadcast is simulated beside its real run and needs 'copy' in 'weights'");
  }
  return absl::OkStatus();
}

absl::StatusOr<RealRunOptions> PlanRuns(const ScenarioBenchFlags& flags,
                                        const std::vector<ScenarioPolicy>& policies,
                                        const std::string& folder) {
  RealRunOptions options;
  TH_ASSIGN_OR_RETURN(options.cluster, ClusterOf(flags, folder));
  const bool only_ours = policies == std::vector{ScenarioPolicy::kNearest};
  if (!only_ours) {
    TH_ASSIGN_OR_RETURN(options.policy_server, FindPolicyServer());
  }
  return options;
}

absl::StatusOr<ComparedRun> Compare(const Scenario& scenario, ScenarioPolicy policy,
                                    RealRunOptions options) {
  fprintf(stderr, "%s\n", std::string(ScenarioPolicyName(policy)).c_str());
  std::string& folder = options.cluster.folder;
  absl::StrAppend(&folder, "/", ScenarioPolicyName(policy));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  }
  TH_ASSIGN_OR_RETURN(RealRunResult real, RunScenarioForReal(scenario, policy, options));
  TH_ASSIGN_OR_RETURN(ScenarioResult simulated,
                      RunScenario(OnRealLinks(scenario, LinkModel()), policy, {}));
  return ComparedRun{std::move(real.result), std::move(simulated)};
}

ExitStatus RunScenarioBench(const ScenarioBenchFlags& flags) {
  const absl::StatusOr<std::string> text = ReadScenarioFile(flags.file);
  if (!text.ok()) return flags.reporter.Fail(text.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<std::vector<ScenarioPolicy>> policies = PoliciesOf(flags.policies);
  if (!policies.ok()) return flags.reporter.Fail(policies.status(), ExitStatus::kUsage);
  const absl::StatusOr<ScenarioOverrides> set = OverridesOf(flags.set);
  if (!set.ok()) return flags.reporter.Fail(set.status(), ExitStatus::kUsage);
  const absl::StatusOr<Scenario> scenario = ParseScenario(flags.file, *text, *set);
  if (!scenario.ok()) return flags.reporter.Fail(scenario.status(), ExitStatus::kUsage);
  if (const absl::Status fits = CheckPolicies(*scenario, *policies); !fits.ok()) {
    return flags.reporter.Fail(fits, ExitStatus::kUsage);
  }
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<RealRunOptions> options = PlanRuns(flags, *policies, folder->path());
  if (!options.ok()) return flags.reporter.Fail(options.status(), ExitStatus::kLocalFiles);
  std::vector<ComparedRun> runs;
  runs.reserve(policies->size());
  for (ScenarioPolicy policy : *policies) {
    absl::StatusOr<ComparedRun> run = Compare(*scenario, policy, *options);
    if (!run.ok()) return FailRunning(flags, *folder, run.status());
    runs.push_back(*std::move(run));
  }
  flags.reporter.Report(ComparisonToJson(runs), ComparisonTable(runs));
  return ExitStatus::kOk;
}

// ---- th bench model

ExitStatus RunModelCheck(const ModelFlags& flags) {
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<LocalClusterOptions> cluster = ClusterOf(flags, folder->path());
  if (!cluster.ok()) return flags.reporter.Fail(cluster.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<uint64_t> rate = ParseRate(flags.rate);
  if (!rate.ok()) return flags.reporter.Fail(rate.status(), ExitStatus::kUsage);
  const absl::StatusOr<ModelCheck> check = CheckModel({.cluster = *cluster,
                                                       .rate = *rate,
                                                       .bytes = flags.bytes,
                                                       .rounds = flags.rounds,
                                                       .predicted_hosts = flags.hosts});
  if (!check.ok()) return FailRunning(flags, *folder, check.status());
  flags.reporter.Report(ToJson(*check), TextOf(*check));
  return ExitStatus::kOk;
}

}  // namespace

void AddBenchScenarioCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<ScenarioBenchFlags>();
  CLI::App* scenario = bench->add_subcommand(
      "scenario",
      "the course of events of a scenario file for real, on processes on virtual hosts, beside its "
      "simulation: who waited how long");
  scenario
      ->add_option("scenario", flags->file, "a scenario file (th/simulator/scenarios/README.md)")
      ->required();
  scenario
      ->add_option("--policy", flags->policies,
                   "as in th simulate: nearest (TensorHub's), or models of others: direct, chain, "
                   "random, broadcast, snapshot-broadcast; several with commas, or all (default: "
                   "nearest)")
      ->delimiter(',')
      ->allow_extra_args(false);
  scenario->add_option("--set", flags->set, "a variable of the scenario: name=value")
      ->allow_extra_args(false);
  AddProcessFlags(scenario, flags.get());
  scenario->callback([flags, exit] { *exit = RunScenarioBench(*flags); });
}

void AddBenchModelCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<ModelFlags>();
  CLI::App* model = bench->add_subcommand(
      "model",
      "the simulator against real fan-outs: its figures are fixed with 1, 2 and 4 readers, then "
      "more readers, a stopped and a killed relay and two sites are run and predicted");
  model->add_option("--rate", flags->rate, "of each host's link, each way, like 250mbit")
      ->check(LinkRate())
      ->capture_default_str();
  AddByteSizeFlag(model, "--bytes", &flags->bytes, "size of the version", "64MiB");
  model->add_option("--rounds", flags->rounds, "measured rounds of each point")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  model->add_option("--hosts", flags->hosts, "readers of the predicted fan-outs, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1u, kMaxRealRanks - 1))
      ->capture_default_str();
  AddProcessFlags(model, flags.get());
  model->callback([flags, exit] { *exit = RunModelCheck(*flags); });
}

}  // namespace th
