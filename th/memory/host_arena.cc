#include "th/memory/host_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/memory/aligned_mapping.h"
#include "th/memory/shared_memory.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

constexpr uint64_t kPageBytes = 4096;

// Linux 5.14; the C library's headers may be older than the kernel.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Backs every page of [begin, begin + bytes); else why not, as an errno. Touching the pages instead
// would end in a signal where memory is short.
int PopulateRange(std::byte* begin, uint64_t bytes) {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // An older kernel: write to each page.
  for (uint64_t offset = 0; offset < bytes; offset += kPageBytes) {
    reinterpret_cast<volatile std::byte*>(begin)[offset] = std::byte{0};
  }
  return 0;
}

// The same, by several threads at once.
int Populate(std::byte* begin, uint64_t bytes, uint32_t threads) {
  const uint64_t pieces = bytes / kArenaAlignment;
  const uint64_t workers =
      std::clamp<uint64_t>(threads, 1, std::min<uint64_t>(pieces, kMaxPrefaultThreads));
  std::vector<int> errors(workers, 0);
  const auto populate = [&](uint64_t worker) {
    const uint64_t first = pieces * worker / workers;
    const uint64_t last = pieces * (worker + 1) / workers;
    errors[worker] =
        PopulateRange(begin + first * kArenaAlignment, (last - first) * kArenaAlignment);
  };
  std::vector<std::thread> others;
  for (uint64_t worker = 1; worker < workers; ++worker) others.emplace_back(populate, worker);
  populate(0);
  for (std::thread& other : others) other.join();
  const auto failed = std::find_if(errors.begin(), errors.end(), [](int e) { return e != 0; });
  return failed == errors.end() ? 0 : *failed;
}

// Memory that readers of this host can map; private memory where the system gives no such file.
std::byte* Map(uint64_t bytes) {
  const absl::StatusOr<std::byte*> shared = MapSharedMemory(bytes);
  return shared.ok() ? *shared : MapAligned(kNoFile, bytes);
}

void Unmap(std::byte* data, uint64_t bytes) {
  if (!UnmapSharedMemory(data)) munmap(data, bytes);
}

// The same with every page backed; null, and errno says why, when the system has none.
std::byte* MapBacked(uint64_t bytes, uint32_t threads) {
  std::byte* const data = Map(bytes);
  if (data == nullptr) return nullptr;
  const int error = Populate(data, bytes, threads);
  if (error == 0) return data;
  Unmap(data, bytes);
  errno = error;
  return nullptr;
}

}  // namespace

HostBlock::~HostBlock() {
  if (arena_ != nullptr) arena_->GiveBack(data_, mapped_bytes_);
}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

HostArena::~HostArena() { Trim(); }

absl::StatusOr<HostBlock> HostArena::Allocate(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a block of 0 bytes was asked of an arena");
  if (bytes > options_.limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a block of ", bytes,
                                                     " bytes exceeds the arena's limit of ",
                                                     options_.limit_bytes, " bytes"));
  }
  const uint64_t rounded = (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  {
    absl::MutexLock lock(&mu_);
    if (HostBlock block = TakeFree(bytes, rounded); block.data() != nullptr) return block;
    TH_RETURN_IF_ERROR(Reserve(bytes, rounded));
  }
  // Mapping and faulting in take long: not under the lock.
  std::byte* const data = MapBacked(rounded, options_.prefault_threads);
  if (data != nullptr) return HostBlock(this, data, bytes, rounded);
  const std::string why = strerror(errno);
  absl::MutexLock lock(&mu_);
  mapped_ -= rounded;
  in_use_ -= rounded;
  return absl::ResourceExhaustedError(
      absl::StrCat("the system has no memory for a block of ", bytes, " bytes: ", why));
}

HostBlock HostArena::TakeFree(uint64_t bytes, uint64_t rounded) {
  const auto found = free_.lower_bound(rounded);
  // A much larger block is better kept for who needs it.
  if (found == free_.end() || found->first > 2 * rounded) return {};
  const auto [mapped_bytes, data] = *found;
  free_.erase(found);
  in_use_ += mapped_bytes;
  return HostBlock(this, data, bytes, mapped_bytes);
}

absl::Status HostArena::Reserve(uint64_t bytes, uint64_t rounded) {
  TrimUntil(rounded);
  // One block alone may exceed the limit by its rounding.
  if (mapped_ + rounded > std::max(options_.limit_bytes, rounded)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of ", bytes, " bytes does not fit beside ", in_use_,
                     " bytes in use: the arena's limit is ", options_.limit_bytes, " bytes"));
  }
  mapped_ += rounded;
  in_use_ += rounded;
  return absl::OkStatus();
}

void HostArena::TrimUntil(uint64_t room) {
  while (!free_.empty() && mapped_ + room > options_.limit_bytes) {
    const auto largest = std::prev(free_.end());
    Unmap(largest->second, largest->first);
    mapped_ -= largest->first;
    free_.erase(largest);
  }
}

void HostArena::GiveBack(std::byte* data, uint64_t mapped_bytes) {
  absl::MutexLock lock(&mu_);
  in_use_ -= mapped_bytes;
  free_.emplace(mapped_bytes, data);
}

void HostArena::Trim() {
  absl::MutexLock lock(&mu_);
  for (const auto& [bytes, data] : free_) {
    Unmap(data, bytes);
    mapped_ -= bytes;
  }
  free_.clear();
}

uint64_t HostArena::bytes_mapped() const {
  absl::MutexLock lock(&mu_);
  return mapped_;
}

uint64_t HostArena::bytes_in_use() const {
  absl::MutexLock lock(&mu_);
  return in_use_;
}

}  // namespace th
