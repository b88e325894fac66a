#include "th/simulator/simulated_buffer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace th {

SegmentSum ContentOf(const std::string& content, int shard, SegmentIndex segment) {
  const std::string text = absl::StrCat(content, "/", shard, "/", segment.value);
  return SumBytes(text.data(), text.size());
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
  held_ = SegmentSet::AllOf(segments_.size());
}

bool SimulatedBuffer::Is(const std::string& content) const {
  for (uint64_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i] != ContentOf(content, shard_, SegmentIndex(i))) return false;
  }
  return true;
}

}  // namespace th
