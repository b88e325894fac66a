// A shard's tensors side by side in one arena of ours, for tests and benchmarks of Attach.
#ifndef TH_CLIENT_ARENA_SHARD_H_
#define TH_CLIENT_ARENA_SHARD_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/memory/host_arena.h"

namespace th::testing {

class ArenaShard {
 public:
  explicit ArenaShard(size_t count = 3, uint64_t tensor_bytes = uint64_t{1} << 20,
                      ReadersMay readers_may = ReadersMay::kAttach)
      : arena_(
            {.limit_bytes = count * tensor_bytes + kArenaAlignment, .readers_may = readers_may}) {
    auto block = arena_.Allocate(count * tensor_bytes);
    EXPECT_OK(block.status());
    if (!block.ok()) return;
    block_ = *std::move(block);
    for (size_t i = 0; i < count; ++i) {
      Tensor tensor;
      tensor.name = absl::StrCat("t", i);
      tensor.dtype = DType::kU8;
      tensor.shape = {static_cast<int64_t>(tensor_bytes)};
      tensor.data = block_.data() + i * tensor_bytes;
      tensors.push_back(std::move(tensor));
    }
  }

  // Words that depend on `seed` and their place.
  void FillWith(uint64_t seed) {
    for (uint64_t i = 0; i + sizeof(uint64_t) <= block_.bytes(); i += sizeof(uint64_t)) {
      const uint64_t word = WordAt(seed, i);
      std::memcpy(block_.data() + i, &word, sizeof(word));
    }
  }
  bool HasContentOf(uint64_t seed) const {
    return IsContentOf(seed, block_.data(), block_.bytes());
  }
  // True if these are the bytes of a shard that was filled with `seed`, tensor by tensor.
  static bool IsContentOf(uint64_t seed, const AttachedVersion& version) {
    uint64_t offset = 0;
    for (size_t i = 0; i < version.size(); ++i) {
      const AttachedTensor tensor = version.tensor(i);
      if (!IsContentOf(seed, tensor.data, tensor.spec->bytes, offset)) return false;
      offset += tensor.spec->bytes;
    }
    return offset > 0;
  }
  std::byte* data() const { return block_.data(); }
  uint64_t bytes() const { return block_.bytes(); }

  std::vector<Tensor> tensors;

 private:
  static uint64_t WordAt(uint64_t seed, uint64_t offset) {
    return (offset + 1) * 0x9E3779B97F4A7C15 ^ seed * 0xC2B2AE3D27D4EB4F;
  }
  static bool IsContentOf(uint64_t seed, const std::byte* data, uint64_t bytes,
                          uint64_t offset = 0) {
    for (uint64_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, data + i, sizeof(word));
      if (word != WordAt(seed, offset + i)) return false;
    }
    return true;
  }

  HostArena arena_;
  HostBlock block_;
};

}  // namespace th::testing

#endif  // TH_CLIENT_ARENA_SHARD_H_
