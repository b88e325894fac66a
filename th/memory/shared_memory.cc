#include "th/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "th/memory/aligned_mapping.h"
#include "th/memory/page_backing.h"
#include "th/text/byte_size.h"

namespace th {
namespace {

constexpr char kFileName[] = "tensorhub-arena";  // as /proc/<pid>/maps shows it

// How much is copied to a renewed range between two looks at the clock.
constexpr uint64_t kCopyBytes = uint64_t{16} << 20;

struct Ranges {
  // Pages that only readers have any more.
  struct Left {
    uint64_t lease = 0;
    uint64_t bytes = 0;
  };

  const pid_t process = getpid();
  // Held while a renewal puts other pages in the place of a range's, which takes some 0.1 s a GB,
  // and by whoever takes a range out of `by_address`: a range whose pages are being replaced stays
  // mapped. Those that only look for a range take `mu` alone, and do not wait for that.
  absl::Mutex replacing ABSL_ACQUIRED_BEFORE(mu);
  absl::Mutex mu;
  std::map<const std::byte*, SharedMemoryRange> by_address ABSL_GUARDED_BY(mu);
  std::map<uint64_t, uint32_t> pins ABSL_GUARDED_BY(mu);  // by number of the lease
  std::vector<Left> left ABSL_GUARDED_BY(mu);

  // The one that holds all of [address, address + bytes).
  std::optional<SharedMemoryRange> Find(const void* address, uint64_t bytes) const
      ABSL_SHARED_LOCKS_REQUIRED(mu) {
    const auto* const begin = static_cast<const std::byte*>(address);
    auto found = by_address.upper_bound(begin);
    if (found == by_address.begin()) return std::nullopt;
    const SharedMemoryRange& range = std::prev(found)->second;
    const auto offset = static_cast<uint64_t>(begin - range.address);
    if (offset > range.bytes || bytes > range.bytes - offset) return std::nullopt;
    return range;
  }
  bool HasReaders(const SharedMemoryRange& range) const ABSL_SHARED_LOCKS_REQUIRED(mu) {
    return range.lease.number != 0 &&
           (pins.contains(range.lease.number) || IsLeased(range.lease.number));
  }
  bool Has(const SharedMemoryRange& range) ABSL_LOCKS_EXCLUDED(mu) {
    absl::ReaderMutexLock lock(&mu);
    const auto found = by_address.find(range.address);
    return found != by_address.end() && found->second.id == range.id;
  }
  uint64_t BytesLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::erase_if(left, [this](const Left& each) ABSL_SHARED_LOCKS_REQUIRED(mu) {
      return !pins.contains(each.lease) && !IsLeased(each.lease);
    });
    uint64_t bytes = 0;
    for (const Left& each : left) bytes += each.bytes;
    return bytes;
  }
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
absl::StatusOr<SharedMemoryRange> CreateFile(uint64_t bytes, ReadersMay readers_may) {
  SharedMemoryRange range{.bytes = bytes};
  if (readers_may == ReadersMay::kAttach) {
    const absl::StatusOr<LeasePlace> lease = NewLeasePlace();
    if (!lease.ok()) return lease.status();
    range.lease = *lease;
  }
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

// The same, mapped.
absl::StatusOr<SharedMemoryRange> CreateRange(uint64_t bytes, ReadersMay readers_may) {
  absl::StatusOr<SharedMemoryRange> range = CreateFile(bytes, readers_may);
  if (!range.ok()) return range.status();
  range->address = MapAligned(range->file_descriptor, bytes);
  if (range->address != nullptr) return range;
  const absl::Status failed = FileFailed("mmap");
  close(range->file_descriptor);
  return failed;
}

// Gives back a range that nobody knows of.
void Discard(const SharedMemoryRange& range) {
  munmap(range.address, range.bytes);
  close(range.file_descriptor);
}

// A range with the content of `old`; nullopt: no memory for it, or `deadline` has passed.
std::optional<SharedMemoryRange> CopyOf(const SharedMemoryRange& old, absl::Time deadline) {
  absl::StatusOr<SharedMemoryRange> copy = CreateRange(old.bytes, ReadersMay::kAttach);
  if (!copy.ok()) return std::nullopt;
  for (uint64_t offset = 0; offset < old.bytes; offset += kCopyBytes) {
    const uint64_t bytes = std::min(kCopyBytes, old.bytes - offset);
    const bool backed =
        absl::Now() < deadline &&
        BackWithPages(copy->address + offset, bytes, {.memory = MemoryBacking::kSharedFile}) == 0;
    if (!backed) {
      Discard(*copy);
      return std::nullopt;
    }
    std::memcpy(copy->address + offset, old.address + offset, bytes);
  }
  return *copy;
}

// Puts `copy` in the place of `old`, in one step for whoever reads there.
bool MoveTo(const SharedMemoryRange& old, SharedMemoryRange* copy) {
  void* const moved =
      mremap(copy->address, copy->bytes, copy->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, old.address);
  if (moved == MAP_FAILED) return false;
  copy->address = old.address;
  return true;
}

bool MakePrivate(const SharedMemoryRange& old) {
  return mmap(old.address, old.bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, old.file_descriptor, 0) != MAP_FAILED;
}

}  // namespace

absl::StatusOr<std::byte*> MapSharedMemory(uint64_t bytes, ReadersMay readers_may) {
  const absl::StatusOr<SharedMemoryRange> range = CreateRange(bytes, readers_may);
  if (!range.ok()) return range.status();
  Ranges& ranges = AllRanges();
  absl::MutexLock lock(&ranges.mu);
  ranges.by_address[range->address] = *range;
  return range->address;
}

bool UnmapSharedMemory(std::byte* data) {
  SharedMemoryRange range;
  bool left = false;
  {
    Ranges& ranges = AllRanges();
    absl::MutexLock replaced(&ranges.replacing);
    absl::MutexLock lock(&ranges.mu);
    const auto found = ranges.by_address.find(data);
    if (found == ranges.by_address.end()) return false;
    range = found->second;
    left = ranges.HasReaders(range);
    if (left) ranges.left.push_back({.lease = range.lease.number, .bytes = range.bytes});
    ranges.by_address.erase(found);
  }
  // Whoever else has mapped them keeps no page of them, unless it has attached them. A forked child
  // only leaves its parent's.
  if (!left && getpid() == AllRanges().process) {
    fallocate(range.file_descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(range.bytes));
  }
  munmap(range.address, range.bytes);
  close(range.file_descriptor);
  return true;
}

std::optional<SharedMemoryRange> FindSharedMemory(const void* address, uint64_t bytes) {
  Ranges& ranges = AllRanges();
  absl::ReaderMutexLock lock(&ranges.mu);
  return ranges.Find(address, bytes);
}

std::vector<SharedMemoryRange> AllSharedMemory() {
  std::vector<SharedMemoryRange> all;
  Ranges& ranges = AllRanges();
  absl::ReaderMutexLock lock(&ranges.mu);
  for (const auto& [address, range] : ranges.by_address) all.push_back(range);
  return all;
}

// ---- ranges that readers attach

absl::StatusOr<OfferedToReaders> OfferToReaders(const void* address, uint64_t bytes,
                                                uint64_t limit_bytes) {
  Ranges& ranges = AllRanges();
  // Looked up and pinned at once: in between the range could be unmapped, or get other pages.
  absl::MutexLock lock(&ranges.mu);
  const std::optional<SharedMemoryRange> found = ranges.Find(address, bytes);
  if (!found.has_value() || found->lease.number == 0) {
    return absl::FailedPreconditionError(
        "it lies in memory that readers cannot attach: only arenas of TensorHub's own can be");
  }
  const uint64_t lease = found->lease.number;
  uint64_t others = ranges.BytesLeft();
  for (const auto& [begin, range] : ranges.by_address) {
    if (range.lease.number != lease && ranges.HasReaders(range)) others += range.bytes;
  }
  if (found->bytes > limit_bytes || others > limit_bytes - found->bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "readers have attached ", ByteSizeText(others), " of other arenas of the source, and ",
        ByteSizeText(found->bytes), " more would exceed its limit of ", ByteSizeText(limit_bytes)));
  }
  ++ranges.pins[lease];
  std::shared_ptr<const void> pin(nullptr, [lease](const void*) {
    Ranges& all = AllRanges();
    absl::MutexLock unpin(&all.mu);
    const auto pinned = all.pins.find(lease);
    if (--pinned->second == 0) all.pins.erase(pinned);
  });
  return OfferedToReaders{.range = *found, .pin = std::move(pin)};
}

bool IsAttached(const std::byte* data) {
  Ranges& ranges = AllRanges();
  absl::ReaderMutexLock lock(&ranges.mu);
  const auto found = ranges.by_address.find(data);
  return found != ranges.by_address.end() && ranges.HasReaders(found->second);
}

uint64_t BytesLeftToReaders() {
  Ranges& ranges = AllRanges();
  absl::MutexLock lock(&ranges.mu);
  return ranges.BytesLeft();
}

Renewal RenewSharedMemory(std::byte* data, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  const std::optional<SharedMemoryRange> old = FindSharedMemory(data, 1);
  if (!old.has_value() || old->address != data || !IsAttached(data)) return Renewal::kNotAttached;
  std::optional<SharedMemoryRange> copy;
  if (patience > absl::ZeroDuration()) copy = CopyOf(*old, deadline);
  Ranges& ranges = AllRanges();
  absl::MutexLock replacing(&ranges.replacing);
  if (!ranges.Has(*old)) {
    if (copy.has_value()) Discard(*copy);
    return Renewal::kNotAttached;
  }
  // The entry is exchanged last. Whoever finds it meanwhile gets the old file, which has the
  // content that the range had; whoever would renew the range finds it attached, and waits.
  const bool renewed = copy.has_value() && MoveTo(*old, &*copy);
  if (!renewed) {
    if (copy.has_value()) Discard(*copy);
    // Else the system has no mapping left to give, and readers would see what is written next.
    if (!MakePrivate(*old)) std::abort();
  }
  {
    absl::MutexLock lock(&ranges.mu);
    if (renewed) {
      ranges.by_address[data] = *copy;
    } else {
      ranges.by_address.erase(data);
    }
    ranges.left.push_back({.lease = old->lease.number, .bytes = old->bytes});
  }
  close(old->file_descriptor);
  return renewed ? Renewal::kRenewed : Renewal::kPrivate;
}

}  // namespace th
