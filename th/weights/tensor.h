// One tensor as its owner describes it.
#ifndef TH_WEIGHTS_TENSOR_H_
#define TH_WEIGHTS_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace th {

inline constexpr int kMaxTensorDimensions = 16;
inline constexpr size_t kMaxTensorNameBytes = 1024;

// Element types: those of safetensors, sub-byte ones and an opaque one whose bytes only their owner
// understands. The numeric values are wire values: never renumber.
enum class DType : uint8_t {
  kOpaque = 0,
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
  kF8E8M0 = 16,
  kF8E4M3Fnuz = 17,
  kF8E5M2Fnuz = 18,
  kF4 = 19,
  kF6E2M3 = 20,
  kF6E3M2 = 21,
  kC64 = 22,
};

absl::string_view DTypeName(DType dtype);  // safetensors' names: "F8_E4M3"
absl::StatusOr<DType> ParseDType(absl::string_view name);
// Bits an element; 0 for kOpaque, whose byte size is only given.
int DTypeBits(DType dtype);
// The bytes of so many elements, sub-byte types rounded up to whole bytes. INVALID_ARGUMENT for a
// negative dimension, more than kMaxTensorDimensions, overflow of 63 bits, and kOpaque.
absl::StatusOr<uint64_t> BytesOfShape(DType dtype, absl::Span<const int64_t> shape);

// A tensor of a shard, or one box of it: a shard may hold several disjoint boxes of one tensor,
// each with a spec of its own under the same name. `shape` is this shard's part; `global_shape` and
// `slice_begin` place the part in the whole tensor (equal to `shape` and zeros when the tensor is
// not split; left empty they are filled in so). Names carry no meaning to TensorHub.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kOpaque;
  std::vector<int64_t> shape;  // empty: a scalar
  std::vector<int64_t> global_shape;
  std::vector<int64_t> slice_begin;
  // Bytes of this part. Left 0 it follows from dtype and shape (sub-byte types: rounded up to whole
  // bytes); for kOpaque it must be given.
  uint64_t bytes = 0;
  // Elements between neighbours a dimension; empty: contiguous. Anything else is refused by name.
  std::vector<int64_t> strides;
  // The tensor whose storage this one shares (tied names). Empty: its own.
  std::string alias_of;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Fills in what the caller left out (bytes, global_shape, slice_begin) and drops strides that are
// those of a contiguous tensor. INVALID_ARGUMENT naming the tensor: an empty, overlong or non-UTF-8
// name, a shape that BytesOfShape refuses, bytes that disagree with it, other strides, a slice
// outside the global shape.
absl::StatusOr<TensorSpec> CompleteTensorSpec(TensorSpec spec);

// "[2,3]", "[]" for a scalar.
std::string ShapeToString(absl::Span<const int64_t> shape);

}  // namespace th

#endif  // TH_WEIGHTS_TENSOR_H_
