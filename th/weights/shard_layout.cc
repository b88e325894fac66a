#include "th/weights/shard_layout.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

constexpr uint64_t kSmallestDefaultSegmentBytes = uint64_t{256} << 10;
constexpr uint64_t kLargestDefaultSegmentBytes = uint64_t{4} << 20;
constexpr uint64_t kDefaultMaxSegments = 65'536;

absl::Status TooMany(absl::string_view what, uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("the shard has ", count, " ", what, "; at most ", limit, " are allowed"));
}

absl::Status CheckLimits(const std::vector<TensorSpec>& tensors) {
  uint64_t name_bytes = 0;
  uint64_t dimensions = 0;
  for (const TensorSpec& tensor : tensors) {
    name_bytes += tensor.name.size() + tensor.alias_of.size();
    dimensions += tensor.shape.size();
  }
  if (tensors.size() > kMaxTensors) return TooMany("tensors", tensors.size(), kMaxTensors);
  if (name_bytes > kMaxLayoutNameBytes) {
    return TooMany("bytes of names", name_bytes, kMaxLayoutNameBytes);
  }
  if (dimensions > kMaxLayoutDimensions) {
    return TooMany("dimensions", dimensions, kMaxLayoutDimensions);
  }
  return absl::OkStatus();
}

bool SpecLess(const TensorSpec& a, const TensorSpec& b) {
  return std::tie(a.name, a.slice_begin) < std::tie(b.name, b.slice_begin);
}

// Sorts indices first: a TensorSpec is some 250 bytes, too many to swap n log n times.
std::vector<TensorSpec> Sorted(std::vector<TensorSpec> tensors) {
  if (std::is_sorted(tensors.begin(), tensors.end(), SpecLess)) return tensors;
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return SpecLess(tensors[a], tensors[b]); });
  std::vector<TensorSpec> sorted;
  sorted.reserve(tensors.size());
  for (const uint32_t index : order) sorted.push_back(std::move(tensors[index]));
  return sorted;
}

// Both are boxes of one tensor. A box without bytes overlaps nothing but a box at the same place.
bool Overlap(const TensorSpec& a, const TensorSpec& b) {
  if (a.slice_begin == b.slice_begin) return true;
  for (size_t i = 0; i < a.shape.size(); ++i) {
    if (a.slice_begin[i] + a.shape[i] <= b.slice_begin[i]) return false;
    if (b.slice_begin[i] + b.shape[i] <= a.slice_begin[i]) return false;
  }
  return true;
}

// [begin, end): all that have one name.
absl::Status CheckBoxes(std::vector<TensorSpec>::const_iterator begin,
                        std::vector<TensorSpec>::const_iterator end) {
  const auto refused = [&](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(begin->name), ": ", reason));
  };
  if (static_cast<uint64_t>(end - begin) > kMaxBoxesOfOneName) {
    return refused(absl::StrCat(end - begin, " boxes have this name; at most ", kMaxBoxesOfOneName,
                                " are allowed"));
  }
  // First of all of them: only boxes of one tensor have as many dimensions as each other.
  const bool one_tensor = std::all_of(begin, end, [&](const TensorSpec& box) {
    return box.dtype == begin->dtype && box.global_shape == begin->global_shape;
  });
  if (!one_tensor) return refused("two tensors have this name, and are not boxes of one tensor");
  for (auto a = begin; a != end; ++a) {
    const auto b = std::find_if(
        std::next(a), end, [&](const TensorSpec& candidate) { return Overlap(*a, candidate); });
    if (b == end) continue;
    return refused(absl::StrCat("two tensors have this name, and their boxes at ",
                                ShapeToString(a->slice_begin), " and ",
                                ShapeToString(b->slice_begin), " overlap"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const std::vector<TensorSpec>& sorted) {
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    const auto end = std::find_if(std::next(begin), sorted.end(), [&](const TensorSpec& tensor) {
      return tensor.name != begin->name;
    });
    if (end - begin > 1) TH_RETURN_IF_ERROR(CheckBoxes(begin, end));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t DefaultSegmentBytes(uint64_t shard_bytes) {
  uint64_t segment_bytes = kSmallestDefaultSegmentBytes;
  while (segment_bytes < kLargestDefaultSegmentBytes &&
         shard_bytes / segment_bytes >= kDefaultMaxSegments &&
         shard_bytes > segment_bytes * kDefaultMaxSegments) {
    segment_bytes *= 2;
  }
  return segment_bytes;
}

absl::StatusOr<ShardLayout> ShardLayout::Build(Spec spec) {
  TH_RETURN_IF_ERROR(CheckLimits(spec.tensors));
  if (spec.checksum != ChecksumAlgorithm::kNone &&
      spec.checksum != ChecksumAlgorithm::kXxh3Leaves) {
    return absl::InvalidArgumentError(
        absl::StrCat("checksum algorithm ", static_cast<int>(spec.checksum), " is unknown"));
  }
  for (TensorSpec& tensor : spec.tensors) {
    TH_ASSIGN_OR_RETURN(tensor, CompleteTensorSpec(std::move(tensor)));
  }
  ShardLayout layout;
  layout.tensors_ = Sorted(std::move(spec.tensors));
  layout.checksum_ = spec.checksum;
  TH_RETURN_IF_ERROR(CheckNames(layout.tensors_));
  TH_RETURN_IF_ERROR(layout.LayOutStorages());
  TH_RETURN_IF_ERROR(layout.ChooseSegmentBytes(spec.segment_bytes));
  const std::string encoded = layout.Encode();
  if (encoded.size() > kMaxLayoutBytes) {
    return TooMany("bytes of encoded layout", encoded.size(), kMaxLayoutBytes);
  }
  layout.encoded_bytes_ = encoded.size();
  layout.digest_ = Sha256(encoded);
  return layout;
}

absl::Status ShardLayout::LayOutStorages() {
  storage_of_.resize(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].alias_of.empty()) continue;
    storage_of_[i] = static_cast<uint32_t>(storages_.size());
    storages_.push_back({.tensor = i, .stream_offset = bytes_, .bytes = tensors_[i].bytes});
    if (__builtin_add_overflow(bytes_, tensors_[i].bytes, &bytes_)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensors_[i].name),
                                                     ": the shard's bytes overflow with it"));
    }
  }
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].alias_of.empty()) TH_RETURN_IF_ERROR(ResolveAlias(i));
  }
  return absl::OkStatus();
}

absl::Status ShardLayout::ResolveAlias(uint32_t tensor) {
  const TensorSpec& alias = tensors_[tensor];
  const auto refused = [&](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(alias.name), ": alias of ",
                                                   Quoted(alias.alias_of), ", ", reason));
  };
  auto owner = std::lower_bound(
      tensors_.begin(), tensors_.end(), alias.alias_of,
      [](const TensorSpec& candidate, const std::string& name) { return candidate.name < name; });
  const auto end = std::find_if(owner, tensors_.end(), [&](const TensorSpec& candidate) {
    return candidate.name != alias.alias_of;
  });
  if (owner == end) return refused("which the shard does not have");
  if (end - owner > 1) {
    owner = std::find_if(owner, end, [&](const TensorSpec& candidate) {
      return candidate.slice_begin == alias.slice_begin;
    });
    if (owner == end) {
      return refused(absl::StrCat("which has several boxes, none of them at ",
                                  ShapeToString(alias.slice_begin)));
    }
  }
  if (!owner->alias_of.empty()) return refused("which is an alias itself");
  if (owner->bytes != alias.bytes) {
    return refused(absl::StrCat("which has ", owner->bytes, " bytes, not ", alias.bytes));
  }
  storage_of_[tensor] = storage_of_[owner - tensors_.begin()];
  return absl::OkStatus();
}

absl::Status ShardLayout::ChooseSegmentBytes(uint64_t wanted_bytes) {
  segment_bytes_ = wanted_bytes != 0 ? wanted_bytes : DefaultSegmentBytes(bytes_);
  if (segment_bytes_ < kMinSegmentBytes || segment_bytes_ > kMaxSegmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("segment_bytes=", segment_bytes_, " is outside ",
                                                   kMinSegmentBytes, " to ", kMaxSegmentBytes));
  }
  if (segment_count() > kMaxSegments) return TooMany("segments", segment_count(), kMaxSegments);
  return absl::OkStatus();
}

uint64_t ShardLayout::segment_count() const {
  return bytes_ / segment_bytes_ + (bytes_ % segment_bytes_ != 0 ? 1 : 0);
}

uint64_t ShardLayout::SegmentLength(SegmentIndex segment) const {
  if (segment.value >= segment_count()) return 0;
  return std::min(segment_bytes_, bytes_ - segment.value * segment_bytes_);
}

SegmentPieces ShardLayout::PiecesOf(SegmentIndex segment) const {
  SegmentPieces pieces;
  uint64_t missing = SegmentLength(segment);
  if (missing == 0) return pieces;
  uint64_t position = segment.value * segment_bytes_;
  // Storages without bytes share their offset with the next one that has some, and come before it:
  // the last one that begins at or before the position is the one that holds it.
  auto storage = std::prev(std::upper_bound(
      storages_.begin(), storages_.end(), position,
      [](uint64_t wanted, const Storage& held) { return wanted < held.stream_offset; }));
  for (; missing > 0; ++storage) {
    const uint64_t offset = position - storage->stream_offset;
    const uint64_t bytes = std::min(missing, storage->bytes - offset);
    if (bytes == 0) continue;
    pieces.push_back({static_cast<uint32_t>(storage - storages_.begin()), offset, bytes});
    position += bytes;
    missing -= bytes;
  }
  return pieces;
}

uint64_t ShardLayout::BytesOf(SegmentIndex begin, SegmentIndex end) const {
  const uint64_t last = std::min(end.value, segment_count());
  if (begin.value >= last) return 0;
  return std::min(last * segment_bytes_, bytes_) - begin.value * segment_bytes_;
}

}  // namespace th
