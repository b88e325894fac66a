#include "th/transfer/same_host/mapped_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

// True for the file that the owner named. Looked at before it is opened too: to open a device or a
// pipe may do something.
bool IsOffered(const struct stat& file, const OfferedRange& offered) {
  return S_ISREG(file.st_mode) && file.st_ino == offered.inode &&
         static_cast<uint64_t>(file.st_size) == offered.bytes;
}

// True for the file that the owner named, of a size that nobody can change any more.
bool IsOfferedAndSealed(int fd, const OfferedRange& offered) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || !IsOffered(file, offered)) return false;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

std::shared_ptr<const MappedRange> MapFile(pid_t owner, const OfferedRange& offered) {
  if (offered.bytes == 0) return nullptr;
  const std::string path = absl::StrCat("/proc/", owner, "/fd/", offered.file_descriptor);
  struct stat named {};
  if (stat(path.c_str(), &named) != 0 || !IsOffered(named, offered)) return nullptr;
  const stream::Socket file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open() || !IsOfferedAndSealed(file.fd(), offered)) return nullptr;
  void* const mapped = mmap(nullptr, offered.bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, offered.bytes, MADV_HUGEPAGE);  // only advice: failure costs speed
  return std::make_shared<MappedRange>(static_cast<const std::byte*>(mapped), offered.bytes);
}

bool HasEnded(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

}  // namespace

MappedRange::~MappedRange() { munmap(const_cast<std::byte*>(data_), bytes_); }

std::shared_ptr<const MappedRange> MappedMemory::Map(pid_t owner, const OfferedRange& offered) {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) {
    return each.id == offered.id && each.owner == owner && each.range->bytes() == offered.bytes;
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().range;
  }
  std::shared_ptr<const MappedRange> range = MapFile(owner, offered);
  if (range == nullptr) return nullptr;
  kept_.push_front({.id = offered.id, .owner = owner, .range = range});
  Trim();
  return range;
}

void MappedMemory::Trim() {
  size_t idle = 0;
  kept_.remove_if([&idle](const Kept& each) {
    if (each.range.use_count() > 1) return false;
    return ++idle > kMaxIdleMappings || HasEnded(each.owner);
  });
}

}  // namespace th::same_host
