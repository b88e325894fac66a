#include "th/memory/checkpoint_writer.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "th/memory/file_descriptor.h"
#include "th/status/status_macros.h"
#include "th/weights/safetensors_index.h"

namespace th {
namespace {

using FileTensors = std::vector<CheckpointTensor>;

// In the order given; aliases go where their owner is.
std::vector<FileTensors> DivideIntoFiles(absl::Span<const CheckpointTensor> tensors,
                                         uint64_t max_file_bytes) {
  std::vector<FileTensors> files(1);
  std::map<std::string, size_t> file_of;
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if (!tensor.spec.alias_of.empty()) continue;
    if (bytes > 0 && bytes + tensor.spec.bytes > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += tensor.spec.bytes;
    file_of[tensor.spec.name] = files.size() - 1;
    files.back().push_back(tensor);
  }
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.spec.alias_of.empty()) continue;
    const auto owner = file_of.find(tensor.spec.alias_of);
    // An unknown owner is refused, by name, when the file is planned.
    files[owner == file_of.end() ? 0 : owner->second].push_back(tensor);
  }
  return files;
}

absl::StatusOr<SafetensorsPlan> PlanFile(const FileTensors& tensors,
                                         const SafetensorsMetadata& metadata) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const CheckpointTensor& tensor : tensors) specs.push_back(tensor.spec);
  return PlanSafetensorsFile(specs, metadata);
}

using Cancelled = std::function<bool()>;

absl::Status WritePieces(const FileDescriptor& file, const void* data, uint64_t bytes,
                         const Cancelled& cancelled) {
  const auto* from = static_cast<const char*>(data);
  for (uint64_t done = 0; done < bytes;) {
    if (cancelled && cancelled()) return absl::CancelledError("interrupted");
    const uint64_t piece = std::min(bytes - done, kCheckpointPieceBytes);
    TH_RETURN_IF_ERROR(file.Write(from + done, piece));
    done += piece;
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const SafetensorsPlan& plan,
                       const FileTensors& tensors, const Cancelled& cancelled) {
  std::map<std::string, const void*> data;
  for (const CheckpointTensor& tensor : tensors) data[tensor.spec.name] = tensor.data;
  TH_ASSIGN_OR_RETURN(const FileDescriptor file, FileDescriptor::Create(path));
  TH_RETURN_IF_ERROR(file.Write(plan.bytes.data(), plan.bytes.size()));
  for (const SafetensorsTensor& tensor : plan.header.tensors) {
    TH_RETURN_IF_ERROR(WritePieces(file, data[tensor.spec.name], tensor.spec.bytes, cancelled));
  }
  return file.Sync();
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  TH_ASSIGN_OR_RETURN(const FileDescriptor file, FileDescriptor::Create(path));
  TH_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  return file.Sync();
}

uint64_t FreeBytes(const std::string& folder) {
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) return UINT64_MAX;  // the write will tell
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

absl::Status DiskFull(const std::string& folder, uint64_t needed, uint64_t free,
                      const std::string& cause) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for the checkpoint ", folder, ": it needs ", needed, " bytes and ",
                   free, " are free", cause.empty() ? "" : " (", cause, cause.empty() ? "" : ")",
                   "; nothing was left behind; make room or name another disk"));
}

std::string FileName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

absl::Status WriteIndex(const std::string& folder, const std::vector<FileTensors>& files) {
  SafetensorsIndex index;
  uint64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const CheckpointTensor& tensor : files[i]) {
      if (!tensor.spec.alias_of.empty()) continue;
      index.weight_map[tensor.spec.name] = FileName(i, files.size());
      bytes += tensor.spec.bytes;
    }
  }
  return WriteText(absl::StrCat(folder, "/", kSafetensorsIndexFile),
                   EncodeSafetensorsIndex(index, bytes));
}

absl::Status WriteInto(const std::string& folder, const std::vector<FileTensors>& files,
                       const std::vector<SafetensorsPlan>& plans, const Cancelled& cancelled) {
  for (size_t i = 0; i < files.size(); ++i) {
    TH_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", FileName(i, files.size())), plans[i],
                                 files[i], cancelled));
  }
  if (files.size() > 1) TH_RETURN_IF_ERROR(WriteIndex(folder, files));
  TH_ASSIGN_OR_RETURN(const FileDescriptor self, FileDescriptor::OpenFolder(folder));
  return self.Sync();
}

constexpr absl::string_view kRandomPart = "XXXXXX";  // of mkdtemp
// Another process that cleans up may take a folder in the moment between its making and its lock.
constexpr int kUnfinishedTries = 8;

// A new folder beside `folder`, open and locked: a lock that nobody holds any more tells that the
// process which wrote there has gone.
absl::StatusOr<FileDescriptor> MakeUnfinished(const std::string& folder) {
  for (int i = 0;; ++i) {
    std::string path = absl::StrCat(folder, kUnfinishedMark, kRandomPart);
    if (mkdtemp(path.data()) == nullptr) return FileError("create", path, errno);
    absl::StatusOr<FileDescriptor> made = FileDescriptor::OpenFolder(path);
    // Without locks nobody removes it.
    if (made.ok() && (made->TryLock() || errno != EWOULDBLOCK) && access(path.c_str(), F_OK) == 0) {
      return made;
    }
    if (i >= kUnfinishedTries) {
      return absl::AbortedError(absl::StrCat(path, " was removed by another process"));
    }
  }
}

absl::Status PublishFolder(const std::string& written, const std::string& folder,
                           const std::string& parent) {
  if (chmod(written.c_str(), 0755) != 0) return FileError("set the mode of", written, errno);
  // Replaces an empty folder; refuses one with content.
  if (rename(written.c_str(), folder.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST) {
      return absl::AlreadyExistsError(
          absl::StrCat(folder, " exists and is not empty; give another folder or empty it"));
    }
    return FileError("name", folder, errno);
  }
  TH_ASSIGN_OR_RETURN(const FileDescriptor above, FileDescriptor::OpenFolder(parent));
  return above.Sync();
}

absl::Status CheckTarget(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return absl::OkStatus();
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " exists and is no folder"));
  }
  if (!std::filesystem::is_empty(folder, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " exists and is not empty; give another folder or empty it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& path, absl::Span<const CheckpointTensor> tensors,
                             const CheckpointWriteOptions& options) {
  const std::string folder(absl::StripSuffix(path, "/"));
  if (folder.empty()) return absl::InvalidArgumentError("no folder was named for the checkpoint");
  TH_RETURN_IF_ERROR(CheckTarget(folder));
  const std::vector<FileTensors> files = DivideIntoFiles(tensors, options.max_file_bytes);
  std::vector<SafetensorsPlan> plans;
  uint64_t needed = 0;
  for (const FileTensors& file : files) {
    TH_ASSIGN_OR_RETURN(SafetensorsPlan plan, PlanFile(file, options.metadata));
    needed += plan.file_bytes;
    plans.push_back(std::move(plan));
  }

  const std::filesystem::path target(folder);
  const std::string parent = target.has_parent_path() ? target.parent_path().string() : ".";
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return FileError("create", parent, error.value());
  if (const uint64_t free = FreeBytes(parent); free < needed)
    return DiskFull(folder, needed, free, "");

  TH_ASSIGN_OR_RETURN(const FileDescriptor lock, MakeUnfinished(folder));
  const std::string& unfinished = lock.path();
  absl::Status status = WriteInto(unfinished, files, plans, options.cancelled);
  if (status.ok()) status = PublishFolder(unfinished, folder, parent);
  if (status.ok()) return status;
  const uint64_t free_then = FreeBytes(parent);
  std::filesystem::remove_all(unfinished, error);
  if (absl::IsResourceExhausted(status))
    return DiskFull(folder, needed, free_then, std::string(status.message()));
  return status;
}

bool RemoveIfUnfinished(const std::string& path) {
  const size_t mark = absl::string_view(path).rfind(kUnfinishedMark);
  const bool named_so = mark != absl::string_view::npos &&
                        path.size() == mark + kUnfinishedMark.size() + kRandomPart.size();
  if (!named_so) return false;
  const absl::StatusOr<FileDescriptor> folder = FileDescriptor::OpenFolder(path);
  if (!folder.ok() || !folder->TryLock()) return false;
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return !error;
}

}  // namespace th
