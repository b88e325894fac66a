// A model cut into shards by whole tensors, for demos and for workers that load a checkpoint.
#ifndef TH_WEIGHTS_SHARD_PARTITION_H_
#define TH_WEIGHTS_SHARD_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "th/weights/tensor.h"

namespace th {

// `shard_count` shards of about the same bytes, no two alike; each keeps its tensors in the order
// that they were given in. The result does not depend on that order: every process that loads the
// model makes the same shards. An alias stays with its owner. The largest shard exceeds the mean by
// at most the largest tensor. INVALID_ARGUMENT: more shards than tensors with storages, none at
// all, or naming the tensor: what CompleteTensorSpec refuses, a duplicate, or an alias of what is
// not there.
absl::StatusOr<std::vector<std::vector<TensorSpec>>> SplitIntoShards(
    std::vector<TensorSpec> tensors, uint32_t shard_count);

}  // namespace th

#endif  // TH_WEIGHTS_SHARD_PARTITION_H_
