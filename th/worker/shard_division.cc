#include "th/worker/shard_division.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

using PartsOfShards = std::vector<std::vector<TensorPart>>;

uint64_t ElementCount(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

// Whether `spec` can be cut into equal parts of whole bytes along its first dimension.
bool CutsEvenly(const TensorSpec& spec, ShardCount shards) {
  if (spec.dtype == DType::kOpaque || spec.bytes < kMinCutBytes || spec.shape.empty()) return false;
  if (spec.shape[0] % shards.value != 0) return false;
  return ElementCount(spec.shape) / shards.value * DTypeBits(spec.dtype) % 8 == 0;
}

TensorPart CutPart(const TensorSpec& whole, ShardCount shards, uint32_t shard) {
  TensorPart part{.spec = whole, .offset = whole.bytes / shards.value * shard};
  part.spec.bytes = whole.bytes / shards.value;
  part.spec.shape[0] = whole.shape[0] / shards.value;
  part.spec.global_shape = whole.shape;
  part.spec.slice_begin.assign(whole.shape.size(), 0);
  part.spec.slice_begin[0] = part.spec.shape[0] * shard;
  return part;
}

// Divides storages first, then puts every alias where its storage went.
class Divider {
 public:
  Divider(std::vector<TensorSpec> whole, ShardCount shards)
      : whole_(std::move(whole)), shards_(shards), parts_(shards.value), bytes_(shards.value) {}

  absl::StatusOr<PartsOfShards> Divide() && {
    TH_RETURN_IF_ERROR(Complete());
    TH_RETURN_IF_ERROR(FindAliases());
    CutOrCollect();
    PlaceWholeTensors();
    PlaceAliases();
    for (const std::vector<TensorPart>& shard : parts_) {
      if (!shard.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          whole_.size(), " tensors cannot be divided into ", shards_.value, " shards"));
    }
    return std::move(parts_);
  }

 private:
  absl::Status Complete() {
    for (TensorSpec& spec : whole_) {
      TH_ASSIGN_OR_RETURN(spec, CompleteTensorSpec(std::move(spec)));
    }
    std::sort(whole_.begin(), whole_.end(),
              [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
    return absl::OkStatus();
  }

  absl::Status FindAliases() {
    for (size_t i = 0; i < whole_.size(); ++i) index_[whole_[i].name] = i;
    uncut_.assign(whole_.size(), false);
    for (const TensorSpec& spec : whole_) {
      if (spec.alias_of.empty()) continue;
      const auto target = index_.find(spec.alias_of);
      if (target == index_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("tensor \"", spec.name,
                                                       "\" is an alias of the unknown tensor \"",
                                                       spec.alias_of, "\""));
      }
      const TensorSpec& storage = whole_[target->second];
      if (!storage.alias_of.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("tensor \"", spec.name, "\" is an alias of \"",
                                                       storage.name, "\", which is one itself"));
      }
      // Of another shape it could not be cut at the same bytes.
      if (storage.shape != spec.shape || storage.dtype != spec.dtype) uncut_[target->second] = true;
    }
    return absl::OkStatus();
  }

  void CutOrCollect() {
    for (size_t i = 0; i < whole_.size(); ++i) {
      if (!whole_[i].alias_of.empty()) continue;
      if (uncut_[i] || !CutsEvenly(whole_[i], shards_)) {
        uncut_[i] = true;
        kept_whole_.push_back(i);
        continue;
      }
      for (uint32_t shard = 0; shard < shards_.value; ++shard) Place(CutPart(whole_[i], shards_, shard), shard);
    }
  }

  // Largest first, each to the lightest shard: the shards end up nearly equal.
  void PlaceWholeTensors() {
    std::stable_sort(kept_whole_.begin(), kept_whole_.end(), [this](size_t a, size_t b) {
      return whole_[a].bytes > whole_[b].bytes;
    });
    for (size_t i : kept_whole_) {
      const auto lightest = std::min_element(bytes_.begin(), bytes_.end());
      const uint32_t shard = static_cast<uint32_t>(lightest - bytes_.begin());
      home_[i] = shard;
      Place({.spec = whole_[i]}, shard);
    }
  }

  void PlaceAliases() {
    for (const TensorSpec& spec : whole_) {
      if (spec.alias_of.empty()) continue;
      const size_t target = index_[spec.alias_of];
      if (uncut_[target]) {
        parts_[home_[target]].push_back({.spec = spec});
        continue;
      }
      for (uint32_t shard = 0; shard < shards_.value; ++shard) {
        parts_[shard].push_back(CutPart(spec, shards_, shard));
      }
    }
  }

  void Place(TensorPart part, uint32_t shard) {
    // Counted as one byte more, so that tensors without bytes spread too.
    bytes_[shard] += part.spec.bytes + 1;
    parts_[shard].push_back(std::move(part));
  }

  std::vector<TensorSpec> whole_;
  const ShardCount shards_;
  PartsOfShards parts_;
  std::vector<uint64_t> bytes_;
  absl::flat_hash_map<std::string, size_t> index_;
  std::vector<bool> uncut_;
  std::vector<size_t> kept_whole_;
  absl::flat_hash_map<size_t, uint32_t> home_;  // of the tensors kept whole
};

// What a part covers of the whole: a box of elements.
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
    return absl::InvalidArgumentError(absl::StrCat(
        "the shards disagree on tensor \"", whole.name, "\": ", DTypeName(whole.dtype),
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
    return absl::FailedPreconditionError(
        absl::StrCat("the shards hold ", covered, " of the ", ElementCount(whole.shape),
                     " elements of tensor \"", whole.name, "\""));
  }

  static absl::StatusOr<bool> IsRepeated(const TensorSpec& spec,
                                         const std::vector<const TensorSpec*>& distinct) {
    for (const TensorSpec* other : distinct) {
      if (BoxOf(spec).SameAs(BoxOf(*other))) return true;
      if (!BoxOf(spec).Overlaps(BoxOf(*other))) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parts of tensor \"", spec.name, "\" overlap in part: ",
                       ShapeToString(spec.slice_begin), "+", ShapeToString(spec.shape), " and ",
                       ShapeToString(other->slice_begin), "+", ShapeToString(other->shape)));
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

absl::StatusOr<PartsOfShards> DivideIntoShards(std::vector<TensorSpec> whole, ShardCount shards) {
  if (shards.value == 0 || shards > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of shards must be from 1 to ", kMaxShards.value, ", not ", shards.value));
  }
  return Divider(std::move(whole), shards).Divide();
}

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
