// th bench fanout: a version to many hosts at once, over links of a given rate.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/cli/bench_flags.h"
#include "th/cli/command.h"
#include "th/cli/fanout_bench.h"
#include "th/cli/fanout_disturbance.h"
#include "th/cli/held_signals.h"
#include "th/cli/rank_weights.h"
#include "th/cli/scratch_folder.h"
#include "th/weights/status_macros.h"
#include "th/worker/connection_flags.h"
#include "th/worker/quantity.h"

namespace th {
namespace {

// Each is a process that holds the whole version.
constexpr uint32_t kMostReaders = 64;
constexpr uint32_t kMostHolders = 16;
constexpr uint32_t kMostRounds = 1000;

struct FanoutFlags : ProcessFlags {
  uint32_t hosts = 4;
  std::string rate = "1gbit";
  uint32_t holders = 1;
  std::string holder_rate;  // empty: as the readers'
  uint64_t bytes = uint64_t{128} << 20;
  uint32_t rounds = 3;
  std::vector<std::string> policies = {"ours", "direct"};
  std::string disturbance;
};

void AddFlags(CLI::App* app, FanoutFlags* flags) {
  const CLI::Validator link_rate = LinkRate();
  app->add_option("--hosts", flags->hosts, "readers, each on a virtual host")
      ->check(CLI::Range(1u, kMostReaders))
      ->capture_default_str();
  app->add_option("--rate", flags->rate, "of each host's link, each way, like 1gbit or 250mbit")
      ->check(link_rate)
      ->capture_default_str();
  AddByteSizeFlag(app, "--bytes", &flags->bytes, "size of the version", "128MiB");
  app->add_option(
         "--policies", flags->policies,
         "what is compared, with commas: ours (nearest first, relays), direct (every reader "
         "from the holder), chain, random")
      ->delimiter(',')
      ->check(CLI::IsMember({"ours", "direct", "chain", "random"}))
      ->capture_default_str();
  app->add_option("--rounds", flags->rounds,
                  "measured rounds of each policy, after one that warms up")
      ->check(CLI::Range(1u, kMostRounds))
      ->capture_default_str();
  app->add_option(
         "--holders", flags->holders,
         "hosts that hold the version from the start; with several, one alone is measured too")
      ->check(CLI::Range(1u, kMostHolders))
      ->capture_default_str();
  app->add_option("--holder-rate", flags->holder_rate, "of the holders' links; by default --rate")
      ->check(link_rate);
  app->add_option("--disturb", flags->disturbance,
                  "after the rounds of ours as many in which a reader that others read from is "
                  "stopped (SIGSTOP), has its link cut, or leaves, when it holds about half")
      ->check(CLI::IsMember({kStop, kCut, kLeave}));
  AddProcessFlags(app, flags);
}

// What flags cannot have together. OK, or INVALID_ARGUMENT.
absl::Status CheckFlags(const FanoutFlags& flags) {
  if (flags.policies.empty() || flags.policies.front() != "ours") {
    return absl::InvalidArgumentError(
        "--policies begins with ours: what the others are compared with");
  }
  for (size_t i = 0; i < flags.policies.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (flags.policies[i] != flags.policies[j]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--policies names ", flags.policies[i], " twice"));
    }
  }
  if (!flags.disturbance.empty() && flags.hosts < 2) {
    return absl::InvalidArgumentError(
        "--disturb needs --hosts of at least 2: one relays to another");
  }
  return absl::OkStatus();
}

absl::StatusOr<FanoutOptions> Plan(const FanoutFlags& flags, const std::string& folder) {
  FanoutOptions options{.readers = flags.hosts,
                        .holders = flags.holders,
                        .rounds = flags.rounds,
                        .policies = flags.policies,
                        .disturbance = flags.disturbance};
  TH_ASSIGN_OR_RETURN(options.rate, ParseRate(flags.rate));
  TH_ASSIGN_OR_RETURN(options.holder_rate,
                      ParseRate(flags.holder_rate.empty() ? flags.rate : flags.holder_rate));
  const ModelChoice model{.synthetic = "llm", .bytes = flags.bytes};
  TH_RETURN_IF_ERROR(ShardsOf(model, /*shards=*/1).status());
  TH_ASSIGN_OR_RETURN(options.cast, CastOf(flags, folder));
  options.cast.model = model;
  return options;
}

ExitStatus RunFanout(const FanoutFlags& flags) {
  if (const absl::Status fits = CheckFlags(flags); !fits.ok()) {
    return flags.reporter.Fail(fits, ExitStatus::kUsage);
  }
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<FanoutOptions> options = Plan(flags, folder->path());
  if (!options.ok()) {
    return flags.reporter.Fail(options.status(), absl::IsInvalidArgument(options.status())
                                                     ? ExitStatus::kUsage
                                                     : ExitStatus::kLocalFiles);
  }
  absl::StatusOr<FanoutMeasurement> measured = MeasureFanout(*options);
  if (!measured.ok()) return FailMeasuring(flags, *folder, measured.status());
  measured->rate = flags.rate;
  measured->holder_rate = flags.holder_rate.empty() ? flags.rate : flags.holder_rate;
  flags.reporter.Report(ToJson(*measured), TextOf(*measured));
  return measured->verified ? ExitStatus::kOk : ExitStatus::kFailed;
}

}  // namespace

void AddBenchFanoutCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<FanoutFlags>();
  CLI::App* fanout = bench->add_subcommand(
      "fanout",
      "a version to many virtual hosts at once over links of a given rate, beside one flow");
  AddFlags(fanout, flags.get());
  fanout->callback([flags, exit] { *exit = RunFanout(*flags); });
}

}  // namespace th
