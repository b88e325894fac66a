// th verify: whether a safetensors folder is a published version, or another folder.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/cli/commands.h"
#include "th/cli/pulling.h"
#include "th/command_line/reporter.h"
#include "th/memory/checkpoint_folder.h"
#include "th/status/status_macros.h"
#include "th/worker/checkpoint_comparison.h"

namespace th {
namespace {

struct VerifyFlags {
  PullFlags pull{.command = "verify"};
  std::string folder;
  std::string other;
  bool bytes = false;
  Reporter reporter;
};

// The two sides of a comparison, and what differs.
struct Verification {
  std::string with;  // "version step-57 (#1.2)"
  std::string by;    // "SHA-256 of every tensor"
  uint64_t compared = 0;
  std::vector<std::string> differences;
};

constexpr char kByTensors[] = "SHA-256 of every tensor";
constexpr char kByRoots[] = "root digests of the published shards";

absl::StatusOr<Verification> CompareFolders(const CheckpointFolder& folder,
                                            const VerifyFlags& flags) {
  TH_ASSIGN_OR_RETURN(const CheckpointFolder other, CheckpointFolder::Open(flags.other));
  TH_ASSIGN_OR_RETURN(const ChecksummedModel left, ChecksumFolder(folder));
  TH_ASSIGN_OR_RETURN(const ChecksummedModel right, ChecksumFolder(other));
  return Verification{.with = flags.other,
                      .by = kByTensors,
                      .compared = left.size(),
                      .differences = Differences(left, flags.folder, right, flags.other)};
}

absl::StatusOr<Verification> CompareBytes(const CheckpointFolder& folder, const VerifyFlags& flags,
                                          const FoundVersion& found, StopSignals* stop) {
  TH_ASSIGN_OR_RETURN(const PulledModel pulled, Pull(flags.pull, found, stop));
  stop->StopHoldingOff();
  TH_ASSIGN_OR_RETURN(const ChecksummedModel left, ChecksumFolder(folder));
  const std::string with = absl::StrCat("version ", found.shards.version.ToString());
  return Verification{
      .with = with,
      .by = kByTensors,
      .compared = left.size(),
      .differences = Differences(left, flags.folder, ChecksumMemory(pulled.model.tensors()), with)};
}

absl::StatusOr<Verification> CompareRoots(const CheckpointFolder& folder,
                                          const FoundVersion& found) {
  Verification verification{.with = absl::StrCat("version ", found.shards.version.ToString()),
                            .by = kByRoots};
  TH_ASSIGN_OR_RETURN(const std::vector<ShardLayout> layouts,
                      FetchLayouts(*found.controller, found.shards));
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (found.shards.shards[i].root.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          verification.with, " has no root digest to compare with yet; use --bytes, or try again"));
    }
    const absl::StatusOr<Digest> root = RootOfShard(folder, layouts[i]);
    if (!root.ok() && !absl::IsFailedPrecondition(root.status())) return root.status();
    ++verification.compared;
    if (!root.ok()) {
      verification.differences.push_back(std::string(root.status().message()));
    } else if (*root != found.shards.shards[i].root) {
      verification.differences.push_back(absl::StrCat(
          "shard ", layouts[i].digest().ShortHex(), " has the root ", root->ShortHex(), ", not ",
          found.shards.shards[i].root.ShortHex(), "; --bytes names the tensors"));
    }
  }
  return verification;
}

ExitStatus Report(const VerifyFlags& flags, const absl::StatusOr<Verification>& verification) {
  if (!verification.ok()) return flags.reporter.Fail(verification.status());
  const bool same = verification->differences.empty();
  flags.reporter.Report(
      {{"same", same},
       {"folder", flags.folder},
       {"with", verification->with},
       {"by", verification->by},
       {"compared", verification->compared},
       {"differences", verification->differences}},
      same ? absl::StrCat("SAME: ", flags.folder, " is ", verification->with, " (",
                          verification->by, ")")
           : absl::StrCat("DIFFERENT: ", flags.folder, " is not ", verification->with, "\n",
                          absl::StrJoin(verification->differences, "\n")));
  return same ? ExitStatus::kOk : ExitStatus::kFailed;
}

ExitStatus RunVerify(const VerifyFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<CheckpointFolder> folder = CheckpointFolder::Open(flags.folder);
  if (!folder.ok()) return flags.reporter.Fail(folder.status(), ExitStatus::kLocalFiles);
  if (!flags.other.empty()) {
    const absl::StatusOr<Verification> verification = CompareFolders(*folder, flags);
    return verification.ok() ? Report(flags, verification)
                             : flags.reporter.Fail(verification.status(), ExitStatus::kLocalFiles);
  }
  const absl::StatusOr<VersionSelector> selector = ParseVersionSelector(flags.pull.version);
  if (!selector.ok()) return flags.reporter.Fail(selector.status(), ExitStatus::kUsage);
  const absl::Status options = ReaderOptions(flags.pull).status();
  if (!options.ok()) return flags.reporter.Fail(options, ExitStatus::kUsage);
  const absl::StatusOr<FoundVersion> found = FindVersion(flags.pull);
  if (!found.ok()) return flags.reporter.Fail(found.status());
  return Report(flags, flags.bytes ? CompareBytes(*folder, flags, *found, &stop)
                                   : CompareRoots(*folder, *found));
}

}  // namespace

void AddVerifyCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* verify = app->add_subcommand(
      "verify",
      "whether a safetensors folder holds what a version was published as, or another folder");
  verify->add_flag(
      "--bytes", flags->bytes,
      "pull the version and compare every tensor by SHA-256, instead of the folder's sums with "
      "the roots that the server keeps");
  AddPullFlags(verify, &flags->pull);
  // All of these are about a version. Those that the environment or a file may give are not the
  // caller's word: they stand on any node.
  std::vector<CLI::Option*> of_version = verify->get_options([verify](const CLI::Option* option) {
    return option != verify->get_help_ptr() && option->get_envname().empty();
  });
  verify->add_option("folder", flags->folder, "the folder in question")->required();
  CLI::Option* other =
      verify->add_option("other", flags->other, "a folder to compare with, instead of a version");
  for (CLI::Option* option : of_version) option->excludes(other);
  flags->reporter.AddFlag(verify);
  verify->callback([flags, exit] { *exit = RunVerify(*flags); });
}

}  // namespace th
