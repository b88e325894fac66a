// Made-up models of real shape, for demos, tests and benchmarks, and their content.
//
// Everything follows from the arguments: two processes that agree on kind, bytes and seed agree on
// every byte.
#ifndef TH_WEIGHTS_SYNTHETIC_H_
#define TH_WEIGHTS_SYNTHETIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/weights/tensor.h"

namespace th {

enum class SyntheticKind : uint8_t {
  kLlm,  // dense, bf16: an embedding and an output head of some 10 % each, norms of a few KB
  kMoe,  // mixture of experts: tens of thousands of fp8 tensors with f32 scales; lm_head is tied
};

// "llm" or "moe". INVALID_ARGUMENT otherwise.
absl::StatusOr<SyntheticKind> ParseSyntheticKind(absl::string_view text);

inline constexpr uint64_t kMinSyntheticBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxSyntheticBytes = uint64_t{8} << 40;

// The tensors of a model whose storages have `bytes` bytes, at most 2 % fewer. INVALID_ARGUMENT
// when `bytes` is outside kMinSyntheticBytes to kMaxSyntheticBytes.
absl::StatusOr<std::vector<TensorSpec>> SyntheticModel(SyntheticKind kind, uint64_t bytes);

// Names an endless stream of bytes that look random. Other fields, other bytes.
struct SyntheticContent {
  uint64_t seed = 0;
  uint64_t version = 0;
  std::string tensor;  // its name, so that content does not depend on how a model is sharded
};

// Writes bytes [offset, offset + out.size()) of the content's stream.
void FillSynthetic(const SyntheticContent& content, uint64_t offset, absl::Span<uint8_t> out);

// XORs them into what is there: a real tensor changes in all its bytes but 1 of 256, and a second
// time gives the old bytes back.
void MutateSynthetic(const SyntheticContent& content, uint64_t offset, absl::Span<uint8_t> inout);

}  // namespace th

#endif  // TH_WEIGHTS_SYNTHETIC_H_
