// How the tensors of a checkpoint become shards, and shards the tensors of a checkpoint.
//
//   TH_ASSIGN_OR_RETURN(auto shards, DivideIntoShards(whole_tensors, ShardCount(2)));
//   TH_ASSIGN_OR_RETURN(auto whole, AssembleShards(layouts));   // the inverse, for any slicing
//
// Dividing is deterministic: every rank that divides the same tensors in the same way gets the same
// shards. Tensors whose first dimension divides evenly are cut along it, as tensor parallelism does;
// the others go whole to the shard that is lightest so far.
//
// Thread-safety: pure functions.
#ifndef TH_WORKER_SHARD_DIVISION_H_
#define TH_WORKER_SHARD_DIVISION_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "th/weights/identifiers.h"
#include "th/weights/shard_layout.h"
#include "th/weights/tensor.h"

namespace th {

using ShardCount = StrongInt<struct ShardCountTag, uint32_t>;
inline constexpr ShardCount kMaxShards{4096};

// A tensor smaller than this is not worth cutting.
inline constexpr uint64_t kMinCutBytes = uint64_t{16} << 10;

// A shard's part of a whole tensor. `spec` describes the part (and where it lies in the whole);
// it begins `offset` bytes into the whole's bytes and is contiguous there.
struct TensorPart {
  TensorSpec spec;
  uint64_t offset = 0;
};

// INVALID_ARGUMENT: no shards or more than kMaxShards, what CompleteTensorSpec refuses, an alias of
// an unknown tensor, or too few tensors to give each shard one.
absl::StatusOr<std::vector<std::vector<TensorPart>>> DivideIntoShards(std::vector<TensorSpec> whole,
                                                                      ShardCount shards);

// A part as a shard's layout has it, seen from the whole tensor.
struct PlacedPart {
  uint32_t shard = 0;   // index into the layouts
  uint32_t tensor = 0;  // index into that layout's tensors()
  uint64_t offset = 0;  // of its first byte in the whole
  // The part is one run of the whole's bytes that no other in-place part touches: it can be received
  // straight into the whole. Otherwise its bytes are to be copied there with ForEachRun.
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

#endif  // TH_WORKER_SHARD_DIVISION_H_
