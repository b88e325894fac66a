#include "th/worker/tensor_memory.h"

#include <new>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/memory/host_arena.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

// The alignment that vector instructions and direct I/O like; tensors of a framework have it too.
constexpr uint64_t kTensorAlignment = 64;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

bool NeedsMemory(const Tensor& tensor) { return tensor.alias_of.empty() && tensor.bytes > 0; }

}  // namespace

struct TensorMemory::Blocks {
  Blocks(uint64_t arena_bytes, ReadersMay readers_may)
      : arena({.limit_bytes = arena_bytes, .readers_may = readers_may}) {}

  absl::Status PlaceInArena(uint64_t bytes, std::vector<Tensor>* tensors) {
    if (bytes == 0) return absl::OkStatus();
    TH_ASSIGN_OR_RETURN(block, arena.Allocate(bytes));
    uint64_t offset = 0;
    for (Tensor& tensor : *tensors) {
      if (!NeedsMemory(tensor)) continue;
      tensor.data = block.data() + offset;
      offset += RoundUp(tensor.bytes, kTensorAlignment);
    }
    return absl::OkStatus();
  }

  absl::Status PlaceSeparately(std::vector<Tensor>* tensors) {
    for (Tensor& tensor : *tensors) {
      if (!NeedsMemory(tensor)) continue;
      // Zeroed, so that the pages are there.
      separate.emplace_back(new (std::nothrow) std::byte[tensor.bytes]());
      if (separate.back() == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for tensor \"", tensor.name, "\""));
      }
      tensor.data = separate.back().get();
    }
    return absl::OkStatus();
  }

  HostArena arena;
  HostBlock block;  // after the arena: it goes first
  std::vector<std::unique_ptr<std::byte[]>> separate;
};

absl::StatusOr<TensorMemory> TensorMemory::Allocate(std::vector<TensorSpec> tensors,
                                                    TensorPlacement placement,
                                                    ReadersMay readers_may) {
  TensorMemory memory;
  uint64_t arena_bytes = 0;
  for (TensorSpec& spec : tensors) {
    TH_ASSIGN_OR_RETURN(spec, CompleteTensorSpec(std::move(spec)));
    Tensor& tensor = memory.tensors_.emplace_back(Tensor{std::move(spec)});
    if (!tensor.alias_of.empty()) continue;
    memory.bytes_ += tensor.bytes;
    arena_bytes += RoundUp(tensor.bytes, kTensorAlignment);
  }
  memory.blocks_ = std::make_shared<Blocks>(RoundUp(arena_bytes, kArenaAlignment), readers_may);
  TH_RETURN_IF_ERROR(placement == TensorPlacement::kOneArena
                         ? memory.blocks_->PlaceInArena(arena_bytes, &memory.tensors_)
                         : memory.blocks_->PlaceSeparately(&memory.tensors_));
  absl::flat_hash_map<std::string, void*> owners;
  for (const Tensor& tensor : memory.tensors_) {
    if (tensor.alias_of.empty()) owners[tensor.name] = tensor.data;
  }
  for (Tensor& tensor : memory.tensors_) {
    if (tensor.alias_of.empty()) continue;
    const auto owner = owners.find(tensor.alias_of);
    if (owner == owners.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name,
                                                     "\" is an alias of the unknown tensor \"",
                                                     tensor.alias_of, "\""));
    }
    tensor.data = owner->second;
  }
  return memory;
}

}  // namespace th
