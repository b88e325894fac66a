#include "th/weights/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/text/byte_size.h"
#include "th/text/utf8.h"

namespace th {
namespace {

// Heads share keys and values by four, as most models' do.
constexpr int64_t kKeyValueShare = 4;
constexpr int64_t kMaxHidden = 16'384;
constexpr int64_t kMaxVocabulary = 262'144;
// Layers of a model that is not yet too wide.
constexpr int64_t kLayers = 32;
// The share that embeddings take until the vocabulary is as large as vocabularies are.
constexpr double kEmbeddingShare = 0.2;

constexpr int64_t kFeedForwardFactor = 3;  // of the hidden size, llm
constexpr int64_t kExperts = 128;
constexpr int64_t kExpertShare = 4;   // an expert's width is the hidden size over this
constexpr int64_t kScaleBlock = 128;  // fp8 weights have a scale a square of so many elements

class ModelBuilder {
 public:
  void Add(std::string name, DType dtype, std::vector<int64_t> shape) {
    TensorSpec spec{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
    // The sizes here are far from what BytesOfShape refuses.
    spec.bytes = BytesOfShape(dtype, spec.shape).value_or(0);
    bytes_ += spec.bytes;
    tensors_.push_back(std::move(spec));
  }

  void AddAlias(std::string name, const std::string& owner) {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const TensorSpec& spec) { return spec.name == owner; });
    TensorSpec alias = *found;
    alias.name = std::move(name);
    alias.alias_of = owner;
    tensors_.push_back(std::move(alias));
  }

  // An fp8 matrix and its scales.
  void AddScaled(const std::string& name, int64_t rows, int64_t columns) {
    const auto blocks = [](int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
    Add(name, DType::kF8E4M3, {rows, columns});
    Add(absl::StrCat(name, "_scale_inv"), DType::kF32, {blocks(rows), blocks(columns)});
  }

  uint64_t bytes() const { return bytes_; }
  std::vector<TensorSpec> Take() && { return std::move(tensors_); }

 private:
  std::vector<TensorSpec> tensors_;
  uint64_t bytes_ = 0;
};

int64_t RoundDown(double value, int64_t step) {
  return std::max(step, static_cast<int64_t>(value) / step * step);
}

void AddLlmLayer(ModelBuilder& model, int64_t layer, int64_t hidden) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const auto add = [&](absl::string_view name, std::vector<int64_t> shape) {
    model.Add(absl::StrCat(prefix, name, ".weight"), DType::kBF16, std::move(shape));
  };
  const int64_t key_value = hidden / kKeyValueShare;
  const int64_t inner = hidden * kFeedForwardFactor;
  add("input_layernorm", {hidden});
  add("self_attn.q_proj", {hidden, hidden});
  add("self_attn.k_proj", {key_value, hidden});
  add("self_attn.v_proj", {key_value, hidden});
  add("self_attn.o_proj", {hidden, hidden});
  add("post_attention_layernorm", {hidden});
  add("mlp.gate_proj", {inner, hidden});
  add("mlp.up_proj", {inner, hidden});
  add("mlp.down_proj", {hidden, inner});
}

void AddMoeLayer(ModelBuilder& model, int64_t layer, int64_t hidden) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t key_value = hidden / kKeyValueShare;
  const int64_t inner = hidden / kExpertShare;
  model.Add(prefix + "input_layernorm.weight", DType::kBF16, {hidden});
  model.AddScaled(prefix + "self_attn.q_proj.weight", hidden, hidden);
  model.AddScaled(prefix + "self_attn.k_proj.weight", key_value, hidden);
  model.AddScaled(prefix + "self_attn.v_proj.weight", key_value, hidden);
  model.AddScaled(prefix + "self_attn.o_proj.weight", hidden, hidden);
  model.Add(prefix + "post_attention_layernorm.weight", DType::kBF16, {hidden});
  model.Add(prefix + "mlp.gate.weight", DType::kBF16, {kExperts, hidden});
  model.Add(prefix + "mlp.gate.e_score_correction_bias", DType::kF32, {kExperts});
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    const std::string of_expert = absl::StrCat(prefix, "mlp.experts.", expert, ".");
    model.AddScaled(of_expert + "gate_proj.weight", inner, hidden);
    model.AddScaled(of_expert + "up_proj.weight", inner, hidden);
    model.AddScaled(of_expert + "down_proj.weight", hidden, inner);
  }
}

// The parts in which kinds of models differ.
struct Family {
  void (*add_layer)(ModelBuilder& model, int64_t layer, int64_t hidden);
  double layer_bytes_a_square;  // bytes of a layer over the square of the hidden size, about
  int64_t hidden_step;
  bool tied_head;
};

constexpr Family kLlmFamily = {AddLlmLayer, 2 * (2.5 + 3.0 * kFeedForwardFactor), 64, false};
constexpr Family kMoeFamily = {AddMoeLayer, 2.5 + 3.0 * kExperts / kExpertShare, 32, true};

uint64_t LayerBytes(const Family& family, int64_t hidden) {
  ModelBuilder layer;
  family.add_layer(layer, 0, hidden);
  return layer.bytes();
}

// Layers until only the embeddings' share is left, and a vocabulary that takes the rest to the
// byte.
std::vector<TensorSpec> BuildModel(const Family& family, uint64_t bytes) {
  const double wanted_bytes = static_cast<double>(bytes);
  const double square =
      (1 - kEmbeddingShare) * wanted_bytes / (kLayers * family.layer_bytes_a_square);
  const int64_t hidden = std::min(kMaxHidden, RoundDown(std::sqrt(square), family.hidden_step));
  const int64_t row_bytes = hidden * 2 * (family.tied_head ? 1 : 2);
  const double embedding_bytes =
      std::min(kEmbeddingShare * wanted_bytes, static_cast<double>(kMaxVocabulary * row_bytes));
  const int64_t layers = static_cast<int64_t>((wanted_bytes - embedding_bytes) /
                                              static_cast<double>(LayerBytes(family, hidden)));
  ModelBuilder model;
  for (int64_t layer = 0; layer < layers; ++layer) family.add_layer(model, layer, hidden);
  model.Add("model.norm.weight", DType::kBF16, {hidden});
  const int64_t vocabulary = static_cast<int64_t>(bytes - model.bytes()) / row_bytes;
  model.Add("model.embed_tokens.weight", DType::kBF16, {vocabulary, hidden});
  if (family.tied_head) {
    model.AddAlias("lm_head.weight", "model.embed_tokens.weight");
  } else {
    model.Add("lm_head.weight", DType::kBF16, {vocabulary, hidden});
  }
  return std::move(model).Take();
}

// SplitMix64's finaliser: a bijection in which every input bit reaches every output bit.
inline uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

uint64_t StreamKey(const SyntheticContent& content) {
  uint64_t key = Mix(content.seed + kGoldenGamma);
  key = Mix(key ^ (content.version * kGoldenGamma));
  for (const char c : content.tensor) key = Mix(key + static_cast<uint8_t>(c) + kGoldenGamma);
  return key;
}

uint64_t WordAt(uint64_t key, uint64_t index) { return Mix(key + index * kGoldenGamma); }

uint8_t ByteAt(uint64_t key, uint64_t offset) {
  return static_cast<uint8_t>(WordAt(key, offset / 8) >> (8 * (offset % 8)));
}

// `combine(old, stream)` for every byte, by words where that can be.
template <typename Combine>
void ForStream(uint64_t key, uint64_t offset, absl::Span<uint8_t> out, Combine combine) {
  size_t i = 0;
  for (; i < out.size() && (offset + i) % 8 != 0; ++i) {
    out[i] = static_cast<uint8_t>(combine(out[i], ByteAt(key, offset + i)));
  }
  const uint64_t first_word = (offset + i) / 8;
  const size_t words = (out.size() - i) / 8;
  uint8_t* at = out.data() + i;
  for (size_t word = 0; word < words; ++word, at += 8) {
    uint64_t value = 0;
    std::memcpy(&value, at, 8);
    value = combine(value, WordAt(key, first_word + word));
    std::memcpy(at, &value, 8);
  }
  for (i += words * 8; i < out.size(); ++i) {
    out[i] = static_cast<uint8_t>(combine(out[i], ByteAt(key, offset + i)));
  }
}

}  // namespace

absl::StatusOr<SyntheticKind> ParseSyntheticKind(absl::string_view text) {
  if (text == "llm") return SyntheticKind::kLlm;
  if (text == "moe") return SyntheticKind::kMoe;
  return absl::InvalidArgumentError(
      absl::StrCat("synthetic model ", Quoted(text), " is unknown; there are llm and moe"));
}

absl::StatusOr<std::vector<TensorSpec>> SyntheticModel(SyntheticKind kind, uint64_t bytes) {
  if (bytes < kMinSyntheticBytes || bytes > kMaxSyntheticBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a synthetic model has ", ByteSizeText(kMinSyntheticBytes), " to ",
        ByteSizeText(kMaxSyntheticBytes), ", and ", ExactByteSizeText(bytes), " were asked for"));
  }
  return BuildModel(kind == SyntheticKind::kLlm ? kLlmFamily : kMoeFamily, bytes);
}

void FillSynthetic(const SyntheticContent& content, uint64_t offset, absl::Span<uint8_t> out) {
  ForStream(StreamKey(content), offset, out, [](uint64_t, uint64_t stream) { return stream; });
}

void MutateSynthetic(const SyntheticContent& content, uint64_t offset, absl::Span<uint8_t> inout) {
  ForStream(StreamKey(content), offset, inout,
            [](uint64_t old, uint64_t stream) { return old ^ stream; });
}

}  // namespace th
