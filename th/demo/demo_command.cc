// th demo: TensorHub at work on a real model, on this machine alone.
#include "th/demo/demo_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/process_setup.h"
#include "th/command_line/progress_screen.h"
#include "th/command_line/quantity.h"
#include "th/command_line/reporter.h"
#include "th/command_line/run_command_line.h"
#include "th/demo/demo_report.h"
#include "th/demo/demo_scene.h"
#include "th/processes/held_signals.h"
#include "th/processes/runfiles.h"
#include "th/processes/scratch_folder.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// Without --rate the largest shard takes about so long over one uplink: long enough to be seen.
constexpr uint64_t kWantedTransferSeconds = 2;
constexpr uint64_t kSlowestDefaultRate = 1'000'000;

constexpr char kModelRepository[] = "all_minilm_l6_v2";
constexpr char kModelFile[] = "model/model.safetensors";
constexpr char kModelWithoutRunfiles[] = "llm";

struct DemoFlags {
  std::string model;
  std::string synthetic;
  uint64_t bytes = uint64_t{256} << 20;
  std::optional<uint64_t> rate;
  uint32_t trainer_ranks = 4;
  uint32_t shards = 2;
  uint32_t rollouts = 4;
  uint32_t rollout_ranks = 2;
  std::string server_binary;
  std::string keep;
  std::string sabotage;
  Reporter reporter;
};

void AddFlags(CLI::App* app, DemoFlags* flags) {
  auto* model =
      app->add_option("--model", flags->model,
                      "a folder of safetensors (or one such file); by default all-MiniLM-L6-v2");
  auto* synthetic =
      app->add_option("--synthetic", flags->synthetic, "a made-up model of this shape instead");
  synthetic->check(CLI::IsMember({"llm", "moe"}))->excludes(model);
  AddByteSizeFlag(app, "--bytes", &flags->bytes, "size of the made-up model", "256MiB")
      ->needs(synthetic);
  app->add_option_function<std::string>(
         "--rate",
         [flags](const std::string& text) {
           const absl::StatusOr<uint64_t> rate = ParseRate(text);
           if (!rate.ok())
             throw CLI::ValidationError("--rate", std::string(rate.status().message()));
           flags->rate = *rate;
         },
         "cap of every process's uplink, like 20MB/s or 1gbit; none lifts it")
      ->default_str("so that a transfer takes some 2 s");
  app->add_option("--trainer-ranks", flags->trainer_ranks, "ranks of the trainer")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--shards", flags->shards, "distinct shards of the model")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rollouts", flags->rollouts, "rollout groups")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rollout-ranks", flags->rollout_ranks, "ranks of each rollout group")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--server-binary", flags->server_binary,
                  "tensorhub_server, if it is not beside th")
      ->check(CLI::ExistingFile);
  app->add_option("--keep", flags->keep, "keep state and logs of all processes in this folder");
  app->add_option("--sabotage", flags->sabotage, "spoil a reader, to see that it is noticed")
      ->check(CLI::IsMember({"scribble", "hoard"}))
      ->group("");  // hidden
  flags->reporter.AddFlag(app);
}

absl::Status CheckShape(const DemoFlags& flags) {
  const uint32_t fewest = std::min(flags.trainer_ranks, flags.rollout_ranks);
  if (fewest >= flags.shards) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--shards ", flags.shards, " cannot be held by a group of ", fewest,
                   " ranks: give --trainer-ranks and --rollout-ranks of at least as many"));
}

// The story goes where it does not disturb the JSON object.
FILE* StoryStream(const DemoFlags& flags) { return flags.reporter.json() ? stderr : stdout; }

absl::StatusOr<ModelChoice> ChooseModel(const DemoFlags& flags) {
  if (!flags.synthetic.empty())
    return ModelChoice{.synthetic = flags.synthetic, .bytes = flags.bytes};
  if (!flags.model.empty()) return ModelChoice{.folder = flags.model};
  const absl::StatusOr<std::string> file = FindRunfile(kModelRepository, kModelFile);
  if (file.ok()) return ModelChoice{.folder = *file};
  // An installed th comes without a model.
  fputs(
      "no model came with this th: a made-up one moves, as with --synthetic llm; --model names a "
      "real one\n",
      StoryStream(flags));
  return ModelChoice{.synthetic = kModelWithoutRunfiles, .bytes = flags.bytes};
}

absl::StatusOr<DemoSceneOptions> PlanScene(const DemoFlags& flags, const std::string& folder) {
  DemoSceneOptions options{.trainer_ranks = flags.trainer_ranks,
                           .rollouts = flags.rollouts,
                           .rollout_ranks = flags.rollout_ranks,
                           .sabotage = flags.sabotage};
  TH_ASSIGN_OR_RETURN(std::string rank_program, FindProgram(kControlledRank));
  options.cluster = {.rank_program = std::move(rank_program),
                     .server_program = flags.server_binary,
                     .folder = folder,
                     .shards = flags.shards};
  if (flags.server_binary.empty()) {
    TH_ASSIGN_OR_RETURN(options.cluster.server_program, FindProgram("th/server/tensorhub_server"));
  }
  TH_ASSIGN_OR_RETURN(options.cluster.model, ChooseModel(flags));
  TH_ASSIGN_OR_RETURN(const auto shards, ShardsOf(options.cluster.model, flags.shards));
  uint64_t& largest = options.largest_shard_bytes;
  for (const std::vector<TensorSpec>& shard : shards) {
    largest = std::max(largest, BytesOf(shard));
    options.distinct_bytes += BytesOf(shard);
  }
  options.cluster.uplink_bytes_per_second =
      flags.rate.value_or(std::max(kSlowestDefaultRate, largest / kWantedTransferSeconds));
  return options;
}

std::string CapText(uint64_t bytes_per_second) {
  return bytes_per_second == 0
             ? "no uplink is capped"
             : absl::StrCat("every uplink is capped at ", FormatRate(bytes_per_second));
}

ExitStatus PlayDemo(const DemoFlags& flags, DemoSceneOptions options) {
  FILE* const story = StoryStream(flags);
  ProgressScreen screen(story, TerminalColumns(story));
  screen.ShowLine(absl::StrCat("model: ", options.cluster.model.ToString(), "; ",
                               CapText(options.cluster.uplink_bytes_per_second)));
  DemoReport report;
  const absl::Status played = DemoScene(std::move(options), &screen, &report).Play();
  report.error = std::string(played.message());
  const std::string text =
      absl::StrCat("\n", TransferTable(report), "\n", Summary(report), "\n", Verdict(report), "\n");
  if (flags.reporter.json()) fputs(text.c_str(), story);
  flags.reporter.Report(ToJson(report), text);
  if (absl::IsCancelled(played)) return ExitStatus::kInterrupted;
  return Faults(report).empty() ? ExitStatus::kOk : ExitStatus::kFailed;
}

ExitStatus RunDemo(const DemoFlags& flags) {
  if (const absl::Status shape = CheckShape(flags); !shape.ok()) {
    return flags.reporter.Fail(shape, ExitStatus::kUsage);
  }
  const HeldSignals held;
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Make("th-demo", flags.keep);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  absl::StatusOr<DemoSceneOptions> options = PlanScene(flags, folder->path());
  if (!options.ok()) {
    const bool made_up = !flags.synthetic.empty() && absl::IsInvalidArgument(options.status());
    return flags.reporter.Fail(options.status(),
                               made_up ? ExitStatus::kUsage : ExitStatus::kLocalFiles);
  }
  const ExitStatus exit = PlayDemo(flags, *std::move(options));
  if (exit == ExitStatus::kFailed) {
    folder->Keep();
    fprintf(StoryStream(flags), "the logs of all processes are in %s\n", folder->path().c_str());
  }
  return exit;
}

}  // namespace

void AddDemoCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<DemoFlags>();  // lives as long as CLI11's callback
  CLI::App* demo = app->add_subcommand(
      "demo",
      "publish, relay, kill, rejoin and roll back a real model among processes of this machine");
  AddFlags(demo, flags.get());
  demo->callback([flags, exit] { *exit = RunDemo(*flags); });
}

int RunDemoProgram(int argc, char** argv) {
  SetUpProcess(argv[0]);

  CLI::App app("TensorHub at work among processes of this machine");
  app.name("th_demo");
  app.require_subcommand(1);
  ExitStatus exit = ExitStatus::kOk;
  AddDemoCommand(&app, &exit);
  return RunCommandLine(&app, argc, argv, &exit, UsageErrorAsJson(argc, argv));
}

}  // namespace th
