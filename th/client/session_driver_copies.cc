// Copies in host memory of this process: of retained versions and of staged ones, as the session
// asks for them; of what the caller publishes and wants to write meanwhile.
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "th/client/session_driver.h"
#include "th/status/status_macros.h"

namespace th {

// ---- offloaded and staged versions

absl::StatusOr<SessionDriver::BufferPtr> SessionDriver::MakeCopyBuffer(
    const AllocateOffload& order) {
  const auto purpose = order.staged ? HostCopies::Purpose::kStaged : HostCopies::Purpose::kOffload;
  TH_ASSIGN_OR_RETURN(HostCopyMemory copy, copies_.Take(purpose, *order.layout));
  auto buffer = std::make_shared<LocalBuffer>(
      LocalBuffer::Spec{.id = order.copy,
                        .form = {},
                        .binding_options = {},
                        .binding = {.layout = order.layout, .storages = std::move(copy.storages)},
                        .memory = std::move(copy.memory)},
      RunsBeside());
  buffer->AttachMemory(data_plane_);
  return buffer;
}

void SessionDriver::Do(AllocateOffload order) {
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
void SessionDriver::Do(FreeOffload order) {
  const BufferPtr buffer = FindBuffer(order.copy);
  if (buffer == nullptr) return;  // there was no memory for it
  Silence(*buffer);
  absl::MutexLock lock(&mu_);
  buffers_.erase(order.copy);
}

VersionInfo SessionDriver::staged_version(BufferId buffer) const {
  absl::MutexLock lock(&mu_);
  return session_.staged_version(buffer);
}

void SessionDriver::DiscardStaged(BufferId buffer) { Handle(event::DiscardStaged{buffer}); }

// ---- snapshots

// Nothing changes the caller's memory, takes it away or writes it while it is copied; whoever
// leaves or unregisters waits.
absl::Status SessionDriver::TakeSnapshot(LocalBuffer& buffer) {
  TH_RETURN_IF_ERROR(ClaimMemory(buffer, ClaimFor::kSnapshot));
  const absl::Cleanup release = [&] { ReleaseMemory(buffer); };
  std::vector<void*> from;
  StorageMemory from_memory;
  runtime_->RunOnControl([&] {
    from = buffer.storages();
    from_memory = buffer.memory();
  });
  const ShardLayout& layout = *buffer.layout();
  TH_ASSIGN_OR_RETURN(HostCopyMemory copy, copies_.Take(HostCopies::Purpose::kSnapshot, layout));
  TH_RETURN_IF_ERROR(CopyStorages(layout, from, from_memory, copy.storages));
  absl::Status status;
  runtime_->RunOnControl([&] {
    status = CanChangeMemory(buffer);
    if (status.ok()) status = buffer.BindSnapshot(std::move(copy.storages), std::move(copy.memory));
  });
  return status;
}

void SessionDriver::DropSnapshot(LocalBuffer& buffer) {
  runtime_->RunOnControl([&] { buffer.DropSnapshot(); });
}

}  // namespace th
