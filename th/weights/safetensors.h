// Headers of safetensors files: bytes in, values out. No file is opened here.
//
//   8 bytes           length of the header, little-endian
//   the header        JSON: {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}
//   the data          the tensors' bytes, end to end, without gaps
//
//   TH_ASSIGN_OR_RETURN(uint64_t header_bytes, ParseSafetensorsPrefix(first_8_bytes, file_bytes));
//   TH_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(json, file_bytes));
//   for (const SafetensorsTensor& tensor : header.tensors) Read(tensor.file_offset,
//   tensor.spec.bytes);
//
// Messages name what is wrong and the tensor, not the file: the caller knows its path.
#ifndef TH_WEIGHTS_SAFETENSORS_H_
#define TH_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/weights/tensor.h"

namespace th {

inline constexpr size_t kSafetensorsPrefixBytes = 8;
// As the format itself has it.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The texts of a file under "__metadata__".
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsTensor {
  TensorSpec spec;           // complete, not sliced, nobody's alias
  uint64_t file_offset = 0;  // of its first byte, from the beginning of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;
  uint64_t data_begin = 0;  // where the data begins in the file: 8 + the header's length
};

// The header's length from a file's first kSafetensorsPrefixBytes bytes. INVALID_ARGUMENT: fewer
// bytes, or a length that is above kMaxSafetensorsHeaderBytes or does not fit into the file.
absl::StatusOr<uint64_t> ParseSafetensorsPrefix(absl::string_view prefix, uint64_t file_bytes);

// `json` is the header without the prefix. INVALID_ARGUMENT naming the tensor: not UTF-8, not JSON,
// not of the format's form, a name or a field twice, an unknown dtype, a shape that overflows or
// disagrees with the offsets, tensors that overlap, leave a gap or reach beyond the file's end;
// data that is no tensor's.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t file_bytes);

// A file to be: `bytes` is its beginning (prefix and header), `header` what a reader would find.
struct SafetensorsPlan {
  std::string bytes;
  SafetensorsHeader header;
  uint64_t file_bytes = 0;
};

// The one header for these tensors and metadata, whatever their order: tensors of wide types come
// first, then by name, so that all are aligned; the data begins at a multiple of 8. A tensor with
// an `alias_of` gets no bytes but an entry {its name: its owner} in the metadata, as
// safetensors.torch.save_model writes it. Slices are written as what they are: tensors of `shape`.
// INVALID_ARGUMENT naming the tensor: what CompleteTensorSpec refuses, opaque dtypes, a name twice,
// an alias of an unknown tensor, sub-byte elements that fill no whole byte; metadata that is not
// UTF-8 or has the name of an alias; a header above kMaxSafetensorsHeaderBytes.
absl::StatusOr<SafetensorsPlan> PlanSafetensorsFile(absl::Span<const TensorSpec> tensors,
                                                    SafetensorsMetadata metadata);

}  // namespace th

#endif  // TH_WEIGHTS_SAFETENSORS_H_
