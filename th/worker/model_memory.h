// Memory for a whole model that is received shard by shard.
//
//   TH_ASSIGN_OR_RETURN(ModelMemory model, ModelMemory::Allocate(layouts));
//   client->Register(model.TensorsOfShard(0)) ...            // each shard is received in its place
//   TH_RETURN_IF_ERROR(model.Gather());                      // what could not be
//   SaveFolder(path, model.tensors());
//
// A shard's part is received straight into the whole tensor where it is one run of it; only parts
// cut along inner dimensions, and further copies of a tensor that several shards hold, get memory
// of their own, which Gather() copies or compares. Movable; addresses stay. Not thread-safe.
#ifndef TH_WORKER_MODEL_MEMORY_H_
#define TH_WORKER_MODEL_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/weights/shard_layout.h"
#include "th/worker/shard_assembly.h"
#include "th/worker/tensor_memory.h"

namespace th {

class ModelMemory {
 public:
  // Memory for a whole model. Errors of AssembleShards; RESOURCE_EXHAUSTED.
  static absl::StatusOr<ModelMemory> Allocate(std::vector<ShardLayout> layouts);

  const std::vector<ShardLayout>& layouts() const { return layouts_; }
  // The tensors of layouts()[shard], to be registered.
  const std::vector<Tensor>& TensorsOfShard(uint32_t shard) const { return shards_[shard]; }
  // Once every shard is received. DATA_LOSS naming a tensor of which two shards hold different
  // bytes.
  absl::Status Gather();
  // The whole tensors, by name. What they hold is right after Gather().
  const std::vector<Tensor>& tensors() const { return whole_memory_.tensors(); }
  uint64_t bytes() const { return whole_memory_.bytes(); }

 private:
  ModelMemory() = default;
  absl::Status AllocateWhole();
  absl::Status AllocateSide();
  void PointShards();
  bool IsSide(const PlacedPart& part) const { return !part.in_place; }

  std::vector<ShardLayout> layouts_;
  std::vector<WholeTensor> whole_;
  TensorMemory whole_memory_;
  TensorMemory side_memory_;  // of the parts that are not in place, in their order
  std::vector<std::vector<Tensor>> shards_;
};

}  // namespace th

#endif  // TH_WORKER_MODEL_MEMORY_H_
