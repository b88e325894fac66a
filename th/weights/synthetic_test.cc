#include "th/weights/synthetic.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/weights/shard_layout.h"

namespace th {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Sized {
  SyntheticKind kind;
  uint64_t bytes;
};

class SyntheticSizeTest : public ::testing::TestWithParam<Sized> {};

TEST_P(SyntheticSizeTest, HasTheBytesAskedForWithinTwoPercent) {
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> tensors,
                       SyntheticModel(GetParam().kind, GetParam().bytes));
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += tensor.alias_of.empty() ? tensor.bytes : 0;
  EXPECT_LE(bytes, GetParam().bytes);
  EXPECT_GE(bytes, GetParam().bytes - GetParam().bytes / 50);
}

TEST(SyntheticModelTest, IsAShard) {
  for (const SyntheticKind kind : {SyntheticKind::kLlm, SyntheticKind::kMoe}) {
    ASSERT_OK_AND_ASSIGN(std::vector<TensorSpec> tensors, SyntheticModel(kind, 64 * kMiB));
    ASSERT_OK_AND_ASSIGN(const ShardLayout layout,
                         ShardLayout::Build({.tensors = std::move(tensors)}));
    EXPECT_LE(layout.bytes(), 64 * kMiB);
    EXPECT_GE(layout.bytes(), 63 * kMiB);
  }
}

std::vector<Sized> Sizes() {
  std::vector<Sized> sizes;
  for (const SyntheticKind kind : {SyntheticKind::kLlm, SyntheticKind::kMoe}) {
    for (const uint64_t bytes :
         {16 * kMiB, 16 * kMiB + 12345, 64 * kMiB, 256 * kMiB, kGiB, 4 * kGiB, 30 * kGiB,
          100 * kGiB, 700 * kGiB, 2048 * kGiB, 8192 * kGiB}) {
      sizes.push_back({kind, bytes});
    }
  }
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(All, SyntheticSizeTest, ::testing::ValuesIn(Sizes()));

const TensorSpec& Find(const std::vector<TensorSpec>& tensors, const std::string& name) {
  static const TensorSpec& none = *new TensorSpec;
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorSpec& spec) { return spec.name == name; });
  return found != tensors.end() ? *found : none;
}

TEST(SyntheticModelTest, LlmHasLargeEmbeddingsBesideSmallNorms) {
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> tensors,
                       SyntheticModel(SyntheticKind::kLlm, 4 * kGiB));
  EXPECT_GT(Find(tensors, "model.embed_tokens.weight").bytes, 200 * kMiB);
  EXPECT_LT(Find(tensors, "model.embed_tokens.weight").bytes, kGiB);
  const uint64_t norm = Find(tensors, "model.layers.0.input_layernorm.weight").bytes;
  EXPECT_GT(norm, 1024u);
  EXPECT_LT(norm, 16 * 1024u);
}

TEST(SyntheticModelTest, MoeHasManySmallScaledTensors) {
  for (const uint64_t bytes : {16 * kMiB, 4 * kGiB, 2048 * kGiB}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> tensors,
                         SyntheticModel(SyntheticKind::kMoe, bytes));
    EXPECT_THAT(tensors, SizeIs(::testing::AllOf(Gt(20'000), Lt(100'000)))) << bytes;
    const std::string expert = "model.layers.3.mlp.experts.7.up_proj.weight";
    EXPECT_EQ(Find(tensors, expert).dtype, DType::kF8E4M3);
    EXPECT_EQ(Find(tensors, expert + "_scale_inv").dtype, DType::kF32);
    EXPECT_EQ(Find(tensors, "lm_head.weight").alias_of, "model.embed_tokens.weight");
  }
}

TEST(SyntheticModelTest, RefusesSizesThatMakeNoModel) {
  for (const uint64_t bytes : {uint64_t{0}, kMinSyntheticBytes - 1, kMaxSyntheticBytes + 1}) {
    EXPECT_THAT(SyntheticModel(SyntheticKind::kLlm, bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 16MiB to 8TiB")));
  }
}

TEST(SyntheticModelTest, KindsAreReadFromText) {
  EXPECT_THAT(ParseSyntheticKind("llm"), IsOkAndHolds(SyntheticKind::kLlm));
  EXPECT_THAT(ParseSyntheticKind("moe"), IsOkAndHolds(SyntheticKind::kMoe));
  EXPECT_THAT(ParseSyntheticKind("gan"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  "synthetic model 'gan' is unknown; there are llm "
                                                  "and moe"));
}

std::vector<uint8_t> Content(const SyntheticContent& content, uint64_t offset, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  FillSynthetic(content, offset, absl::MakeSpan(out));
  return out;
}

const SyntheticContent kContent = {.seed = 1, .version = 1, .tensor = "w"};

TEST(SyntheticContentTest, PartsAgreeWithTheWhole) {
  const std::vector<uint8_t> whole = Content(kContent, 0, 200);
  for (size_t begin = 0; begin < 20; ++begin) {
    for (size_t bytes = 0; bytes < 40; ++bytes) {
      EXPECT_EQ(Content(kContent, begin, bytes),
                std::vector<uint8_t>(whole.begin() + begin, whole.begin() + begin + bytes))
          << begin << " " << bytes;
    }
  }
}

TEST(SyntheticContentTest, EveryFieldChangesTheBytes) {
  const std::vector<uint8_t> bytes = Content(kContent, 0, 64);
  EXPECT_EQ(Content({.seed = 1, .version = 1, .tensor = "w"}, 0, 64), bytes);
  EXPECT_NE(Content({.seed = 2, .version = 1, .tensor = "w"}, 0, 64), bytes);
  EXPECT_NE(Content({.seed = 1, .version = 2, .tensor = "w"}, 0, 64), bytes);
  EXPECT_NE(Content({.seed = 1, .version = 1, .tensor = "v"}, 0, 64), bytes);
}

TEST(SyntheticContentTest, BytesAreSpreadEvenly) {
  std::vector<int> counts(256, 0);
  for (const uint8_t byte : Content(kContent, 0, 256 * 1000)) ++counts[byte];
  EXPECT_THAT(counts, ::testing::Each(::testing::AllOf(Gt(800), Lt(1200))));
}

TEST(SyntheticContentTest, StaysTheSameFromBuildToBuild) {
  EXPECT_EQ(Content({}, 0, 8), Content({}, 0, 8));
  const std::vector<uint8_t> start = Content({}, 0, 16);
  const std::vector<uint8_t> next = Content({}, 8, 8);
  EXPECT_TRUE(std::equal(next.begin(), next.end(), start.begin() + 8));
  EXPECT_NE(std::vector<uint8_t>(start.begin(), start.begin() + 8), next);
}

TEST(SyntheticContentTest, MutationChangesAlmostEveryByteAndUndoesItself) {
  const std::vector<uint8_t> original = Content(kContent, 3, 10'000);
  std::vector<uint8_t> mutated = original;
  const SyntheticContent change{.seed = 9, .version = 2, .tensor = "w"};
  MutateSynthetic(change, 3, absl::MakeSpan(mutated));
  int changed = 0;
  for (size_t i = 0; i < original.size(); ++i) changed += mutated[i] != original[i];
  EXPECT_THAT(changed, Gt(9'900));
  MutateSynthetic(change, 3, absl::MakeSpan(mutated));
  EXPECT_EQ(mutated, original);
}

}  // namespace
}  // namespace th
