// th pull: a published version as a safetensors folder.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/cli/commands.h"
#include "th/cli/pulling.h"
#include "th/command_line/quantity.h"
#include "th/command_line/reporter.h"
#include "th/worker/saved_model.h"

namespace th {
namespace {

struct PullCommandFlags {
  PullFlags pull;
  std::string folder;
  Reporter reporter;
};

ExitStatus RunPull(const PullCommandFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> selector = ParseVersionSelector(flags.pull.version);
  if (!selector.ok()) return flags.reporter.Fail(selector.status(), ExitStatus::kUsage);
  const absl::Status options = ReaderOptions(flags.pull).status();
  if (!options.ok()) return flags.reporter.Fail(options, ExitStatus::kUsage);
  const absl::StatusOr<FoundVersion> found = FindVersion(flags.pull);
  if (!found.ok()) return flags.reporter.Fail(found.status());
  // Before a byte moves.
  const absl::Status can_save = CheckCanSave(flags.folder, found->shards.bytes);
  if (!can_save.ok()) return flags.reporter.Fail(can_save, ExitStatus::kLocalFiles);
  const absl::StatusOr<PulledModel> pulled = Pull(flags.pull, *found, &stop);
  if (!pulled.ok()) {
    return flags.reporter.Fail(pulled.status(), ExitStatusOfJoin(pulled.status()));
  }
  const absl::Status saved = SaveModel(pulled->model, found->shards.version,
                                       flags.pull.connection.key(), flags.folder, &stop);
  if (!saved.ok()) {
    return flags.reporter.Fail(
        saved, absl::IsCancelled(saved) ? ExitStatus::kInterrupted : ExitStatus::kLocalFiles);
  }
  nlohmann::json report = ToJson(*pulled);
  report["folder"] = flags.folder;
  report["version"] = found->shards.version.label.text();
  report["sequence"] = found->shards.version.sequence.ToString();
  report["tensors"] = pulled->model.tensors().size();
  flags.reporter.Report(
      report, absl::StrFormat("version %s: %d tensors, %s in %.2f s (%.3f GB/s), now in %s",
                              found->shards.version.ToString(), pulled->model.tensors().size(),
                              FormatBytes(pulled->update.bytes_received()),
                              absl::ToDoubleSeconds(pulled->seconds),
                              report["gbytes_per_s"].get<double>(), flags.folder));
  return ExitStatus::kOk;
}

}  // namespace

void AddPullCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<PullCommandFlags>();
  CLI::App* pull = app->add_subcommand("pull", "write a published version as a safetensors folder");
  pull->add_option("folder", flags->folder, "where to; must not exist, or be empty")->required();
  AddPullFlags(pull, &flags->pull);
  pull->add_flag("--wait", flags->pull.wait,
                 "wait until the version is published, at most as long as --timeout");
  flags->reporter.AddFlag(pull);
  pull->callback([flags, exit] { *exit = RunPull(*flags); });
}

}  // namespace th
