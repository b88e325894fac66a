#include "th/worker/version_folders.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "th/memory/checkpoint_folder.h"
#include "th/memory/checkpoint_writer.h"
#include "th/worker/saved_model.h"

namespace th {
namespace {

namespace fs = std::filesystem;

// The sequence in "1.2-step-7".
std::optional<VersionSequence> SequenceOf(const std::string& name) {
  const size_t dash = name.find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto selector = ParseVersionSelector(absl::StrCat("#", name.substr(0, dash)));
  if (!selector.ok()) return std::nullopt;
  const auto* sequence = std::get_if<VersionSequence>(&*selector);
  return sequence == nullptr ? std::nullopt : std::make_optional(*sequence);
}

std::vector<fs::path> EntriesOf(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  return entries;
}

// True when the folder holds nothing but files as WriteCheckpoint names them.
bool HasNothingElse(const std::string& folder) {
  const std::vector<fs::path> entries = EntriesOf(folder);
  return std::all_of(entries.begin(), entries.end(), [](const fs::path& entry) {
    const std::string name = entry.filename().string();
    return absl::StartsWith(name, "model") && (absl::EndsWith(name, ".safetensors") ||
                                               absl::EndsWith(name, ".safetensors.index.json"));
  });
}

bool Says(const SafetensorsMetadata& metadata, const char* what, absl::string_view value) {
  const auto found = metadata.find(what);
  return found != metadata.end() && found->second == value;
}

// In one step out of the way of whoever reads it; what a kill leaves of it is a leftover.
bool Remove(const std::string& folder) {
  const std::string doomed = absl::StrCat(folder, kUnfinishedMark, "remove");
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(folder, doomed, error);
  if (error) return false;
  fs::remove_all(doomed, error);
  return !error;
}

}  // namespace

VersionFolders::VersionFolders(std::string into, ModelKey key,
                               std::function<bool(VersionSequence)> is_withdrawn)
    : into_(std::move(into)), key_(std::move(key)), is_withdrawn_(std::move(is_withdrawn)) {}

std::string VersionFolders::PathOf(const VersionInfo& version) const {
  // The sequence too: a label may come again after a roll-back. A label may hold what means
  // something in a path.
  return absl::StrCat(into_, "/", version.sequence.ToString(), "-",
                      absl::StrReplaceAll(version.label.text(), {{"/", "_"}}));
}

std::vector<std::string> VersionFolders::RemoveUnfinished() const {
  std::vector<std::string> removed;
  for (const fs::path& entry : EntriesOf(into_)) {
    if (!SequenceOf(entry.filename().string()).has_value()) continue;
    if (RemoveIfUnfinished(entry.string())) removed.push_back(entry.string());
  }
  return removed;
}

bool VersionFolders::IsOurs(const std::string& path, VersionSequence sequence) const {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error)) || !HasNothingElse(path)) return false;
  const absl::StatusOr<CheckpointFolder> folder = CheckpointFolder::Open(path);
  return folder.ok() && Says(folder->metadata(), kSavedRun, key_.run) &&
         Says(folder->metadata(), kSavedModel, key_.model) &&
         Says(folder->metadata(), kSavedSequence, sequence.ToString());
}

std::vector<VersionFolders::Folder> VersionFolders::OursBut(const std::string& current) const {
  std::vector<Folder> ours;
  for (const fs::path& entry : EntriesOf(into_)) {
    const std::string name = entry.filename().string();
    // Another follower may be writing there.
    if (absl::StrContains(name, kUnfinishedMark)) continue;
    const std::optional<VersionSequence> sequence = SequenceOf(name);
    if (!sequence.has_value() || name == fs::path(current).filename()) continue;
    if (IsOurs(entry.string(), *sequence)) ours.push_back({*sequence, entry.string()});
  }
  std::sort(ours.begin(), ours.end(),
            [](const Folder& a, const Folder& b) { return a.sequence > b.sequence; });
  return ours;
}

std::vector<std::string> VersionFolders::RemoveOlder(size_t keep,
                                                     const std::string& current) const {
  const size_t kept = std::max<size_t>(keep, 1) - (current.empty() ? 0 : 1);
  std::vector<Folder> ours = OursBut(current);
  if (ours.size() <= kept) return {};
  std::vector<Folder> standing, others;  // withdrawn, or older than so many that stand
  for (Folder& folder : ours) {
    // Each question may be a call to the server: none is asked once enough stand.
    const bool stands = standing.size() < kept && !is_withdrawn_(folder.sequence);
    (stands ? standing : others).push_back(std::move(folder));
  }
  std::vector<std::string> removed;
  for (size_t i = kept - standing.size(); i < others.size(); ++i) {
    if (Remove(others[i].path)) removed.push_back(others[i].path);
  }
  return removed;
}

}  // namespace th
