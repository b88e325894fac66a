#include "th/worker/checkpoint_comparison.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/weights/checksum.h"
#include "th/worker/shard_assembly.h"

namespace th {
namespace {

std::string TypeOf(const TensorSpec& spec) {
  return absl::StrCat(DTypeName(spec.dtype),
                      ShapeToString(spec.global_shape.empty() ? spec.shape : spec.global_shape));
}

// The difference between two tensors of one name; empty: none.
std::string Difference(const ChecksummedTensor& a, const ChecksummedTensor& b) {
  if (a.spec.dtype != b.spec.dtype || a.spec.shape != b.spec.shape) {
    return absl::StrCat(TypeOf(a.spec), " and ", TypeOf(b.spec));
  }
  if (a.checksum == b.checksum) return "";
  return absl::StrCat("other bytes (SHA-256 ", a.checksum.ShortHex(), " and ",
                      b.checksum.ShortHex(), ")");
}

// Sums a shard's byte stream segment by segment, as it comes.
class SegmentChecksummer {
 public:
  explicit SegmentChecksummer(const ShardLayout& layout) : layout_(layout) {}

  void Add(const uint8_t* data, uint64_t bytes) {
    while (bytes > 0) {
      const uint64_t length = layout_.SegmentLength(SegmentIndex(checksums_.size()));
      const uint64_t taken = std::min(bytes, length - in_segment_);
      hasher_.Update(data, taken);
      data += taken;
      bytes -= taken;
      in_segment_ += taken;
      if (in_segment_ < length) continue;
      checksums_.push_back(hasher_.Finish());
      in_segment_ = 0;
    }
  }
  const std::vector<SegmentChecksum>& checksums() const { return checksums_; }

 private:
  const ShardLayout& layout_;
  SegmentHasher hasher_;
  uint64_t in_segment_ = 0;
  std::vector<SegmentChecksum> checksums_;
};

absl::Status CheckSameTensor(const TensorSpec& part, const TensorSpec* whole) {
  if (whole == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder has no tensor \"", part.name, "\""));
  }
  if (whole->dtype == part.dtype && whole->shape == part.global_shape) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("tensor \"", part.name, "\" is ",
                                                    TypeOf(*whole), " in the folder and ",
                                                    TypeOf(part), " in the version"));
}

}  // namespace

absl::StatusOr<ChecksummedModel> ChecksumFolder(const CheckpointFolder& folder) {
  ChecksummedModel model;
  std::vector<char> bytes;
  for (const TensorSpec& spec : folder.tensors()) {
    bytes.resize(spec.bytes);
    TH_RETURN_IF_ERROR(folder.Read(spec.name, bytes.data()));
    model[spec.name] = {.spec = spec, .checksum = Sha256({bytes.data(), bytes.size()})};
  }
  return model;
}

ChecksummedModel ChecksumMemory(const std::vector<Tensor>& tensors) {
  ChecksummedModel model;
  for (const Tensor& tensor : tensors) {
    model[tensor.name] = {
        .spec = static_cast<const TensorSpec&>(tensor),
        .checksum = Sha256({static_cast<const char*>(tensor.data), tensor.bytes})};
  }
  return model;
}

std::vector<std::string> Differences(const ChecksummedModel& model, const std::string& model_name,
                                     const ChecksummedModel& other, const std::string& other_name) {
  std::vector<std::string> differences;
  for (const auto& [name, tensor] : model) {
    const auto found = other.find(name);
    if (found == other.end()) {
      differences.push_back(absl::StrCat("tensor \"", name, "\" is only in ", model_name));
    } else if (std::string what = Difference(tensor, found->second); !what.empty()) {
      differences.push_back(absl::StrCat("tensor \"", name, "\" differs: ", what));
    }
  }
  for (const auto& [name, tensor] : other) {
    if (model.count(name) == 0) {
      differences.push_back(absl::StrCat("tensor \"", name, "\" is only in ", other_name));
    }
  }
  if (differences.size() > kMaxDifferences) {
    const size_t more = differences.size() - kMaxDifferences;
    differences.resize(kMaxDifferences);
    differences.push_back(absl::StrCat("and ", more, " more"));
  }
  return differences;
}

absl::StatusOr<Digest> RootOfShard(const CheckpointFolder& folder, const ShardLayout& layout) {
  absl::flat_hash_map<std::string, const TensorSpec*> specs;
  for (const TensorSpec& spec : folder.tensors()) specs[spec.name] = &spec;
  for (const TensorSpec& part : layout.tensors()) {
    const auto found = specs.find(part.name);
    TH_RETURN_IF_ERROR(CheckSameTensor(part, found == specs.end() ? nullptr : found->second));
  }
  if (layout.checksum() == ChecksumAlgorithm::kNone) return Digest();
  SegmentChecksummer checksummer(layout);
  std::vector<uint8_t> whole;
  for (const ShardLayout::Storage& storage : layout.storages()) {
    const TensorSpec& part = layout.tensors()[storage.tensor];
    whole.resize(specs[part.name]->bytes);
    TH_RETURN_IF_ERROR(folder.Read(part.name, whole.data()));
    TH_RETURN_IF_ERROR(ForEachRun(part, [&](const ByteRun& run) {
      checksummer.Add(whole.data() + run.offset_in_whole, run.bytes);
    }));
  }
  return RootOfChecksums(checksummer.checksums());
}

}  // namespace th
