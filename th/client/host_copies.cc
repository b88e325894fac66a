#include "th/client/host_copies.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/client/cancel_hook.h"
#include "th/memory/device_side.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// The arena counts whole pages of its own, a part of one more for each copy.
uint64_t ArenaBytesFor(uint64_t limit_bytes, uint64_t max_copies) {
  const uint64_t slack = max_copies * kArenaAlignment;
  return limit_bytes + std::min(slack, std::numeric_limits<uint64_t>::max() - limit_bytes);
}

std::shared_ptr<HostArena> NewArena(uint64_t limit_bytes) {
  return std::make_shared<HostArena>(
      HostArena::Options{.limit_bytes = limit_bytes, .readers_may = ReadersMay::kAttach});
}

// Goes back to the arena where the last reader, fill or buffer lets go of it. That may be a data
// thread or hold a lock, and to unmap takes a tenth of a second a GB: so th-seal does that.
struct CopyMemory {
  struct Mapping {
    std::shared_ptr<HostArena> arena;
    HostBlock block;
  };
  ~CopyMemory() {
    if (mapping == nullptr || reused) return;
    runtime->sealer().Post([mapping = std::move(mapping)] {
      mapping->block = HostBlock();
      mapping->arena->Trim();
    });
  }
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Mapping> mapping;
  // False: goes back to the system at once, as such copies are rare, and as large as the shards.
  bool reused = false;
};

// Where the storages of `layout` lie in a block of its bytes.
std::vector<void*> StoragesIn(const ShardLayout& layout, std::byte* begin) {
  std::vector<void*> storages;
  storages.reserve(layout.storages().size());
  for (const ShardLayout::Storage& storage : layout.storages()) {
    storages.push_back(begin + storage.stream_offset);
  }
  return storages;
}

absl::StatusOr<std::shared_ptr<CopyMemory>> TakeMemory(std::shared_ptr<Runtime> runtime,
                                                       const std::shared_ptr<HostArena>& arena,
                                                       uint64_t bytes, bool reused) {
  // A shard of empty tensors has a block too.
  TH_ASSIGN_OR_RETURN(HostBlock block, arena->Allocate(std::max<uint64_t>(bytes, 1)));
  auto memory = std::make_shared<CopyMemory>();
  memory->runtime = std::move(runtime);
  memory->mapping =
      std::make_shared<CopyMemory::Mapping>(CopyMemory::Mapping{arena, std::move(block)});
  memory->reused = reused;
  return memory;
}

// The option ends in `_bytes` in C++ and C.
absl::Status NoRoom(absl::string_view limit, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("no room under ", limit, "_bytes (", limit,
                                               " in Python): ", why.message(), "; raise it"));
}

// A snapshot looks for a cancellation after so many bytes, which take some milliseconds.
constexpr uint64_t kCopyStep = uint64_t{32} << 20;

absl::Status CopyUnlessCancelled(char* to, const char* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kCopyStep) {
    TH_RETURN_IF_ERROR(CheckNotCancelled("nothing was published"));
    std::memcpy(to + at, from + at, std::min(kCopyStep, bytes - at));
  }
  return absl::OkStatus();
}

}  // namespace

HostCopies::HostCopies(std::shared_ptr<Runtime> runtime, const Limits& limits)
    : runtime_(std::move(runtime)),
      offload_arena_(NewArena(ArenaBytesFor(limits.offload_bytes, limits.max_offloads))),
      staging_arena_(NewArena(limits.staging_bytes)),
      snapshot_arena_(NewArena(limits.snapshot_bytes)) {}

const std::shared_ptr<HostArena>& HostCopies::ArenaOf(Purpose purpose) const {
  switch (purpose) {
    case Purpose::kOffload:
      break;
    case Purpose::kStaged:
      return staging_arena_;
    case Purpose::kSnapshot:
      return snapshot_arena_;
  }
  return offload_arena_;
}

absl::StatusOr<HostCopyMemory> HostCopies::Take(Purpose purpose, const ShardLayout& layout) {
  absl::StatusOr<std::shared_ptr<CopyMemory>> memory = TakeMemory(
      runtime_, ArenaOf(purpose), layout.bytes(), /*reused=*/purpose == Purpose::kSnapshot);
  if (!memory.ok()) {
    // The server knows the limit of offloads, and names it.
    if (purpose == Purpose::kOffload) return memory.status();
    return NoRoom(purpose == Purpose::kStaged ? "staging_limit" : "snapshot_limit",
                  memory.status());
  }
  std::vector<void*> storages = StoragesIn(layout, (*memory)->mapping->block.data());
  return HostCopyMemory{std::move(storages), *std::move(memory)};
}

absl::Status CopyStorages(const ShardLayout& layout, const std::vector<void*>& from,
                          const StorageMemory& memory, const std::vector<void*>& to) {
  std::vector<DeviceCopy> copies;
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t bytes = layout.storages()[i].bytes;
    if (bytes == 0) continue;
    if (memory.device != nullptr && memory.regions[i].kind == MemoryKind::kDevice) {
      copies.push_back({i, 0, bytes, static_cast<std::byte*>(to[i])});
    } else {
      TH_RETURN_IF_ERROR(
          CopyUnlessCancelled(static_cast<char*>(to[i]), static_cast<const char*>(from[i]), bytes));
    }
  }
  return copies.empty() ? absl::OkStatus() : memory.device->CopyToHost(copies);
}

}  // namespace th
