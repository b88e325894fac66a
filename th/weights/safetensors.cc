#include "th/weights/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/text/json_events.h"
#include "th/text/utf8.h"

namespace th {
namespace {

constexpr absl::string_view kMetadataKey = "__metadata__";
constexpr size_t kOffsetsATensor = 2;
constexpr absl::string_view kObjectText = "an object";
constexpr absl::string_view kArrayText = "an array";

absl::Status Refused(absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors header ", reason));
}

absl::Status RefusedTensor(absl::string_view name, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), ": ", reason));
}

// A tensor as the header has it.
struct Entry {
  std::string name;
  DType dtype = DType::kOpaque;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The parts of an entry that are known while it is being read.
struct PartialEntry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<uint64_t>> data_offsets;
};

// Messages of this class follow the words "safetensors header".
class HeaderEvents : public JsonEvents {
 public:
  absl::Status OnStartObject() override {
    if (depth_ >= kEntry) return Unexpected(kObjectText);
    ++depth_;
    return absl::OkStatus();
  }

  absl::Status OnKey(std::string key) override {
    key_ = std::move(key);
    if (depth_ == kTop) return StartEntry();
    if (in_metadata_) return absl::OkStatus();
    if (key_ == "dtype" || key_ == "shape" || key_ == "data_offsets") return absl::OkStatus();
    return InEntry(absl::StrCat("the field ", Quoted(key_), " is unknown"));
  }

  absl::Status OnEndObject() override {
    --depth_;
    if (depth_ != kTop || in_metadata_) return absl::OkStatus();
    if (!entry_.dtype.has_value()) return InEntry("it has no dtype");
    if (!entry_.shape.has_value()) return InEntry("it has no shape");
    if (!entry_.data_offsets.has_value()) return InEntry("it has no data_offsets");
    if (entry_.data_offsets->size() != kOffsetsATensor) {
      return InEntry(
          absl::StrCat("data_offsets have ", entry_.data_offsets->size(), " numbers instead of 2"));
    }
    entries_.push_back({.name = std::move(entry_.name),
                        .dtype = *entry_.dtype,
                        .shape = *std::move(entry_.shape),
                        .begin = entry_.data_offsets->front(),
                        .end = entry_.data_offsets->back()});
    return absl::OkStatus();
  }

  absl::Status OnStartArray() override {
    if (depth_ != kEntry || in_metadata_ || key_ == "dtype") return Unexpected(kArrayText);
    ++depth_;
    const bool twice = key_ == "shape" ? entry_.shape.has_value() : entry_.data_offsets.has_value();
    if (twice) return Twice();
    if (key_ == "shape") entry_.shape.emplace();
    if (key_ == "data_offsets") entry_.data_offsets.emplace();
    return absl::OkStatus();
  }

  absl::Status OnEndArray() override {
    --depth_;
    return absl::OkStatus();
  }

  absl::Status OnString(std::string value) override {
    if (depth_ != kEntry) return Unexpected("a string");
    if (in_metadata_) {
      if (!metadata_.emplace(key_, std::move(value)).second) return Twice();
      return absl::OkStatus();
    }
    if (key_ != "dtype") return Unexpected("a string");
    if (entry_.dtype.has_value()) return Twice();
    const absl::StatusOr<DType> dtype = ParseDType(value);
    if (!dtype.ok() || *dtype == DType::kOpaque) {
      return InEntry(absl::StrCat("unknown dtype ", Quoted(value)));
    }
    entry_.dtype = *dtype;
    return absl::OkStatus();
  }

  absl::Status OnUnsigned(uint64_t value) override {
    if (depth_ != kArray) return Unexpected("a number");
    if (key_ == "data_offsets") {
      if (entry_.data_offsets->size() == kOffsetsATensor) return InEntry("too many data_offsets");
      entry_.data_offsets->push_back(value);
      return absl::OkStatus();
    }
    if (entry_.shape->size() == size_t{kMaxTensorDimensions}) return InEntry("too many dimensions");
    if (value > uint64_t{INT64_MAX}) return InEntry("a dimension overflows");
    entry_.shape->push_back(static_cast<int64_t>(value));
    return absl::OkStatus();
  }

  absl::Status OnOther(absl::string_view text) override { return Unexpected(text); }

  std::vector<Entry>& entries() { return entries_; }
  SafetensorsMetadata& metadata() { return metadata_; }

 private:
  enum Depth { kOutside = 0, kTop = 1, kEntry = 2, kArray = 3 };

  absl::Status StartEntry() {
    entry_ = PartialEntry{.name = key_};
    in_metadata_ = key_ == kMetadataKey;
    if (in_metadata_ && std::exchange(seen_metadata_, true)) {
      return absl::InvalidArgumentError("has __metadata__ twice");
    }
    return absl::OkStatus();
  }

  absl::Status InEntry(absl::string_view reason) const {
    return absl::InvalidArgumentError(
        absl::StrCat("is malformed at ", Quoted(entry_.name), ": ", reason));
  }

  absl::Status Unexpected(absl::string_view what) const {
    if (depth_ == kArray && (what == kArrayText || what == kObjectText)) {
      return InEntry("it is nested too deeply");
    }
    // A number may have any number of digits.
    what = what.substr(0, kMaxQuotedBytes);
    if (depth_ == kTop) return InEntry(absl::StrCat(what, " instead of its description"));
    return InEntry(absl::StrCat(what, " does not belong in ", Quoted(key_)));
  }

  absl::Status Twice() const { return InEntry(absl::StrCat(Quoted(key_), " is there twice")); }

  int depth_ = kOutside;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  std::string key_;
  PartialEntry entry_;
  std::vector<Entry> entries_;
  SafetensorsMetadata metadata_;
};

bool FillsWholeBytes(const TensorSpec& spec) {
  uint64_t bits = static_cast<uint64_t>(DTypeBits(spec.dtype));
  // Modulo 2^64, which keeps the last three bits.
  for (const int64_t extent : spec.shape) bits *= static_cast<uint64_t>(extent);
  return bits % 8 == 0;
}

absl::StatusOr<TensorSpec> SpecOf(Entry& entry) {
  TensorSpec spec{.name = entry.name, .dtype = entry.dtype, .shape = std::move(entry.shape)};
  TH_ASSIGN_OR_RETURN(spec, CompleteTensorSpec(std::move(spec)));
  if (!FillsWholeBytes(spec)) return RefusedTensor(entry.name, "its last byte is not filled");
  const bool ordered = entry.begin <= entry.end;
  if (!ordered || entry.end - entry.begin != spec.bytes) {
    return RefusedTensor(entry.name,
                         absl::StrCat("data_offsets [", entry.begin, ",", entry.end,
                                      "] do not span the ", spec.bytes, " bytes of ",
                                      DTypeName(spec.dtype), " ", ShapeToString(spec.shape)));
  }
  return spec;
}

// The entries sorted by offset must tile [0, data_bytes).
absl::Status CheckTiling(const std::vector<Entry>& sorted, uint64_t data_bytes) {
  uint64_t position = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : sorted) {
    const std::string offsets = absl::StrCat("data_offsets [", entry.begin, ",", entry.end, "] ");
    if (entry.end > data_bytes) {
      return RefusedTensor(entry.name, absl::StrCat(offsets, "reach beyond the file, which has ",
                                                    data_bytes, " bytes of data"));
    }
    if (entry.begin < position) {
      return RefusedTensor(
          entry.name, absl::StrCat(offsets, "overlap those of tensor ", Quoted(previous->name)));
    }
    if (entry.begin > position) {
      return RefusedTensor(entry.name, absl::StrCat(offsets, "leave a gap of ",
                                                    entry.begin - position, " bytes before it"));
    }
    position = entry.end;
    previous = &entry;
  }
  if (position == data_bytes) return absl::OkStatus();
  return Refused(
      absl::StrCat("leaves the last ", data_bytes - position, " bytes of the file to no tensor"));
}

absl::Status CheckDistinctNames(const std::vector<Entry>& entries) {
  std::vector<absl::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  if (duplicate == names.end()) return absl::OkStatus();
  return RefusedTensor(*duplicate, "two tensors have this name");
}

}  // namespace

absl::StatusOr<uint64_t> ParseSafetensorsPrefix(absl::string_view prefix, uint64_t file_bytes) {
  if (prefix.size() < kSafetensorsPrefixBytes || file_bytes < kSafetensorsPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat("not a safetensors file: it has ",
                                                   std::min(uint64_t{prefix.size()}, file_bytes),
                                                   " bytes, too few for the header's length"));
  }
  uint64_t header_bytes = 0;
  for (size_t i = kSafetensorsPrefixBytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(prefix[i]);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return Refused(absl::StrCat("says that it has ", header_bytes, " bytes; at most ",
                                kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  if (header_bytes > file_bytes - kSafetensorsPrefixBytes) {
    return Refused(absl::StrCat("is cut off: it says that it has ", header_bytes,
                                " bytes, the file has ", file_bytes));
  }
  return header_bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t file_bytes) {
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return Refused(absl::StrCat("has ", json.size(), " bytes; at most ", kMaxSafetensorsHeaderBytes,
                                " are allowed"));
  }
  SafetensorsHeader header{.data_begin = kSafetensorsPrefixBytes + json.size()};
  if (header.data_begin > file_bytes) return Refused("is longer than the file");
  HeaderEvents events;
  TH_RETURN_IF_ERROR(ReadJsonObject("safetensors header", json, events));
  std::vector<Entry>& entries = events.entries();
  TH_RETURN_IF_ERROR(CheckDistinctNames(entries));
  // Tensors without bytes come before the one that begins where they are.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.begin, a.end, absl::string_view(a.name)) <
           std::tuple(b.begin, b.end, absl::string_view(b.name));
  });
  header.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    TH_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(entry));
    header.tensors.push_back({std::move(spec), header.data_begin + entry.begin});
  }
  TH_RETURN_IF_ERROR(CheckTiling(entries, file_bytes - header.data_begin));
  header.metadata = std::move(events.metadata());
  return header;
}

}  // namespace th
