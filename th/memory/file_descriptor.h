// A file descriptor that closes itself, and whole reads and writes. Errors name the path and the
// cause.
#ifndef TH_MEMORY_FILE_DESCRIPTOR_H_
#define TH_MEMORY_FILE_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

class FileDescriptor {
 public:
  // NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (no space, too many files), INTERNAL.
  static absl::StatusOr<FileDescriptor> OpenForReading(std::string path);
  static absl::StatusOr<FileDescriptor> Create(std::string path);            // must not exist
  static absl::StatusOr<FileDescriptor> OpenForAppending(std::string path);  // created if missing
  static absl::StatusOr<FileDescriptor> OpenFolder(std::string path);

  FileDescriptor() = default;
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept { *this = std::move(other); }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  const std::string& path() const { return path_; }
  absl::StatusOr<uint64_t> Size() const;
  // All of [offset, offset + bytes). DATA_LOSS when the file ends before.
  absl::Status ReadAt(uint64_t offset, void* to, uint64_t bytes) const;
  absl::Status Write(const void* from, uint64_t bytes) const;
  // Drops what is beyond the first `bytes`.
  absl::Status Truncate(uint64_t bytes) const;
  absl::Status Sync() const;
  // Locks it alone, as long as it is open. False: another process has it, or the file system has no
  // locks.
  bool TryLock() const;
  // True while its path names this file, which somebody may have moved or removed.
  bool IsAtItsPath() const;

 private:
  static absl::StatusOr<FileDescriptor> Open(std::string path, int flags);
  int fd_ = -1;
  std::string path_;
};

// The status of a failed system call on `path`, by errno.
absl::Status FileError(absl::string_view what, absl::string_view path, int error_number);

}  // namespace th

#endif  // TH_MEMORY_FILE_DESCRIPTOR_H_
