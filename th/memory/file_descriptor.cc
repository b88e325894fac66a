#include "th/memory/file_descriptor.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

// One system call moves at most about 2 GiB.
constexpr uint64_t kMaxCallBytes = uint64_t{1} << 30;

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EFBIG:  // a limit on the size of files
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status FileError(absl::string_view what, absl::string_view path, int error_number) {
  return absl::Status(CodeOf(error_number),
                      absl::StrCat("cannot ", what, " ", path, ": ", strerror(error_number)));
}

absl::StatusOr<FileDescriptor> FileDescriptor::Open(std::string path, int flags) {
  FileDescriptor file;
  file.path_ = std::move(path);
  file.fd_ = open(file.path_.c_str(), flags | O_CLOEXEC, 0644);
  if (file.fd_ < 0) {
    return FileError((flags & O_CREAT) != 0 ? "create" : "open", file.path_, errno);
  }
  return file;
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenForReading(std::string path) {
  return Open(std::move(path), O_RDONLY);
}

absl::StatusOr<FileDescriptor> FileDescriptor::Create(std::string path) {
  return Open(std::move(path), O_WRONLY | O_CREAT | O_EXCL);
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenForAppending(std::string path) {
  return Open(std::move(path), O_RDWR | O_CREAT | O_APPEND);
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenFolder(std::string path) {
  return Open(std::move(path), O_RDONLY | O_DIRECTORY);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

absl::StatusOr<uint64_t> FileDescriptor::Size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return FileError("examine", path_, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is no regular file"));
  }
  return static_cast<uint64_t>(info.st_size);
}

absl::Status FileDescriptor::ReadAt(uint64_t offset, void* to, uint64_t bytes) const {
  auto* destination = static_cast<std::byte*>(to);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd_, destination + done, std::min(bytes - done, kMaxCallBytes),
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path_, errno);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends at byte ", offset + done, ", ", bytes - done,
                       " bytes before what its header says: it was cut off or is being written"));
    }
    done += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status FileDescriptor::Write(const void* from, uint64_t bytes) const {
  const auto* source = static_cast<const std::byte*>(from);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t put = write(fd_, source + done, std::min(bytes - done, kMaxCallBytes));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FileError("write", path_, errno);
    done += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

bool FileDescriptor::TryLock() const { return flock(fd_, LOCK_EX | LOCK_NB) == 0; }

bool FileDescriptor::IsAtItsPath() const {
  struct stat own, named;
  return fstat(fd_, &own) == 0 && stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

absl::Status FileDescriptor::Truncate(uint64_t bytes) const {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return FileError("shorten", path_, errno);
  return absl::OkStatus();
}

absl::Status FileDescriptor::Sync() const {
  if (fsync(fd_) != 0) return FileError("sync", path_, errno);
  return absl::OkStatus();
}

}  // namespace th
