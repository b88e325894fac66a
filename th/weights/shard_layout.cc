#include "th/weights/shard_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/weights/status_macros.h"
#include "th/weights/utf8.h"

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

bool NameLess(const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; }

// Sorts small keys first: a TensorSpec is some 250 bytes, too many to swap n log n times.
std::vector<TensorSpec> SortedByName(std::vector<TensorSpec> tensors) {
  if (std::is_sorted(tensors.begin(), tensors.end(), NameLess)) return tensors;
  std::vector<std::pair<absl::string_view, uint32_t>> order;
  order.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    order.emplace_back(tensor.name, static_cast<uint32_t>(order.size()));
  }
  std::sort(order.begin(), order.end());
  std::vector<TensorSpec> sorted;
  sorted.reserve(tensors.size());
  // Moving one spec leaves the names of those that are still to be moved where they are.
  for (const auto& [name, index] : order) sorted.push_back(std::move(tensors[index]));
  return sorted;
}

absl::Status CheckDistinctNames(const std::vector<TensorSpec>& sorted) {
  const auto duplicate =
      std::adjacent_find(sorted.begin(), sorted.end(),
                         [](const TensorSpec& a, const TensorSpec& b) { return a.name == b.name; });
  if (duplicate == sorted.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quoted(duplicate->name), ": two tensors have this name"));
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
  if (spec.checksum != ChecksumAlgorithm::kNone && spec.checksum != ChecksumAlgorithm::kXxh3_64) {
    return absl::InvalidArgumentError(
        absl::StrCat("checksum algorithm ", static_cast<int>(spec.checksum), " is unknown"));
  }
  for (TensorSpec& tensor : spec.tensors) {
    TH_ASSIGN_OR_RETURN(tensor, CompleteTensorSpec(std::move(tensor)));
  }
  ShardLayout layout;
  layout.tensors_ = SortedByName(std::move(spec.tensors));
  layout.checksum_ = spec.checksum;
  TH_RETURN_IF_ERROR(CheckDistinctNames(layout.tensors_));
  TH_RETURN_IF_ERROR(layout.LayOutStorages());
  TH_RETURN_IF_ERROR(layout.ChooseSegmentBytes(spec.segment_bytes));
  const std::string encoded = layout.Encode();
  if (encoded.size() > kMaxLayoutBytes) {
    return TooMany("bytes of encoded layout", encoded.size(), kMaxLayoutBytes);
  }
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
  const auto owner = std::lower_bound(
      tensors_.begin(), tensors_.end(), alias.alias_of,
      [](const TensorSpec& candidate, const std::string& name) { return candidate.name < name; });
  if (owner == tensors_.end() || owner->name != alias.alias_of) {
    return refused("which the shard does not have");
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
