#include "th/controlled_rank/rank_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "th/command_line/quantity.h"
#include "th/memory/checkpoint_folder.h"
#include "th/status/status_macros.h"
#include "th/weights/shard_partition.h"
#include "th/weights/synthetic.h"

namespace th {
namespace {

constexpr uint64_t kSeed = 20260101;

// The content of a synthetic model before any change; changes count from 1.
constexpr uint64_t kBaseContent = 0;

SyntheticContent Content(const Tensor& tensor, uint64_t version) {
  return {.seed = kSeed, .version = version, .tensor = tensor.name};
}

absl::Span<uint8_t> BytesOf(const Tensor& tensor) {
  return {static_cast<uint8_t*>(tensor.data), tensor.bytes};
}

bool HasBytes(const Tensor& tensor) { return tensor.alias_of.empty() && tensor.bytes > 0; }

absl::StatusOr<std::vector<TensorSpec>> EqualTensors(uint64_t count, uint64_t bytes) {
  if (count > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " tensors do not fit into ", FormatBytes(bytes)));
  }
  std::vector<TensorSpec> tensors;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t share = bytes * (i + 1) / count - bytes * i / count;
    tensors.push_back({.name = absl::StrFormat("tensor.%07d", i),
                       .dtype = DType::kU8,
                       .shape = {static_cast<int64_t>(share)}});
  }
  return tensors;
}

absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const ModelChoice& model) {
  if (!model.folder.empty()) {
    TH_ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(model.folder));
    return folder.tensors();
  }
  if (model.tensors > 0) return EqualTensors(model.tensors, model.bytes);
  TH_ASSIGN_OR_RETURN(const SyntheticKind kind, ParseSyntheticKind(model.synthetic));
  return SyntheticModel(kind, model.bytes);
}

}  // namespace

std::string ModelChoice::ToString() const {
  if (!folder.empty()) return folder;
  if (tensors > 0) return absl::StrCat(tensors, " tensors of ", FormatBytes(bytes));
  return absl::StrCat("synthetic ", synthetic, " of ", FormatBytes(bytes));
}

nlohmann::json ToJson(const ShardChoice& choice) {
  return {{"folder", choice.model.folder}, {"synthetic", choice.model.synthetic},
          {"bytes", choice.model.bytes},   {"tensors", choice.model.tensors},
          {"shard", choice.shard},         {"shards", choice.shards}};
}

absl::StatusOr<ShardChoice> ShardChoiceFromJson(const nlohmann::json& json) {
  const auto text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  const auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned();
  };
  if (!json.is_object() || !text("folder") || !text("synthetic") || !number("bytes") ||
      !number("tensors") || !number("shard") || !number("shards") ||
      json["shard"].get<uint64_t>() >= json["shards"].get<uint64_t>()) {
    return absl::InvalidArgumentError("the choice of weights is malformed");
  }
  return ShardChoice{.model = {.folder = json["folder"],
                               .synthetic = json["synthetic"],
                               .bytes = json["bytes"],
                               .tensors = json["tensors"]},
                     .shard = json["shard"],
                     .shards = json["shards"]};
}

absl::StatusOr<std::vector<std::vector<TensorSpec>>> ShardsOf(const ModelChoice& model,
                                                              uint32_t shards) {
  TH_ASSIGN_OR_RETURN(std::vector<TensorSpec> tensors, TensorsOf(model));
  return SplitIntoShards(std::move(tensors), shards);
}

uint64_t BytesOf(const std::vector<TensorSpec>& tensors) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty()) bytes += tensor.bytes;
  }
  return bytes;
}

Digest Combine(const TensorChecksums& checksums) {
  DigestBuilder builder;
  for (const auto& [name, checksum] : checksums)
    builder.Update(absl::StrCat(name, " ", checksum.ToHex(), "\n"));
  return builder.Finish();
}

absl::StatusOr<RankWeights> RankWeights::Allocate(ShardChoice choice) {
  TH_ASSIGN_OR_RETURN(auto shards, ShardsOf(choice.model, choice.shards));
  const TensorPlacement placement =
      choice.model.tensors > 0 ? TensorPlacement::kSeparately : TensorPlacement::kOneArena;
  TH_ASSIGN_OR_RETURN(TensorMemory memory,
                      TensorMemory::Allocate(std::move(shards[choice.shard]), placement));
  return RankWeights(std::move(choice), std::move(memory));
}

absl::Status RankWeights::Load() {
  content_ = kBaseContent;
  if (choice_.model.folder.empty()) {
    for (const Tensor& tensor : tensors()) {
      if (HasBytes(tensor)) FillSynthetic(Content(tensor, kBaseContent), 0, BytesOf(tensor));
    }
    return absl::OkStatus();
  }
  TH_ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(choice_.model.folder));
  for (const Tensor& tensor : tensors()) {
    if (HasBytes(tensor)) TH_RETURN_IF_ERROR(folder.Read(tensor.name, tensor.data));
  }
  return absl::OkStatus();
}

void RankWeights::ChangeTo(uint64_t content) {
  if (content == content_) return;
  Mutate(content_);  // a second time gives the old bytes back
  Mutate(content);
  content_ = content;
}

void RankWeights::Mutate(uint64_t content) {
  if (content == kBaseContent) return;
  for (const Tensor& tensor : tensors()) {
    if (HasBytes(tensor)) MutateSynthetic(Content(tensor, content), 0, BytesOf(tensor));
  }
}

void RankWeights::Scribble() {
  for (const Tensor& tensor : tensors()) {
    if (!HasBytes(tensor)) continue;
    for (uint8_t& byte : BytesOf(tensor)) byte = static_cast<uint8_t>(~byte);
  }
}

TensorChecksums RankWeights::Checksum() const {
  TensorChecksums checksums;
  for (const Tensor& tensor : tensors()) {
    if (!tensor.alias_of.empty()) continue;
    checksums.emplace_back(tensor.name,
                           Sha256({static_cast<const char*>(tensor.data), tensor.bytes}));
  }
  std::sort(checksums.begin(), checksums.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return checksums;
}

}  // namespace th
