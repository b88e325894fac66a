// Copies of retained versions in host memory of this process, as the session asks for them.
#include <memory>
#include <utility>

#include "th/client/membership.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

// Goes back to the system at once: copies are rare, and as large as the shards.
struct OffloadMemory {
  ~OffloadMemory() {
    block = HostBlock();
    arena->Trim();
  }
  std::shared_ptr<HostArena> arena;
  HostBlock block;
};

}  // namespace

absl::StatusOr<Membership::BufferPtr> Membership::MakeOffloadBuffer(
    const AllocateOffload& order) const {
  auto memory = std::make_shared<OffloadMemory>();
  memory->arena = offload_arena_;
  TH_ASSIGN_OR_RETURN(memory->block, offload_arena_->Allocate(order.layout->bytes()));
  TensorBinding binding{.layout = order.layout, .storages = {}};
  binding.storages.reserve(order.layout->storages().size());
  for (const ShardLayout::Storage& storage : order.layout->storages()) {
    binding.storages.push_back(memory->block.data() + storage.stream_offset);
  }
  return std::make_shared<LocalBuffer>(LocalBuffer::Spec{.id = order.copy,
                                                         .form = {},
                                                         .binding_options = {},
                                                         .binding = std::move(binding),
                                                         .memory = std::move(memory)});
}

void Membership::Do(AllocateOffload order) {
  runtime_->sealer().Post([self = shared_from_this(), order = std::move(order)] {
    absl::StatusOr<BufferPtr> buffer = self->MakeOffloadBuffer(order);
    const absl::Status made = buffer.status();
    if (made.ok()) {
      absl::MutexLock lock(&self->mu_);
      self->buffers_[order.copy] = *std::move(buffer);
    }
    self->Enter([&](WorkerSession& session, absl::Time now) {
      session.HandleOffloadAllocated(order.copy, made, now);
    });
  });
}

// Its readers and its fill hold it until they have let go.
void Membership::Do(FreeOffload order) {
  const BufferPtr buffer = FindBuffer(order.copy);
  if (buffer == nullptr) return;  // there was no memory for it
  Silence(*buffer);
  absl::MutexLock lock(&mu_);
  buffers_.erase(order.copy);
  sealed_.erase(order.copy);
}

}  // namespace th
