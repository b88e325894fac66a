#include "th/worker/model_memory.h"

#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

uint8_t* At(void* data, uint64_t offset) { return static_cast<uint8_t*>(data) + offset; }

// The beginning of a box identifies it: parts that overlap without being the same are refused
// before.
using SeenParts = std::set<std::vector<int64_t>>;

}  // namespace

absl::StatusOr<ModelMemory> ModelMemory::Allocate(std::vector<ShardLayout> layouts) {
  ModelMemory model;
  model.layouts_ = std::move(layouts);
  TH_ASSIGN_OR_RETURN(model.whole_, AssembleShards(model.layouts_));
  TH_RETURN_IF_ERROR(model.AllocateWhole());
  TH_RETURN_IF_ERROR(model.AllocateSide());
  model.PointShards();
  return model;
}

absl::Status ModelMemory::AllocateWhole() {
  std::vector<TensorSpec> specs;
  for (const WholeTensor& tensor : whole_) specs.push_back(tensor.spec);
  // Each shard is a buffer of its own, so that several in one arena are not attached.
  const ReadersMay readers_may = layouts_.size() == 1 ? ReadersMay::kAttach : ReadersMay::kCopy;
  TH_ASSIGN_OR_RETURN(
      whole_memory_,
      TensorMemory::Allocate(std::move(specs), TensorPlacement::kOneArena, readers_may));
  return absl::OkStatus();
}

absl::Status ModelMemory::AllocateSide() {
  std::vector<TensorSpec> specs;
  for (const WholeTensor& tensor : whole_) {
    for (const PlacedPart& part : tensor.parts) {
      if (!IsSide(part)) continue;
      TensorSpec spec = layouts_[part.shard].tensors()[part.tensor];
      // Several shards' parts have one name.
      spec.name = absl::StrCat(part.shard, ".", part.tensor);
      specs.push_back(std::move(spec));
    }
  }
  TH_ASSIGN_OR_RETURN(side_memory_, TensorMemory::Allocate(std::move(specs)));
  return absl::OkStatus();
}

void ModelMemory::PointShards() {
  for (const ShardLayout& layout : layouts_) {
    std::vector<Tensor>& tensors = shards_.emplace_back();
    for (const TensorSpec& spec : layout.tensors()) tensors.push_back(Tensor{spec});
  }
  size_t side = 0;
  for (size_t i = 0; i < whole_.size(); ++i) {
    for (const PlacedPart& part : whole_[i].parts) {
      shards_[part.shard][part.tensor].data =
          IsSide(part) ? side_memory_.tensors()[side++].data
                       : At(whole_memory_.tensors()[i].data, part.offset);
    }
  }
  for (std::vector<Tensor>& tensors : shards_) {
    absl::flat_hash_map<std::string, void*> data;
    for (const Tensor& tensor : tensors) data[tensor.name] = tensor.data;
    for (Tensor& tensor : tensors) {
      if (!tensor.alias_of.empty()) tensor.data = data[tensor.alias_of];
    }
  }
}

absl::Status ModelMemory::Gather() {
  for (size_t i = 0; i < whole_.size(); ++i) {
    SeenParts seen;
    for (const PlacedPart& part : whole_[i].parts) {
      const Tensor& from = shards_[part.shard][part.tensor];
      const bool repeated = !seen.insert(from.slice_begin).second;
      if (!IsSide(part)) continue;
      bool same = true;
      TH_RETURN_IF_ERROR(ForEachRun(from, [&](const ByteRun& run) {
        uint8_t* const to = At(whole_memory_.tensors()[i].data, run.offset_in_whole);
        const uint8_t* const bytes = At(from.data, run.offset_in_part);
        if (repeated) {
          same = same && memcmp(to, bytes, run.bytes) == 0;
        } else {
          memcpy(to, bytes, run.bytes);
        }
      }));
      if (!same) {
        return absl::DataLossError(
            absl::StrCat("two shards hold different bytes of tensor \"", from.name, "\""));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace th
