#include "th/simulator/simulated_buffer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace th {

SegmentChecksum ContentOf(const std::string& content, int shard, SegmentIndex segment) {
  absl::string_view name = content;
  const bool frozen = segment.value % 4 == 1;
  if (frozen && absl::StrContains(name, '#')) name = name.substr(0, name.find(' '));
  const std::string text = absl::StrCat(name, "/", shard, "/", segment.value);
  return ChecksumBytes(text.data(), text.size());
}

std::shared_ptr<const ShardLayout> SimulatedLayout(int shard, uint64_t segment_count,
                                                   uint64_t segment_bytes) {
  TensorSpec tensor;
  tensor.name = absl::StrCat("shard", shard);
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(segment_count * segment_bytes)};
  ShardLayout::Spec spec;
  spec.tensors = {std::move(tensor)};
  spec.segment_bytes = segment_bytes;
  return std::make_shared<ShardLayout>(ShardLayout::Build(std::move(spec)).value());
}

void SimulatedBuffer::Write(const std::string& content) {
  for (uint64_t i = 0; i < segments_.size(); ++i) {
    segments_[i] = ContentOf(content, shard_, SegmentIndex(i));
  }
  SetHeld(SegmentSet::AllOf(segments_.size()));
}

void SimulatedBuffer::SetListed(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) {
  listed_.resize(first.value);
  listed_.insert(listed_.end(), checksums.begin(), checksums.end());
}

std::optional<SegmentChecksum> SimulatedBuffer::ChecksumOf(SegmentIndex segment) const {
  if (held_.Contains(segment)) return segments_[segment.value];
  if (segment.value < listed_.size()) return listed_[segment.value];
  return std::nullopt;
}

bool SimulatedBuffer::Is(const std::string& content) const {
  for (uint64_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i] != ContentOf(content, shard_, SegmentIndex(i))) return false;
  }
  return true;
}

}  // namespace th
