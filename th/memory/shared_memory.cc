#include "th/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/memory/aligned_mapping.h"

namespace th {
namespace {

constexpr char kFileName[] = "tensorhub-arena";  // as /proc/<pid>/maps shows it

struct Ranges {
  const pid_t process = getpid();
  absl::Mutex mu;
  std::map<const std::byte*, SharedMemoryRange> by_address ABSL_GUARDED_BY(mu);
};

// Never destroyed: memory may be given back during the process's exit.
Ranges& AllRanges() {
  static Ranges* const ranges = new Ranges;
  return *ranges;
}

absl::Status FileFailed(const char* call) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no file in memory for an arena: ", call, ": ", strerror(errno)));
}

// A sealed file of `bytes`. Sets everything of the range but its address.
absl::StatusOr<SharedMemoryRange> CreateFile(uint64_t bytes) {
  SharedMemoryRange range{.bytes = bytes};
  range.file_descriptor = memfd_create(kFileName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (range.file_descriptor < 0) return FileFailed("memfd_create");
  struct stat file {};
  const bool made =
      ftruncate(range.file_descriptor, static_cast<off_t>(bytes)) == 0 &&
      fcntl(range.file_descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
      fstat(range.file_descriptor, &file) == 0 &&
      getrandom(&range.id, sizeof(range.id), 0) == ssize_t{sizeof(range.id)};
  if (!made) {
    const absl::Status failed = FileFailed("ftruncate, fcntl, fstat or getrandom");
    close(range.file_descriptor);
    return failed;
  }
  range.inode = file.st_ino;
  return range;
}

}  // namespace

absl::StatusOr<std::byte*> MapSharedMemory(uint64_t bytes) {
  absl::StatusOr<SharedMemoryRange> range = CreateFile(bytes);
  if (!range.ok()) return range.status();
  range->address = MapAligned(range->file_descriptor, bytes);
  if (range->address == nullptr) {
    const absl::Status failed = FileFailed("mmap");
    close(range->file_descriptor);
    return failed;
  }
  Ranges& ranges = AllRanges();
  absl::MutexLock lock(&ranges.mu);
  ranges.by_address[range->address] = *range;
  return range->address;
}

bool UnmapSharedMemory(std::byte* data) {
  SharedMemoryRange range;
  {
    Ranges& ranges = AllRanges();
    absl::MutexLock lock(&ranges.mu);
    const auto found = ranges.by_address.find(data);
    if (found == ranges.by_address.end()) return false;
    range = found->second;
    ranges.by_address.erase(found);
  }
  // Whoever else has mapped them keeps no page of them. A forked child only leaves its parent's.
  if (getpid() == AllRanges().process) {
    fallocate(range.file_descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(range.bytes));
  }
  munmap(range.address, range.bytes);
  close(range.file_descriptor);
  return true;
}

std::optional<SharedMemoryRange> FindSharedMemory(const void* address, uint64_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(address);
  Ranges& ranges = AllRanges();
  absl::ReaderMutexLock lock(&ranges.mu);
  auto found = ranges.by_address.upper_bound(begin);
  if (found == ranges.by_address.begin()) return std::nullopt;
  const SharedMemoryRange& range = std::prev(found)->second;
  const auto offset = static_cast<uint64_t>(begin - range.address);
  if (offset > range.bytes || bytes > range.bytes - offset) return std::nullopt;
  return range;
}

std::vector<SharedMemoryRange> AllSharedMemory() {
  std::vector<SharedMemoryRange> all;
  Ranges& ranges = AllRanges();
  absl::ReaderMutexLock lock(&ranges.mu);
  for (const auto& [address, range] : ranges.by_address) all.push_back(range);
  return all;
}

}  // namespace th
