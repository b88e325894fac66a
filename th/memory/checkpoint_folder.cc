#include "th/memory/checkpoint_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message(),
                                                  "; fetch it again, or name another folder"));
}

absl::StatusOr<std::string> ReadWhole(const FileDescriptor& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  TH_RETURN_IF_ERROR(file.ReadAt(offset, text.data(), bytes));
  return text;
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const FileDescriptor& file) {
  TH_ASSIGN_OR_RETURN(const uint64_t file_bytes, file.Size());
  TH_ASSIGN_OR_RETURN(const std::string prefix,
                      ReadWhole(file, 0, std::min<uint64_t>(file_bytes, kSafetensorsPrefixBytes)));
  const absl::StatusOr<uint64_t> length = ParseSafetensorsPrefix(prefix, file_bytes);
  if (!length.ok()) return InFile(file.path(), length.status());
  TH_ASSIGN_OR_RETURN(const std::string json, ReadWhole(file, kSafetensorsPrefixBytes, *length));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, file_bytes);
  if (!header.ok()) return InFile(file.path(), header.status());
  return header;
}

absl::StatusOr<SafetensorsIndex> ReadIndex(const std::string& path) {
  TH_ASSIGN_OR_RETURN(const FileDescriptor file, FileDescriptor::OpenForReading(path));
  TH_ASSIGN_OR_RETURN(const uint64_t bytes, file.Size());
  if (bytes > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", bytes, " bytes; an index has at most ", kMaxSafetensorsIndexBytes));
  }
  TH_ASSIGN_OR_RETURN(const std::string json, ReadWhole(file, 0, bytes));
  absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(json);
  if (!index.ok()) return InFile(path, index.status());
  return index;
}

// The names in a folder that end in ".safetensors", sorted.
absl::StatusOr<std::vector<std::string>> SafetensorsFilesIn(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()), &closedir);
  if (listing == nullptr) return FileError("list", folder, errno);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(listing.get())) {
    if (absl::EndsWith(entry->d_name, ".safetensors")) names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> OnlyFileIn(const std::string& folder) {
  TH_ASSIGN_OR_RETURN(const std::vector<std::string> names, SafetensorsFilesIn(folder));
  if (names.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, " holds neither ", kSafetensorsIndexFile,
                     " nor a *.safetensors file; name the folder of a checkpoint"));
  }
  if (names.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " holds ", names.size(), " safetensors files (", names[0], ", ",
                     names[1], names.size() > 2 ? ", …" : "", ") but no ", kSafetensorsIndexFile,
                     " that says what belongs together; give one file, or add the index"));
  }
  return absl::StrCat(folder, "/", names[0]);
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

absl::StatusOr<CheckpointFolder> CheckpointFolder::Open(const std::string& path) {
  CheckpointFolder folder;
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return FileError("open", path, errno);
  const std::string index_path = absl::StrCat(path, "/", kSafetensorsIndexFile);
  if (!S_ISDIR(info.st_mode)) {
    TH_RETURN_IF_ERROR(folder.AddFile(path).status());
  } else if (Exists(index_path)) {
    TH_ASSIGN_OR_RETURN(const SafetensorsIndex index, ReadIndex(index_path));
    const std::vector<std::string> files = index.Files();
    if (files.size() > kMaxCheckpointFiles) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, " names ", files.size(),
                                                     " files; the limit is ", kMaxCheckpointFiles));
    }
    for (const std::string& file : files) {
      TH_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                          folder.AddFile(absl::StrCat(path, "/", file)));
      const absl::Status agrees = CheckAgainstIndex(index, file, header);
      if (!agrees.ok()) return InFile(index_path, agrees);
    }
  } else {
    TH_ASSIGN_OR_RETURN(const std::string file, OnlyFileIn(path));
    TH_RETURN_IF_ERROR(folder.AddFile(file).status());
  }
  folder.AddAliases();
  std::sort(folder.tensors_.begin(), folder.tensors_.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  return folder;
}

absl::StatusOr<SafetensorsHeader> CheckpointFolder::AddFile(const std::string& path) {
  TH_ASSIGN_OR_RETURN(FileDescriptor file, FileDescriptor::OpenForReading(path));
  TH_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(file));
  files_.push_back(std::move(file));
  TH_RETURN_IF_ERROR(AddTensors(header, files_.size() - 1));
  metadata_.insert(header.metadata.begin(), header.metadata.end());
  return header;
}

absl::Status CheckpointFolder::AddTensors(const SafetensorsHeader& header, size_t file) {
  for (const SafetensorsTensor& tensor : header.tensors) {
    const Place place{file, tensor.file_offset, tensor.spec.bytes};
    const auto [other, added] = places_.emplace(tensor.spec.name, place);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.spec.name, " is in two files: ", files_[other->second.file].path(),
          " and ", files_[file].path()));
    }
    tensors_.push_back(tensor.spec);
    bytes_ += tensor.spec.bytes;
  }
  return absl::OkStatus();
}

// safetensors.torch.save_model leaves tied names out and notes {left out: kept} in the metadata.
void CheckpointFolder::AddAliases() {
  std::map<std::string, TensorSpec> owners;
  for (const TensorSpec& tensor : tensors_) owners.emplace(tensor.name, tensor);
  for (const auto& [name, owner] : metadata_) {
    const auto found = owners.find(owner);
    if (found == owners.end() || owners.contains(name)) continue;
    TensorSpec alias = found->second;
    alias.name = name;
    alias.alias_of = owner;
    places_.emplace(name, places_.at(owner));
    tensors_.push_back(std::move(alias));
  }
}

absl::Status CheckpointFolder::Read(const std::string& tensor, void* to) const {
  const auto place = places_.find(tensor);
  if (place == places_.end()) {
    return absl::NotFoundError(absl::StrCat("no tensor ", tensor, " in the folder"));
  }
  return files_[place->second.file].ReadAt(place->second.offset, to, place->second.bytes);
}

}  // namespace th
