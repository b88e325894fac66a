// A published shard that is used where it lies, in memory of another process of this host that is
// mapped read-only into this one (Pull::AskMapping). No byte of it was moved, and none of it is
// ever written again: its owner goes on in other pages (th/memory/shared_memory.h).
//
//   const auto& storage = layout.storages()[i];
//   const std::byte* at = shard->At(storage.stream_offset, storage.bytes);
//
// The pages stay while the object lives, whatever becomes of the owner. Immutable.
#ifndef TH_TRANSFER_MAPPED_SHARD_H_
#define TH_TRANSFER_MAPPED_SHARD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace th {

class MappedShard {
 public:
  // Bytes of the shard's stream that lie side by side.
  struct Run {
    uint64_t stream_offset = 0;
    uint64_t bytes = 0;
    const std::byte* data = nullptr;
  };
  // `runs` by their offset, without overlap. `memory` is what keeps them mapped; shared with nobody
  // (its kind is the transport's affair).
  MappedShard(std::vector<Run> runs, std::shared_ptr<const void> memory)
      : memory_(std::move(memory)), runs_(std::move(runs)) {}

  const std::vector<Run>& runs() const { return runs_; }
  // The address of these bytes of the stream; null where they are not in one run, or there are
  // none.
  const std::byte* At(uint64_t stream_offset, uint64_t bytes) const {
    auto run = std::upper_bound(
        runs_.begin(), runs_.end(), stream_offset,
        [](uint64_t offset, const Run& each) { return offset < each.stream_offset; });
    if (run == runs_.begin()) return nullptr;
    --run;
    const uint64_t offset = stream_offset - run->stream_offset;
    if (bytes == 0 || offset > run->bytes || bytes > run->bytes - offset) return nullptr;
    return run->data + offset;
  }

 private:
  const std::shared_ptr<const void> memory_;
  const std::vector<Run> runs_;
};

}  // namespace th

#endif  // TH_TRANSFER_MAPPED_SHARD_H_
