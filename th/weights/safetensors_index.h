// The index of a model in several safetensors files (model.safetensors.index.json): which tensor is
// in which file. Text in, values out. No file is opened here.
//
//   {"metadata": {"total_size": 17}, "weight_map": {"a.weight":
//   "model-00001-of-00002.safetensors"}}
#ifndef TH_WEIGHTS_SAFETENSORS_INDEX_H_
#define TH_WEIGHTS_SAFETENSORS_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/weights/safetensors.h"

namespace th {

inline constexpr uint64_t kMaxSafetensorsIndexBytes = 100'000'000;
inline constexpr size_t kMaxFileNameBytes = 255;
inline constexpr char kSafetensorsIndexFile[] = "model.safetensors.index.json";

struct SafetensorsIndex {
  std::map<std::string, std::string> weight_map;  // tensor to file

  // Each once, sorted.
  std::vector<std::string> Files() const;
};

// INVALID_ARGUMENT: not UTF-8, not JSON, no weight_map or an empty one, a tensor twice, or a file
// whose name is not a plain one in the same folder (a separator, "..", a leading dot, unprintable
// or long). What else the index says is skipped.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json);

// OK when `file` holds exactly the tensors that the index says. INVALID_ARGUMENT naming the first
// tensor that is missing or unknown.
absl::Status CheckAgainstIndex(const SafetensorsIndex& index, const std::string& file,
                               const SafetensorsHeader& header);

// The text of an index over files with `total_bytes` of tensors.
std::string EncodeSafetensorsIndex(const SafetensorsIndex& index, uint64_t total_bytes);

}  // namespace th

#endif  // TH_WEIGHTS_SAFETENSORS_INDEX_H_
