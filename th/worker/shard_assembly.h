// How the shards of a version become the whole tensors of a checkpoint again, however they were
// cut.
//
//   TH_ASSIGN_OR_RETURN(std::vector<WholeTensor> whole, AssembleShards(layouts));
//
// Thread-safety: pure functions.
#ifndef TH_WORKER_SHARD_ASSEMBLY_H_
#define TH_WORKER_SHARD_ASSEMBLY_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/weights/shard_layout.h"
#include "th/weights/tensor.h"

namespace th {

// A part as a shard's layout has it, seen from the whole tensor.
struct PlacedPart {
  uint32_t shard = 0;   // index into the layouts
  uint32_t tensor = 0;  // index into that layout's tensors()
  uint64_t offset = 0;  // of its first byte in the whole
  // The part is one run of the whole's bytes that no other in-place part touches: it can be
  // received straight into the whole. Otherwise its bytes are to be copied there with ForEachRun.
  bool in_place = false;
};
struct WholeTensor {
  TensorSpec spec;  // alias_of is kept: such a tensor has no bytes of its own and no parts
  std::vector<PlacedPart> parts;
};

// The whole tensors, by name. INVALID_ARGUMENT naming the tensor: shards that disagree on its type
// or global shape, parts that overlap without being the same. FAILED_PRECONDITION: parts missing.
// UNIMPLEMENTED: a part of less than whole bytes.
absl::StatusOr<std::vector<WholeTensor>> AssembleShards(absl::Span<const ShardLayout> layouts);

// Where each run of the part's bytes lies.
struct ByteRun {
  uint64_t offset_in_part = 0;
  uint64_t offset_in_whole = 0;
  uint64_t bytes = 0;
};
// Calls `visit` for every run, in order. `part` is complete (CompleteTensorSpec).
// UNIMPLEMENTED when a run of a sub-byte type is not whole bytes.
absl::Status ForEachRun(const TensorSpec& part, absl::FunctionRef<void(const ByteRun&)> visit);

}  // namespace th

#endif  // TH_WORKER_SHARD_ASSEMBLY_H_
