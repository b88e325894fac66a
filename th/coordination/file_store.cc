#include "th/coordination/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/coordination/state_encoding.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kStateFile[] = "state";
constexpr char kNewStateFile[] = "state.new";
constexpr char kLockFile[] = "lock";
constexpr size_t kReadBytes = size_t{64} << 10;

absl::Status SystemError(absl::string_view doing, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

absl::Status Advised(const absl::Status& status) {
  return absl::Status(
      status.code(), absl::StrCat(status.message(),
                                  "; make it writable for this user, or name another --state-dir"));
}

// Restarts a system call that a signal interrupted.
template <typename Call>
auto Retrying(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

absl::Status WriteAll(int fd, absl::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = Retrying([&] { return write(fd, content.data(), content.size()); });
    if (written < 0) return SystemError("write", path);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string content;
  for (;;) {
    const size_t before = content.size();
    content.resize(before + kReadBytes);
    const ssize_t count = Retrying([&] { return read(fd, &content[before], kReadBytes); });
    if (count < 0) return SystemError("read", path);
    content.resize(before + static_cast<size_t>(count));
    if (count == 0) return content;
    if (content.size() > kMaxStateBytes) {
      return absl::DataLossError(absl::StrCat(path, " has more than ", kMaxStateBytes, " bytes"));
    }
  }
}

// nullopt: there is no such file.
absl::StatusOr<std::optional<std::string>> ReadFile(int directory_fd, const char* name,
                                                    const std::string& path) {
  const int fd = Retrying([&] { return openat(directory_fd, name, O_RDONLY | O_CLOEXEC); });
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) return SystemError("open", path);
  absl::StatusOr<std::string> content = ReadAll(fd, path);
  close(fd);
  if (!content.ok()) return content.status();
  return *std::move(content);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(std::string directory,
                                                           FileStoreOptions options) {
  std::unique_ptr<FileStore> store(new FileStore(std::move(directory), std::move(options)));
  TH_RETURN_IF_ERROR(store->OpenDirectory());
  TH_RETURN_IF_ERROR(store->Lock());
  TH_RETURN_IF_ERROR(store->LoadAndBeginEpoch());
  return store;
}

FileStore::FileStore(std::string directory, FileStoreOptions options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

FileStore::~FileStore() {
  if (lock_fd_ >= 0) close(lock_fd_);
  if (directory_fd_ >= 0) close(directory_fd_);
}

absl::Status FileStore::Write(const DurableState& state) {
  const std::string content =
      EncodeState({.epoch = opened_.epoch, .identity = opened_.identity, .durable = state});
  if (content.size() <= options_.max_bytes) return Replace(content);
  return absl::ResourceExhaustedError(absl::StrCat("the state of ", state.models.size(),
                                                   " models has ", content.size(), " bytes, and ",
                                                   directory_, " takes ", options_.max_bytes));
}

absl::Status FileStore::BeginAbove(Epoch heard, const DurableState& state) {
  OpenedState next{.epoch = std::max(opened_.epoch, heard).Next(),
                   .identity = opened_.identity,
                   .durable = state,
                   .started_before = true};
  return BeginEpoch(std::move(next));
}

absl::Status FileStore::OpenDirectory() {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) {
    return Advised(absl::ErrnoToStatus(error.value(),
                                       absl::StrCat("cannot create state directory ", directory_)));
  }
  directory_fd_ =
      Retrying([&] { return open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (directory_fd_ < 0) return Advised(SystemError("open state directory", directory_));
  return absl::OkStatus();
}

absl::Status FileStore::Lock() {
  const std::string path = absl::StrCat(directory_, "/", kLockFile);
  lock_fd_ = Retrying(
      [&] { return openat(directory_fd_, kLockFile, O_RDWR | O_CREAT | O_CLOEXEC, 0600); });
  if (lock_fd_ < 0) return Advised(SystemError("open", path));
  if (Retrying([&] { return flock(lock_fd_, LOCK_EX | LOCK_NB); }) < 0) {
    if (errno != EWOULDBLOCK) return SystemError("lock", path);
    const absl::StatusOr<std::string> holder = ReadAll(lock_fd_, path);
    return absl::FailedPreconditionError(absl::StrCat(
        "state directory ", directory_, " is in use by process ", holder.value_or("unknown"),
        "; stop that server, or start this one with another --state-dir"));
  }
  if (ftruncate(lock_fd_, 0) < 0) return SystemError("write", path);
  return WriteAll(lock_fd_, absl::StrCat(getpid()), path);
}

absl::Status FileStore::LoadAndBeginEpoch() {
  const std::string path = absl::StrCat(directory_, "/", kStateFile);
  TH_ASSIGN_OR_RETURN(const std::optional<std::string> content,
                      ReadFile(directory_fd_, kStateFile, path));
  std::optional<StoredState> stored;
  if (content.has_value()) {
    absl::StatusOr<StoredState> decoded = DecodeState(*content);
    if (!decoded.ok()) {
      return absl::Status(
          decoded.status().code(),
          absl::StrCat("state file ", path, " cannot be used: ", decoded.status().message(),
                       "; restore it from a backup, an older one too: what workers hold they tell "
                       "again. Without any, pins, retention policies and roll-backs are lost"));
    }
    stored = *std::move(decoded);
  }
  if (stored.has_value() && stored->epoch.value == std::numeric_limits<uint32_t>::max()) {
    return absl::OutOfRangeError(absl::StrCat("state file ", path, " has no epoch left"));
  }
  OpenedState opened{.started_before = stored.has_value()};
  std::optional<Epoch> last;
  if (stored.has_value()) {
    last = stored->epoch;
    opened.identity = std::move(stored->identity);
    opened.durable = std::move(stored->durable);
  }
  opened.epoch = EpochAfter(last, options_.now());
  if (opened.identity.cluster == ClusterId()) NameCluster(opened.identity, options_.random);
  return BeginEpoch(std::move(opened));
}

absl::Status FileStore::BeginEpoch(OpenedState opened) {
  BeginEpochOf(opened.identity, EpochId(options_.random()));
  std::swap(opened_, opened);
  absl::Status written = Write(opened_.durable);
  if (!written.ok()) std::swap(opened_, opened);
  return written;
}

absl::Status FileStore::Replace(const std::string& content) {
  const absl::Status written = WriteNewFile(content);
  if (!written.ok()) {
    unlinkat(directory_fd_, kNewStateFile, 0);  // a full disk wants its bytes back
    return written;
  }
  TH_RETURN_IF_ERROR(Before(WriteStep::kRename));
  if (renameat(directory_fd_, kNewStateFile, directory_fd_, kStateFile) < 0) {
    return SystemError("replace", absl::StrCat(directory_, "/", kStateFile));
  }
  TH_RETURN_IF_ERROR(Before(WriteStep::kSyncDirectory));
  if (Retrying([&] { return fsync(directory_fd_); }) < 0) return SystemError("sync", directory_);
  return absl::OkStatus();
}

absl::Status FileStore::WriteNewFile(const std::string& content) {
  const std::string path = absl::StrCat(directory_, "/", kNewStateFile);
  TH_RETURN_IF_ERROR(Before(WriteStep::kCreate));
  const int fd = Retrying([&] {
    return openat(directory_fd_, kNewStateFile,
                  O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  });
  if (fd < 0) return SystemError("create", path);
  absl::Status status = Before(WriteStep::kWrite);
  if (status.ok()) status = WriteAll(fd, content, path);
  if (status.ok()) status = Before(WriteStep::kSync);
  if (status.ok() && Retrying([&] { return fsync(fd); }) < 0) status = SystemError("sync", path);
  if (close(fd) < 0 && status.ok()) status = SystemError("close", path);
  return status;
}

absl::Status FileStore::Before(WriteStep step) const {
  return options_.before_step ? options_.before_step(step) : absl::OkStatus();
}

}  // namespace th
