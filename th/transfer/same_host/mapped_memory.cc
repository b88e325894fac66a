#include "th/transfer/same_host/mapped_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "th/memory/aligned_mapping.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/peer_file.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

// True for a file of the size that was offered, which nobody can change any more.
bool IsSealed(int fd, const OfferedRange& offered) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || static_cast<uint64_t>(file.st_size) != offered.bytes) return false;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  // Pages of other file systems may be gone for good (those of hugetlbfs, once there is no
  // reserve).
  struct statfs system {};
  return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

}  // namespace

std::shared_ptr<const MappedRange> MapOffered(pid_t owner, const OfferedRange& offered) {
  if (offered.bytes == 0 || offered.bytes % kArenaAlignment != 0) return nullptr;
  const stream::Socket file(OpenPeerFile(owner,
                                         {static_cast<int>(offered.file_descriptor), offered.inode},
                                         PeerFileAccess::kRead)
                                .fd);
  if (!file.open() || !IsSealed(file.fd(), offered)) return nullptr;
  // MapAligned chooses an address where the owner's large pages can be mapped as such.
  const std::byte* const mapped = MapAligned(file.fd(), offered.bytes, MappingAccess::kReadOnly);
  if (mapped == nullptr) return nullptr;
  return std::make_shared<MappedRange>(mapped, offered.bytes);
}

MappedRange::~MappedRange() { munmap(const_cast<std::byte*>(data_), bytes_); }

std::shared_ptr<const MappedRange> MappedMemory::Map(pid_t owner, const OfferedRange& offered) {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) {
    return each.id == offered.id && each.owner->process() == owner &&
           each.range->bytes() == offered.bytes;
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().range;
  }
  std::shared_ptr<const MappedRange> range = MapOffered(owner, offered);
  if (range == nullptr) return nullptr;
  kept_.push_front(
      {.id = offered.id, .owner = std::make_unique<const ProcessWatch>(owner), .range = range});
  return range;
}

void MappedMemory::KeepOnly(pid_t owner, absl::Span<const OfferedRange> offered) {
  absl::MutexLock lock(&mu_);
  for (Kept& each : kept_) {
    if (each.owner->process() != owner) continue;
    each.stale = std::none_of(offered.begin(), offered.end(),
                              [&](const OfferedRange& range) { return range.id == each.id; });
  }
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
    if (!in_use && (each->stale || ++idle > kMaxIdleMappings || each->owner->HasEnded())) {
      dropped.splice(dropped.end(), kept_, each);
    }
    each = next;
  }
}

}  // namespace th::same_host
