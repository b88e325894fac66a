#include "th/weights/safetensors_index.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"
#include "th/text/json_events.h"
#include "th/text/utf8.h"

namespace th {
namespace {

constexpr absl::string_view kWhat = "safetensors index";
constexpr absl::string_view kWeightMapKey = "weight_map";

bool IsPlainFileName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxFileNameBytes) return false;
  if (absl::StartsWith(name, ".") || absl::StrContains(name, "..")) return false;
  for (absl::string_view rest = name; !rest.empty();) {
    const std::optional<char32_t> code_point = TakeCodePoint(rest);
    if (!code_point.has_value() || IsUnprintable(*code_point)) return false;
    if (*code_point == '/' || *code_point == '\\') return false;
  }
  return true;
}

// Messages of this class follow the words "safetensors index".
class IndexEvents : public JsonEvents {
 public:
  absl::Status OnStartObject() override { return Enter("an object"); }
  absl::Status OnEndObject() override { return Leave(); }
  absl::Status OnStartArray() override {
    return AtWeightMap() ? Unexpected("an array") : Enter("an array");
  }
  absl::Status OnEndArray() override { return Leave(); }

  absl::Status OnKey(std::string key) override {
    if (depth_ == 1) {
      in_weight_map_ = key == kWeightMapKey;
      if (in_weight_map_ && std::exchange(seen_weight_map_, true)) {
        return absl::InvalidArgumentError("has weight_map twice");
      }
    }
    key_ = std::move(key);
    return absl::OkStatus();
  }

  absl::Status OnString(std::string value) override {
    if (!in_weight_map_) return absl::OkStatus();
    if (AtWeightMap()) return Unexpected("a string");
    if (!IsPlainFileName(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("places tensor ", Quoted(key_), " in ", Quoted(value),
                       ", which is not the plain name of a file in the same folder"));
    }
    if (!index_.weight_map.emplace(key_, std::move(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat("has tensor ", Quoted(key_), " twice"));
    }
    return absl::OkStatus();
  }

  absl::Status OnUnsigned(uint64_t) override {
    return in_weight_map_ ? Unexpected("a number") : absl::OkStatus();
  }
  absl::Status OnOther(absl::string_view text) override {
    return in_weight_map_ ? Unexpected(text) : absl::OkStatus();
  }

  SafetensorsIndex& index() { return index_; }

 private:
  // Only "metadata" nests, and that by one.
  static constexpr int kMaxDepth = 8;

  // Between the key "weight_map" and its object.
  bool AtWeightMap() const { return in_weight_map_ && depth_ == 1; }

  absl::Status Enter(absl::string_view what) {
    if (in_weight_map_ && !AtWeightMap()) return Unexpected(what);
    if (depth_ == kMaxDepth) return absl::InvalidArgumentError("is nested too deeply");
    ++depth_;
    return absl::OkStatus();
  }

  absl::Status Leave() {
    --depth_;
    if (depth_ == 1) in_weight_map_ = false;
    return absl::OkStatus();
  }

  absl::Status Unexpected(absl::string_view what) const {
    // A number may have any number of digits.
    return absl::InvalidArgumentError(absl::StrCat(
        "is malformed: ", what.substr(0, kMaxQuotedBytes), " does not belong at ", Quoted(key_)));
  }

  int depth_ = 0;
  bool in_weight_map_ = false;
  bool seen_weight_map_ = false;
  std::string key_;
  SafetensorsIndex index_;
};

}  // namespace

std::vector<std::string> SafetensorsIndex::Files() const {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  return {files.begin(), files.end()};
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json) {
  if (json.size() > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kWhat, " has ", json.size(), " bytes; at most ",
                                                   kMaxSafetensorsIndexBytes, " are allowed"));
  }
  IndexEvents events;
  TH_RETURN_IF_ERROR(ReadJsonObject(kWhat, json, events));
  if (events.index().weight_map.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(kWhat, " has no weight_map, or an empty one"));
  }
  return std::move(events.index());
}

absl::Status CheckAgainstIndex(const SafetensorsIndex& index, const std::string& file,
                               const SafetensorsHeader& header) {
  std::set<absl::string_view> held;
  for (const SafetensorsTensor& tensor : header.tensors) {
    held.insert(tensor.spec.name);
    const auto entry = index.weight_map.find(tensor.spec.name);
    if (entry != index.weight_map.end() && entry->second == file) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.spec.name), ": in ",
                                                   Quoted(file), ", but not by the index"));
  }
  for (const auto& [tensor, place] : index.weight_map) {
    if (place != file || held.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor), ": missing in ",
                                                   Quoted(file), ", where the index places it"));
  }
  return absl::OkStatus();
}

std::string EncodeSafetensorsIndex(const SafetensorsIndex& index, uint64_t total_bytes) {
  const std::string entries =
      absl::StrJoin(index.weight_map, ",\n    ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, JsonString(entry.first), ": ", JsonString(entry.second));
      });
  return absl::StrCat("{\n  \"metadata\": {\"total_size\": ", total_bytes,
                      "},\n  \"weight_map\": {\n    ", entries, "\n  }\n}\n");
}

}  // namespace th
