// th bench fanout: a version to many hosts at once, over links of given rates.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/bench/bench_commands.h"
#include "th/bench/bench_flags.h"
#include "th/bench/fanout_bench.h"
#include "th/bench/fanout_disturbance.h"
#include "th/bench/link_classes.h"
#include "th/bench/memory_need.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/reporter.h"
#include "th/controlled_rank/rank_weights.h"
#include "th/processes/held_signals.h"
#include "th/processes/scratch_folder.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// Each is a process that holds the whole version.
constexpr uint32_t kDefaultReaders = 4;
constexpr uint32_t kMostHolders = 16;
constexpr uint32_t kMostRounds = 1000;

struct FanoutFlags : ProcessFlags {
  std::optional<uint32_t> hosts;  // not given: kDefaultReaders, or as `rates` say
  std::string rate = "1gbit";
  std::vector<std::string> rates;  // empty: all have `rate`
  uint32_t holders = 1;
  std::string holder_rate;  // empty: as the fastest readers'
  uint64_t bytes = uint64_t{128} << 20;
  uint32_t rounds = 3;
  std::vector<std::string> policies = {"ours", "direct"};
  std::string disturbance;
};

void AddFlags(CLI::App* app, FanoutFlags* flags) {
  const CLI::Validator link_rate = LinkRate();
  app->add_option("--hosts", flags->hosts, "readers, each on a virtual host")
      ->check(FanoutReaders())
      ->default_str(absl::StrCat(kDefaultReaders));
  CLI::Option* const rate =
      app->add_option("--rate", flags->rate, "of each host's link, each way, like 1gbit or 250mbit")
          ->check(link_rate)
          ->capture_default_str();
  app->add_option(
         "--rates", flags->rates,
         "links of unequal rates instead, each with its number of hosts, with commas, like "
         "\"1gbit*6,250mbit*2\"; the slowest reader of each rate is shown beside one flow "
         "over such a link")
      ->delimiter(',')
      ->check(LinkClassText())
      ->excludes(rate);
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
  app->add_option("--holder-rate", flags->holder_rate,
                  "of the holders' links; by default --rate, or the fastest of --rates")
      ->check(link_rate);
  app->add_option("--disturb", flags->disturbance,
                  "after the rounds of ours as many in which a reader that others read from is "
                  "stopped (SIGSTOP), has its link cut, or leaves, when it holds about half")
      ->check(CLI::IsMember({kStop, kCut, kLeave}));
  AddProcessFlags(app, flags);
}

// The readers' links. INVALID_ARGUMENT: --rates that are none, or do not agree with --hosts.
absl::StatusOr<std::vector<LinkClass>> ClassesOf(const FanoutFlags& flags) {
  if (flags.rates.empty()) {
    TH_ASSIGN_OR_RETURN(const uint64_t rate, ParseLinkRate(flags.rate));
    return std::vector<LinkClass>{{.rate = flags.rate,
                                   .bytes_per_second = rate,
                                   .hosts = flags.hosts.value_or(kDefaultReaders)}};
  }
  absl::StatusOr<std::vector<LinkClass>> classes = ParseLinkClasses(flags.rates);
  if (!classes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--rates: ", classes.status().message()));
  }
  const uint32_t hosts = HostsOf(*classes);
  if (const absl::Status fits = CheckFanoutReaders(hosts); !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--rates: ", fits.message()));
  }
  if (flags.hosts.has_value() && *flags.hosts != hosts) {
    return absl::InvalidArgumentError(absl::StrCat("--rates has ", hosts,
                                                   " hosts and --hosts says ", *flags.hosts,
                                                   ": leave --hosts away, or make them agree"));
  }
  return classes;
}

// Refuses flags that cannot be given together. OK, or INVALID_ARGUMENT.
absl::Status CheckFlags(const FanoutFlags& flags, const std::vector<LinkClass>& classes) {
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
  if (!flags.disturbance.empty() && HostsOf(classes) < 2) {
    return absl::InvalidArgumentError(
        "--disturb needs at least 2 readers (--hosts, --rates): one relays to another");
  }
  return absl::OkStatus();
}

std::string HolderRateOf(const FanoutFlags& flags, const std::vector<LinkClass>& classes) {
  return flags.holder_rate.empty() ? FastestOf(classes).rate : flags.holder_rate;
}

absl::StatusOr<FanoutOptions> Plan(const FanoutFlags& flags, const std::vector<LinkClass>& classes,
                                   const std::string& folder) {
  FanoutOptions options{
      .classes = classes,
      .holders = flags.holders,
      .rounds = flags.rounds,
      .policies = flags.policies,
      .disturbance = flags.disturbance,
      .progress = [](const std::string& line) { fprintf(stderr, "%s\n", line.c_str()); }};
  TH_ASSIGN_OR_RETURN(options.holder_rate, ParseLinkRate(HolderRateOf(flags, classes)));
  const ModelChoice model{.synthetic = "llm", .bytes = flags.bytes};
  TH_RETURN_IF_ERROR(ShardsOf(model, /*shards=*/1).status());
  TH_RETURN_IF_ERROR(CheckMemory(
      {.version_bytes = flags.bytes, .copies = uint64_t{flags.holders} + HostsOf(classes)},
      AvailableMemory()));
  TH_ASSIGN_OR_RETURN(options.cluster, ClusterOf(flags, folder));
  options.cluster.model = model;
  if (flags.policies.size() > 1) {
    TH_ASSIGN_OR_RETURN(options.policy_server, FindPolicyServer());
  }
  return options;
}

ExitStatus RunFanout(const FanoutFlags& flags) {
  const absl::StatusOr<std::vector<LinkClass>> classes = ClassesOf(flags);
  if (!classes.ok()) return flags.reporter.Fail(classes.status(), ExitStatus::kUsage);
  if (const absl::Status fits = CheckFlags(flags, *classes); !fits.ok()) {
    return flags.reporter.Fail(fits, ExitStatus::kUsage);
  }
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-bench", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<FanoutOptions> options = Plan(flags, *classes, folder->path());
  if (!options.ok()) {
    return flags.reporter.Fail(options.status(), absl::IsInvalidArgument(options.status())
                                                     ? ExitStatus::kUsage
                                                     : ExitStatus::kLocalFiles);
  }
  absl::StatusOr<FanoutMeasurement> measured = MeasureFanout(*options);
  if (!measured.ok()) return FailMeasuring(flags, *folder, measured.status());
  measured->holder_rate = HolderRateOf(flags, *classes);
  flags.reporter.Report(ToJson(*measured), TextOf(*measured));
  return measured->verified ? ExitStatus::kOk : ExitStatus::kFailed;
}

}  // namespace

void AddBenchFanoutCommand(CLI::App* bench, ExitStatus* exit) {
  auto flags = std::make_shared<FanoutFlags>();
  CLI::App* fanout = bench->add_subcommand(
      "fanout",
      "a version to many virtual hosts at once over links of given rates, beside one flow");
  AddFlags(fanout, flags.get());
  fanout->callback([flags, exit] { *exit = RunFanout(*flags); });
}

}  // namespace th
