#include "th/transfer/same_host/mapped_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

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
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  // Pages of other file systems may be gone for good (those of hugetlbfs, once there is no
  // reserve).
  struct statfs system {};
  return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
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

// Readable once the process has ended, whether its parent has taken note or not; not open where the
// kernel has no such descriptors.
std::shared_ptr<const stream::Socket> WatchProcess(pid_t process) {
  return std::make_shared<const stream::Socket>(
      static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
}

bool HasEnded(const stream::Socket& process, pid_t number) {
  if (!process.open()) return kill(number, 0) != 0 && errno == ESRCH;
  pollfd watched{.fd = process.fd(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, 0) > 0;
}

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
  kept_.push_front(
      {.id = offered.id, .owner = owner, .process = WatchProcess(owner), .range = range});
  return range;
}

void MappedMemory::TrimSoon() {
  absl::MutexLock lock(&mu_);
  if (kept_.empty() || std::exchange(trims_, true)) return;
  if (unmapper_ == nullptr) unmapper_ = std::make_unique<TaskThread>("th-unmap");
  unmapper_->Post([this] { Trim(); });
}

void MappedMemory::Trim() {
  std::list<Kept> dropped;  // unmapped outside of the lock: that takes a tenth of a second a GB
  absl::MutexLock lock(&mu_);
  trims_ = false;
  size_t idle = 0;
  for (auto each = kept_.begin(); each != kept_.end();) {
    const auto next = std::next(each);
    const bool in_use = each->range.use_count() > 1;
    if (!in_use && (++idle > kMaxIdleMappings || HasEnded(*each->process, each->owner))) {
      dropped.splice(dropped.end(), kept_, each);
    }
    each = next;
  }
}

}  // namespace th::same_host
