#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/client/attach.h"

namespace th {

AttachedTensor AttachedVersion::tensor(size_t index) const {
  const ShardLayout& layout = *parts_.layout;
  const ShardLayout::Storage& storage =
      layout.storages()[layout.StorageOf(static_cast<uint32_t>(index))];
  return {.spec = &layout.tensors()[index],
          .data = parts_.shard->At(storage.stream_offset, storage.bytes)};
}

AttachedTensor AttachedVersion::Find(absl::string_view name) const {
  const std::vector<TensorSpec>& tensors = parts_.layout->tensors();
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorSpec& tensor, absl::string_view wanted) { return tensor.name < wanted; });
  if (found == tensors.end() || found->name != name) return {};
  return tensor(static_cast<size_t>(found - tensors.begin()));
}

absl::Status AttachedVersion::Verify() const {
  const ShardLayout& layout = *parts_.layout;
  for (uint64_t i = 0; i < parts_.checksums.size(); ++i) {
    SegmentHasher hasher;
    for (const SegmentPiece& piece : layout.PiecesOf(SegmentIndex(i))) {
      const ShardLayout::Storage& storage = layout.storages()[piece.storage];
      hasher.Update(parts_.shard->At(storage.stream_offset + piece.offset, piece.bytes),
                    piece.bytes);
    }
    if (hasher.Finish() != parts_.checksums[i]) {
      return absl::DataLossError(absl::StrCat("segment ", i, " of version ",
                                              parts_.version.ToString(), " as ", parts_.source,
                                              " holds it is not what was published"));
    }
  }
  return absl::OkStatus();
}

}  // namespace th
