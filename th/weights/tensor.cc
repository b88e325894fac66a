#include "th/weights/tensor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

struct DTypeInfo {
  DType dtype;
  absl::string_view name;
  int bits;
};

// Indexed by the wire value.
constexpr DTypeInfo kDTypes[] = {
    {DType::kOpaque, "OPAQUE", 0},
    {DType::kBool, "BOOL", 8},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kU16, "U16", 16},
    {DType::kI16, "I16", 16},
    {DType::kU32, "U32", 32},
    {DType::kI32, "I32", 32},
    {DType::kU64, "U64", 64},
    {DType::kI64, "I64", 64},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kF32, "F32", 32},
    {DType::kF64, "F64", 64},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kC64, "C64", 64},
};

constexpr bool IsIndexedByWireValue() {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(IsIndexedByWireValue());

const DTypeInfo* InfoOf(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kDTypes) ? &kDTypes[index] : nullptr;
}

absl::Status Refused(const TensorSpec& spec, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(spec.name), ": ", reason));
}

absl::Status CheckName(const TensorSpec& spec) {
  if (spec.name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  if (spec.name.size() > kMaxTensorNameBytes) {
    return Refused(spec, absl::StrCat("its name has ", spec.name.size(), " bytes; at most ",
                                      kMaxTensorNameBytes, " are allowed"));
  }
  if (!IsUtf8(spec.name)) return Refused(spec, "its name is not UTF-8");
  return absl::OkStatus();
}

absl::Status CompleteBytes(TensorSpec& spec) {
  if (spec.dtype == DType::kOpaque) {
    // Shape and bytes are unrelated, but the shape must still be one.
    const absl::Status shape = BytesOfShape(DType::kU8, spec.shape).status();
    if (!shape.ok()) return Refused(spec, shape.message());
    return absl::OkStatus();
  }
  const absl::StatusOr<uint64_t> implied = BytesOfShape(spec.dtype, spec.shape);
  if (!implied.ok()) return Refused(spec, implied.status().message());
  if (spec.bytes != 0 && spec.bytes != *implied) {
    return Refused(spec,
                   absl::StrCat("bytes=", spec.bytes, " disagree with ", DTypeName(spec.dtype), " ",
                                ShapeToString(spec.shape), ", which has ", *implied));
  }
  spec.bytes = *implied;
  return absl::OkStatus();
}

// A dimension of one element is never stepped along, nor is any of a tensor without elements.
bool IsContiguous(const TensorSpec& spec) {
  if (spec.strides.size() != spec.shape.size()) return false;
  if (std::count(spec.shape.begin(), spec.shape.end(), 0) > 0) return true;
  int64_t expected = 1;
  for (size_t i = spec.shape.size(); i-- > 0;) {
    if (spec.shape[i] != 1 && spec.strides[i] != expected) return false;
    expected *= spec.shape[i];
  }
  return true;
}

absl::Status CompleteStrides(TensorSpec& spec) {
  if (spec.strides.empty()) return absl::OkStatus();
  if (!IsContiguous(spec)) {
    return Refused(spec, absl::StrCat("strides ", ShapeToString(spec.strides), " of shape ",
                                      ShapeToString(spec.shape),
                                      " are not contiguous; make it contiguous first"));
  }
  spec.strides.clear();
  return absl::OkStatus();
}

absl::Status CompleteSlice(TensorSpec& spec) {
  if (spec.global_shape.empty()) spec.global_shape = spec.shape;
  if (spec.slice_begin.empty()) spec.slice_begin.assign(spec.shape.size(), 0);
  bool inside =
      spec.global_shape.size() == spec.shape.size() && spec.slice_begin.size() == spec.shape.size();
  for (size_t i = 0; inside && i < spec.shape.size(); ++i) {
    // In this order nothing can overflow: no term is negative.
    inside = spec.slice_begin[i] >= 0 && spec.global_shape[i] >= spec.slice_begin[i] &&
             spec.shape[i] <= spec.global_shape[i] - spec.slice_begin[i];
  }
  if (inside) return absl::OkStatus();
  return Refused(
      spec,
      absl::StrCat("slice ", ShapeToString(spec.shape), " at ", ShapeToString(spec.slice_begin),
                   " is not inside the global shape ", ShapeToString(spec.global_shape)));
}

}  // namespace

absl::string_view DTypeName(DType dtype) {
  const DTypeInfo* info = InfoOf(dtype);
  return info != nullptr ? info->name : "UNKNOWN";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", Quoted(name)));
}

int DTypeBits(DType dtype) {
  const DTypeInfo* info = InfoOf(dtype);
  return info != nullptr ? info->bits : 0;
}

absl::StatusOr<uint64_t> BytesOfShape(DType dtype, absl::Span<const int64_t> shape) {
  const int bits = DTypeBits(dtype);
  if (bits == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", DTypeName(dtype), " says nothing about bytes"));
  }
  if (shape.size() > static_cast<size_t>(kMaxTensorDimensions)) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", shape.size(), " dimensions; at most ",
                                                   kMaxTensorDimensions, " are allowed"));
  }
  uint64_t elements = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ShapeToString(shape), " has a negative dimension"));
    }
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements);
  }
  if (empty) return 0;
  uint64_t total_bits = 0;
  overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(bits), &total_bits);
  if (overflow || total_bits > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", ShapeToString(shape), " of ", DTypeName(dtype), " overflows"));
  }
  return (total_bits + 7) / 8;
}

absl::StatusOr<TensorSpec> CompleteTensorSpec(TensorSpec spec) {
  TH_RETURN_IF_ERROR(CheckName(spec));
  if (InfoOf(spec.dtype) == nullptr) return Refused(spec, "its dtype is unknown");
  TH_RETURN_IF_ERROR(CompleteBytes(spec));
  TH_RETURN_IF_ERROR(CompleteStrides(spec));
  TH_RETURN_IF_ERROR(CompleteSlice(spec));
  return spec;
}

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

}  // namespace th
