// The weights of one rank of a demo or a benchmark: which model, which shard of it, where its
// content comes from, how it changes from version to version, and the SHA-256 sums that are the
// truth.
//
// Content 0 is the model's own; content n is made from it by a change that reaches all bytes (but 1
// of 256, by chance) and can be taken back, so that no copy is kept. Ranks with the same shard get
// the same bytes for the same content.
#ifndef TH_CONTROLLED_RANK_RANK_WEIGHTS_H_
#define TH_CONTROLLED_RANK_RANK_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "th/weights/digest.h"
#include "th/weights/tensor.h"
#include "th/worker/tensor_memory.h"

namespace th {

// Which weights: a checkpoint folder, a made-up model, or equal tensors.
struct ModelChoice {
  std::string folder;     // of safetensors; empty: none
  std::string synthetic;  // "llm" or "moe"; empty: none
  uint64_t bytes = 0;     // of a synthetic model or of all equal tensors
  uint64_t tensors = 0;   // so many equal tensors, allocated one by one

  // "all-MiniLM in /x", "synthetic llm of 4.29 GB", "61000 tensors of 1.07 GB".
  std::string ToString() const;
};

struct ShardChoice {
  ModelChoice model;
  uint32_t shard = 0;
  uint32_t shards = 1;
};
nlohmann::json ToJson(const ShardChoice& choice);
// INVALID_ARGUMENT: not what ToJson writes.
absl::StatusOr<ShardChoice> ShardChoiceFromJson(const nlohmann::json& json);

// The tensors of each shard. Errors of CheckpointFolder, SyntheticModel and SplitIntoShards.
absl::StatusOr<std::vector<std::vector<TensorSpec>>> ShardsOf(const ModelChoice& model,
                                                              uint32_t shards);
// The bytes of the storages among `tensors`.
uint64_t BytesOf(const std::vector<TensorSpec>& tensors);

// A name and the sum of its bytes, for every storage, by name.
using TensorChecksums = std::vector<std::pair<std::string, Digest>>;
// One sum over names and sums: equal exactly when all of them are.
Digest Combine(const TensorChecksums& checksums);

class RankWeights {
 public:
  // Memory for the shard, zeroed. Load() fills it.
  static absl::StatusOr<RankWeights> Allocate(ShardChoice choice);

  const std::vector<Tensor>& tensors() const { return memory_.tensors(); }
  uint64_t bytes() const { return memory_.bytes(); }

  // The model's own content.
  absl::Status Load();
  // From whatever content Load() or the last ChangeTo() left.
  void ChangeTo(uint64_t content);
  // Every byte becomes another one; which content it was is lost.
  void Scribble();
  TensorChecksums Checksum() const;

 private:
  RankWeights(ShardChoice choice, TensorMemory memory)
      : choice_(std::move(choice)), memory_(std::move(memory)) {}
  void Mutate(uint64_t content);

  ShardChoice choice_;
  TensorMemory memory_;
  uint64_t content_ = 0;
};

}  // namespace th

#endif  // TH_CONTROLLED_RANK_RANK_WEIGHTS_H_
