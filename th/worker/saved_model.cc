#include "th/worker/saved_model.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/command_line/quantity.h"
#include "th/memory/checkpoint_folder.h"
#include "th/memory/checkpoint_writer.h"
#include "th/status/status_macros.h"
#include "th/worker/checkpoint_comparison.h"

namespace th {

namespace fs = std::filesystem;
namespace {

// Makes a folder beside the one to come and removes it, as who writes that one will: modes, owners
// and read-only file systems together decide whether that can be done.
absl::Status CheckWritable(const std::string& folder, const fs::path& parent) {
  std::string probe = (parent / ".th-can-write-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    const int why = errno;
    return absl::Status(
        absl::ErrnoToStatusCode(why),
        absl::StrCat("cannot write ", folder, ": no folder can be made in ", parent.string(), " (",
                     strerror(why),
                     "); name another place, or have this one's mode or owner changed"));
  }
  std::error_code error;
  fs::remove(probe, error);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCanSave(const std::string& folder, uint64_t bytes) {
  std::error_code error;
  const fs::path path = fs::absolute(folder, error).lexically_normal();
  const bool exists = fs::exists(path, error);
  if (exists && (!fs::is_directory(path, error) || !fs::is_empty(path, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " exists and is not an empty folder; name another or remove it"));
  }
  // A trailing slash makes the last component empty.
  const fs::path parent =
      path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  if (fs::exists(parent, error) && !fs::is_directory(parent, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot write ", folder, ": ", parent.string(), " is no folder; name another"));
  }
  const fs::space_info space = fs::space(parent, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("cannot write ", folder, ": ", parent.string(), ": ", error.message()));
  }
  if (space.available < bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", folder, ": ", FormatBytes(bytes), " are needed and ",
                     FormatBytes(space.available), " are free; make room or name another disk"));
  }
  return CheckWritable(folder, parent);
}

absl::StatusOr<bool> IsSaved(const ModelMemory& model, const VersionInfo& version,
                             const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error) || fs::is_empty(folder, error)) return false;
  TH_ASSIGN_OR_RETURN(const CheckpointFolder checkpoint, CheckpointFolder::Open(folder));
  TH_ASSIGN_OR_RETURN(const ChecksummedModel there, ChecksumFolder(checkpoint));
  const std::vector<std::string> differences =
      Differences(there, folder, ChecksumMemory(model.tensors()), version.ToString());
  if (differences.empty()) return true;
  return absl::AlreadyExistsError(absl::StrCat(folder, " is there already and is not version ",
                                               version.ToString(), ": ", differences.front(),
                                               "; remove it, or write into another folder"));
}

absl::Status SaveModel(const ModelMemory& model, const VersionInfo& version, const ModelKey& key,
                       const std::string& folder, StopSignals* stop) {
  const StopSignals::Unbroken unbroken(stop);
  std::vector<CheckpointTensor> tensors;
  for (const Tensor& tensor : model.tensors())
    tensors.push_back({.spec = static_cast<const TensorSpec&>(tensor), .data = tensor.data});
  return WriteCheckpoint(folder, tensors,
                         {.metadata = {{"format", "pt"},
                                       {kSavedRun, key.run},
                                       {kSavedModel, key.model},
                                       {kSavedVersion, version.label.text()},
                                       {kSavedSequence, version.sequence.ToString()}},
                          .cancelled = [stop] { return stop->requested(); }});
}

}  // namespace th
