// Copies in host memory of this process: of retained versions and of staged ones, as the session
// asks for them; of what the caller publishes and wants to write meanwhile.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/client/cancel_hook.h"
#include "th/client/membership.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

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

absl::Status NoRoom(absl::string_view option, const absl::Status& why) {
  return absl::Status(why.code(),
                      absl::StrCat("no room under ", option, ": ", why.message(), "; raise it"));
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

// `memory` says which of `from` is device memory; nothing is said where none is.
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

}  // namespace

// ---- offloaded and staged versions

absl::StatusOr<Membership::BufferPtr> Membership::MakeCopyBuffer(const AllocateOffload& order) {
  const std::shared_ptr<HostArena>& arena = order.staged ? staging_arena_ : offload_arena_;
  absl::StatusOr<std::shared_ptr<CopyMemory>> memory =
      TakeMemory(runtime_, arena, order.layout->bytes(), /*reused=*/false);
  if (!memory.ok()) {
    return order.staged ? NoRoom("staging_limit_bytes", memory.status()) : memory.status();
  }
  TensorBinding binding{.layout = order.layout,
                        .storages = StoragesIn(*order.layout, (*memory)->mapping->block.data())};
  auto buffer = std::make_shared<LocalBuffer>(LocalBuffer::Spec{.id = order.copy,
                                                                .form = {},
                                                                .binding_options = {},
                                                                .binding = std::move(binding),
                                                                .memory = *std::move(memory)},
                                              RunsBeside());
  buffer->AttachMemory(data_plane_);
  return buffer;
}

void Membership::Do(AllocateOffload order) {
  runtime_->sealer().Post([self = shared_from_this(), order = std::move(order)] {
    absl::StatusOr<BufferPtr> buffer = self->MakeCopyBuffer(order);
    const absl::Status made = buffer.status();
    if (made.ok()) {
      absl::MutexLock lock(&self->mu_);
      self->buffers_[order.copy] = *std::move(buffer);
    }
    self->Handle(event::OffloadAllocated{order.copy, made});
  });
}

// Its readers and its fill hold it until they have let go.
void Membership::Do(FreeOffload order) {
  const BufferPtr buffer = FindBuffer(order.copy);
  if (buffer == nullptr) return;  // there was no memory for it
  Silence(*buffer);
  absl::MutexLock lock(&mu_);
  buffers_.erase(order.copy);
}

VersionInfo Membership::staged_version(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.staged_version(buffer);
}

void Membership::DiscardStaged(BufferId buffer) { Handle(event::DiscardStaged{buffer}); }

// ---- snapshots

// Nothing changes the caller's memory, takes it away or writes it while it is copied; whoever
// leaves or unregisters waits.
absl::Status Membership::TakeSnapshot(LocalBuffer& buffer) {
  TH_RETURN_IF_ERROR(ClaimMemory(buffer, Claim::kSnapshot));
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  std::vector<void*> from;
  StorageMemory from_memory;
  runtime_->RunOnControl([&] {
    from = buffer.storages();
    from_memory = buffer.memory();
  });
  const ShardLayout& layout = *buffer.layout();
  absl::StatusOr<std::shared_ptr<CopyMemory>> memory =
      TakeMemory(runtime_, snapshot_arena_, layout.bytes(), /*reused=*/true);
  if (!memory.ok()) return NoRoom("snapshot_limit_bytes", memory.status());
  std::vector<void*> to = StoragesIn(layout, (*memory)->mapping->block.data());
  TH_RETURN_IF_ERROR(CopyStorages(layout, from, from_memory, to));
  absl::Status status;
  runtime_->RunOnControl([&] {
    status = CanChangeMemory(buffer);
    if (status.ok()) status = buffer.BindSnapshot(std::move(to), *std::move(memory));
  });
  return status;
}

void Membership::DropSnapshot(LocalBuffer& buffer) {
  runtime_->RunOnControl([&] { buffer.DropSnapshot(); });
}

}  // namespace th
