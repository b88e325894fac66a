#include "th/memory/host_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "th/memory/aligned_mapping.h"
#include "th/memory/shared_memory.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

void Unmap(std::byte* data, uint64_t bytes) {
  if (!UnmapSharedMemory(data)) munmap(data, bytes);
}

// True when readers keep the pages of a block that was mapped as shared memory: they have attached
// it, or had when RenewSharedMemory made it private.
bool IsLeftToReaders(const std::byte* data) {
  return IsAttached(data) || !FindSharedMemory(data, 1).has_value();
}

}  // namespace

HostBlock::~HostBlock() {
  if (arena_ != nullptr) arena_->GiveBack(mapping_, mapped_bytes_);
}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(mapping_, other.mapping_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

HostArena::~HostArena() { Trim(); }

// Memory that readers of this host can map; private memory where the system gives no such file.
HostArena::Mapping HostArena::Map(uint64_t bytes, ReadersMay readers_may) {
  const absl::StatusOr<std::byte*> shared = MapSharedMemory(bytes, readers_may);
  if (shared.ok()) return {.data = *shared, .memory = MemoryBacking::kSharedFile};
  return {.data = MapAligned(kNoFile, bytes), .memory = MemoryBacking::kPrivate};
}

// The same with every page backed; without data, and errno says why, when the system has none.
HostArena::Mapping HostArena::MapBacked(uint64_t bytes) const {
  const Mapping mapping = Map(bytes, options_.readers_may);
  if (mapping.data == nullptr) return mapping;
  const int error = BackWithPages(mapping.data, bytes,
                                  {.memory = mapping.memory, .threads = options_.prefault_threads});
  if (error == 0) return mapping;
  Unmap(mapping.data, bytes);
  errno = error;
  return {};
}

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
  const Mapping mapping = MapBacked(rounded);
  if (mapping.data != nullptr) return HostBlock(this, mapping, bytes, rounded);
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
  const auto [mapped_bytes, mapping] = *found;
  free_.erase(found);
  in_use_ += mapped_bytes;
  return HostBlock(this, mapping, bytes, mapped_bytes);
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
    Unmap(largest->second.data, largest->first);
    mapped_ -= largest->first;
    free_.erase(largest);
  }
}

void HostArena::GiveBack(const Mapping& mapping, uint64_t mapped_bytes) {
  const bool left = mapping.memory == MemoryBacking::kSharedFile && IsLeftToReaders(mapping.data);
  if (left) Unmap(mapping.data, mapped_bytes);
  absl::MutexLock lock(&mu_);
  in_use_ -= mapped_bytes;
  if (left) {
    mapped_ -= mapped_bytes;
    return;
  }
  free_.emplace(mapped_bytes, mapping);
}

void HostArena::Trim() {
  absl::MutexLock lock(&mu_);
  for (const auto& [bytes, mapping] : free_) {
    Unmap(mapping.data, bytes);
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
