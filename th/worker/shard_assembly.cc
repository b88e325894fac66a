#include "th/worker/shard_assembly.h"

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

uint64_t ElementCount(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

// The box of elements that a part covers of the whole.
struct Box {
  const std::vector<int64_t>& begin;
  const std::vector<int64_t>& shape;

  bool Overlaps(const Box& other) const {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (begin[d] >= other.begin[d] + other.shape[d] || other.begin[d] >= begin[d] + shape[d]) {
        return false;
      }
    }
    return true;
  }
  bool SameAs(const Box& other) const { return begin == other.begin && shape == other.shape; }
};

Box BoxOf(const TensorSpec& spec) { return {spec.slice_begin, spec.shape}; }

class Assembler {
 public:
  explicit Assembler(absl::Span<const ShardLayout> layouts) : layouts_(layouts) {}

  absl::StatusOr<std::vector<WholeTensor>> Assemble() && {
    for (uint32_t shard = 0; shard < layouts_.size(); ++shard) {
      for (uint32_t i = 0; i < layouts_[shard].tensors().size(); ++i) {
        by_name_[layouts_[shard].tensors()[i].name].push_back({.shard = shard, .tensor = i});
      }
    }
    std::vector<WholeTensor> whole;
    whole.reserve(by_name_.size());
    for (auto& [name, parts] : by_name_) {
      TH_ASSIGN_OR_RETURN(WholeTensor tensor, AssembleOne(std::move(parts)));
      whole.push_back(std::move(tensor));
    }
    return whole;
  }

 private:
  const TensorSpec& SpecOf(const PlacedPart& part) const {
    return layouts_[part.shard].tensors()[part.tensor];
  }

  absl::StatusOr<WholeTensor> AssembleOne(std::vector<PlacedPart> parts) const {
    WholeTensor whole{.spec = SpecOf(parts.front())};
    TH_RETURN_IF_ERROR(MakeWhole(&whole.spec));
    for (const PlacedPart& part : parts) TH_RETURN_IF_ERROR(CheckAgrees(whole.spec, SpecOf(part)));
    if (!whole.spec.alias_of.empty()) return whole;  // its bytes are those of another
    TH_RETURN_IF_ERROR(PlaceParts(whole.spec, &parts));
    whole.parts = std::move(parts);
    return whole;
  }

  static absl::Status MakeWhole(TensorSpec* spec) {
    if (spec->shape != spec->global_shape) {
      spec->shape = spec->global_shape;
      TH_ASSIGN_OR_RETURN(spec->bytes, BytesOfShape(spec->dtype, spec->shape));
    }
    spec->slice_begin.assign(spec->shape.size(), 0);
    return absl::OkStatus();
  }

  static absl::Status CheckAgrees(const TensorSpec& whole, const TensorSpec& part) {
    if (part.dtype == whole.dtype && part.global_shape == whole.global_shape &&
        part.alias_of == whole.alias_of) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the shards disagree on tensor \"", whole.name, "\": ", DTypeName(whole.dtype),
                     ShapeToString(whole.global_shape), " and ", DTypeName(part.dtype),
                     ShapeToString(part.global_shape),
                     part.alias_of == whole.alias_of ? "" : ", alias in one and not in the other"));
  }

  absl::Status PlaceParts(const TensorSpec& whole, std::vector<PlacedPart>* parts) const {
    std::vector<const TensorSpec*> distinct;
    uint64_t covered = 0;
    for (PlacedPart& part : *parts) {
      const TensorSpec& spec = SpecOf(part);
      TH_ASSIGN_OR_RETURN(const bool repeated, IsRepeated(spec, distinct));
      TH_ASSIGN_OR_RETURN(const size_t runs, FirstRun(spec, &part.offset));
      part.in_place = !repeated && runs <= 1;
      if (repeated) continue;
      distinct.push_back(&spec);
      covered += ElementCount(spec.shape);
    }
    if (covered == ElementCount(whole.shape)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the shards hold ", covered, " of the ",
                                                      ElementCount(whole.shape),
                                                      " elements of tensor \"", whole.name, "\""));
  }

  static absl::StatusOr<bool> IsRepeated(const TensorSpec& spec,
                                         const std::vector<const TensorSpec*>& distinct) {
    for (const TensorSpec* other : distinct) {
      if (BoxOf(spec).SameAs(BoxOf(*other))) return true;
      if (!BoxOf(spec).Overlaps(BoxOf(*other))) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "parts of tensor \"", spec.name, "\" overlap in part: ", ShapeToString(spec.slice_begin),
          "+", ShapeToString(spec.shape), " and ", ShapeToString(other->slice_begin), "+",
          ShapeToString(other->shape)));
    }
    return false;
  }

  // The number of runs of the part, and where the first begins.
  static absl::StatusOr<size_t> FirstRun(const TensorSpec& spec, uint64_t* offset) {
    size_t runs = 0;
    TH_RETURN_IF_ERROR(ForEachRun(spec, [&](const ByteRun& run) {
      if (runs++ == 0) *offset = run.offset_in_whole;
    }));
    return runs;
  }

  const absl::Span<const ShardLayout> layouts_;
  std::map<std::string, std::vector<PlacedPart>> by_name_;
};

// The first dimension of the longest tail of dimensions that is one run in the whole.
size_t FirstContiguousDimension(const TensorSpec& part) {
  size_t first = part.shape.size();
  while (first > 0 && part.shape[first - 1] == part.global_shape[first - 1]) --first;
  return first == 0 ? 0 : first - 1;
}

}  // namespace

absl::StatusOr<std::vector<WholeTensor>> AssembleShards(absl::Span<const ShardLayout> layouts) {
  return Assembler(layouts).Assemble();
}

absl::Status ForEachRun(const TensorSpec& part, absl::FunctionRef<void(const ByteRun&)> visit) {
  if (part.bytes == 0) return absl::OkStatus();
  if (part.shape == part.global_shape) {
    visit({.bytes = part.bytes});
    return absl::OkStatus();
  }
  const size_t inner = FirstContiguousDimension(part);
  const uint64_t bits = static_cast<uint64_t>(DTypeBits(part.dtype));
  std::vector<uint64_t> stride_bits(part.shape.size(), bits);  // of the whole
  for (size_t d = part.shape.size(); d-- > 1;) {
    stride_bits[d - 1] = stride_bits[d] * static_cast<uint64_t>(part.global_shape[d]);
  }
  const uint64_t run_bits = stride_bits[inner] * static_cast<uint64_t>(part.shape[inner]);
  std::vector<int64_t> index(inner, 0);  // of the outer dimensions
  for (uint64_t done = 0; done < part.bytes; done += run_bits / 8) {
    uint64_t begin_bits = stride_bits[inner] * static_cast<uint64_t>(part.slice_begin[inner]);
    for (size_t d = 0; d < inner; ++d) {
      begin_bits += stride_bits[d] * static_cast<uint64_t>(part.slice_begin[d] + index[d]);
    }
    if (run_bits == 0 || (run_bits | begin_bits) % 8 != 0) {
      return absl::UnimplementedError(
          absl::StrCat("tensor \"", part.name, "\" is cut within a byte"));
    }
    visit({.offset_in_part = done, .offset_in_whole = begin_bits / 8, .bytes = run_bits / 8});
    for (size_t d = inner; d-- > 0;) {
      if (++index[d] < part.shape[d]) break;
      index[d] = 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace th
