#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/text/json_events.h"
#include "th/text/utf8.h"
#include "th/weights/safetensors.h"

namespace th {
namespace {

constexpr size_t kDataAlignment = 8;

absl::Status RefusedTensor(absl::string_view name, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), ": ", reason));
}

absl::Status CheckStorable(const TensorSpec& spec) {
  if (spec.dtype == DType::kOpaque) {
    return RefusedTensor(spec.name, "safetensors has no opaque dtype");
  }
  const uint64_t bits = static_cast<uint64_t>(DTypeBits(spec.dtype));
  uint64_t elements = 1;
  for (const int64_t extent : spec.shape) elements *= static_cast<uint64_t>(extent);
  if (bits * elements % 8 == 0) return absl::OkStatus();
  return RefusedTensor(spec.name, "its elements do not fill its last byte");
}

absl::Status CheckMetadata(const SafetensorsMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (IsUtf8(key) && IsUtf8(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat("metadata ", Quoted(key), " is not UTF-8"));
  }
  return absl::OkStatus();
}

// Every name once, every alias of a tensor that has bytes.
absl::Status CheckNames(absl::Span<const TensorSpec> tensors) {
  absl::flat_hash_set<absl::string_view> names;
  absl::flat_hash_set<absl::string_view> owners;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") return RefusedTensor(tensor.name, "the name is reserved");
    if (!names.insert(tensor.name).second) {
      return RefusedTensor(tensor.name, "two tensors have this name");
    }
    if (tensor.alias_of.empty()) owners.insert(tensor.name);
  }
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty() || owners.contains(tensor.alias_of)) continue;
    return RefusedTensor(tensor.name, absl::StrCat("alias of ", Quoted(tensor.alias_of),
                                                   ", which is not a tensor with bytes"));
  }
  return absl::OkStatus();
}

void AppendTensor(std::string& json, const TensorSpec& spec, uint64_t begin) {
  absl::StrAppend(&json, json.size() > 1 ? "," : "", JsonString(spec.name), ":{\"dtype\":\"",
                  DTypeName(spec.dtype), "\",\"shape\":", ShapeToString(spec.shape),
                  ",\"data_offsets\":[", begin, ",", begin + spec.bytes, "]}");
}

void AppendMetadata(std::string& json, const SafetensorsMetadata& metadata) {
  if (metadata.empty()) return;
  absl::string_view separator = "";
  absl::StrAppend(&json, "\"__metadata__\":{");
  for (const auto& [key, value] : metadata) {
    absl::StrAppend(&json, separator, JsonString(key), ":", JsonString(value));
    separator = ",";
  }
  absl::StrAppend(&json, "}");
}

std::string Prefix(uint64_t header_bytes) {
  std::string prefix;
  for (size_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    prefix.push_back(static_cast<char>(header_bytes >> (8 * i)));
  }
  return prefix;
}

// The tensors that have bytes, as a reader would find them, in their order.
absl::StatusOr<std::vector<TensorSpec>> StoredTensors(absl::Span<const TensorSpec> tensors) {
  std::vector<TensorSpec> stored;
  for (const TensorSpec& tensor : tensors) {
    TH_ASSIGN_OR_RETURN(TensorSpec spec, CompleteTensorSpec(tensor));
    TH_RETURN_IF_ERROR(CheckStorable(spec));
    if (!spec.alias_of.empty()) continue;
    spec.global_shape = spec.shape;
    spec.slice_begin.assign(spec.shape.size(), 0);
    stored.push_back(std::move(spec));
  }
  std::sort(stored.begin(), stored.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::tuple(-DTypeBits(a.dtype), absl::string_view(a.name)) <
           std::tuple(-DTypeBits(b.dtype), absl::string_view(b.name));
  });
  return stored;
}

}  // namespace

absl::StatusOr<SafetensorsPlan> PlanSafetensorsFile(absl::Span<const TensorSpec> tensors,
                                                    SafetensorsMetadata metadata) {
  TH_RETURN_IF_ERROR(CheckMetadata(metadata));
  TH_RETURN_IF_ERROR(CheckNames(tensors));
  TH_ASSIGN_OR_RETURN(std::vector<TensorSpec> stored, StoredTensors(tensors));
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty()) continue;
    if (!metadata.emplace(tensor.name, tensor.alias_of).second) {
      return RefusedTensor(tensor.name, "is an alias and a key of the metadata too");
    }
  }
  std::string json = "{";
  AppendMetadata(json, metadata);
  SafetensorsPlan plan;
  uint64_t data_bytes = 0;
  for (TensorSpec& spec : stored) {
    AppendTensor(json, spec, data_bytes);
    const uint64_t begin = data_bytes;
    if (__builtin_add_overflow(data_bytes, spec.bytes, &data_bytes)) {
      return RefusedTensor(spec.name, "the file's bytes overflow with it");
    }
    plan.header.tensors.push_back({std::move(spec), begin});
  }
  json.push_back('}');
  json.append((kDataAlignment - json.size() % kDataAlignment) % kDataAlignment, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the safetensors header would have ",
                                                   json.size(), " bytes; at most ",
                                                   kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  plan.header.metadata = std::move(metadata);
  plan.header.data_begin = kSafetensorsPrefixBytes + json.size();
  for (SafetensorsTensor& tensor : plan.header.tensors) {
    tensor.file_offset += plan.header.data_begin;
  }
  plan.file_bytes = plan.header.data_begin + data_bytes;
  plan.bytes = Prefix(json.size()) + json;
  return plan;
}

}  // namespace th
