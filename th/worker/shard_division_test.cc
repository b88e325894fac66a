#include "th/worker/shard_division.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

TensorSpec F32(std::string name, std::vector<int64_t> shape) {
  return {.name = std::move(name), .dtype = DType::kF32, .shape = std::move(shape)};
}

TensorSpec Part(std::string name, std::vector<int64_t> global, std::vector<int64_t> begin,
                std::vector<int64_t> shape) {
  TensorSpec spec = F32(std::move(name), std::move(shape));
  spec.global_shape = std::move(global);
  spec.slice_begin = std::move(begin);
  return spec;
}

ShardLayout Layout(std::vector<TensorSpec> tensors) {
  absl::StatusOr<ShardLayout> layout = ShardLayout::Build({.tensors = std::move(tensors)});
  EXPECT_OK(layout);
  return *std::move(layout);
}

uint64_t BytesOf(const std::vector<TensorPart>& shard) {
  uint64_t bytes = 0;
  for (const TensorPart& part : shard) {
    if (part.spec.alias_of.empty()) bytes += part.spec.bytes;
  }
  return bytes;
}

TEST(DivideIntoShardsTest, CutsALargeTensorAlongItsFirstDimension) {
  ASSERT_OK_AND_ASSIGN(auto shards, DivideIntoShards({F32("w", {128, 64})}, ShardCount(2)));
  ASSERT_THAT(shards, SizeIs(2));
  ASSERT_THAT(shards[1], SizeIs(1));
  const TensorPart& second = shards[1][0];
  EXPECT_THAT(second.spec.shape, ElementsAre(64, 64));
  EXPECT_THAT(second.spec.global_shape, ElementsAre(128, 64));
  EXPECT_THAT(second.spec.slice_begin, ElementsAre(64, 0));
  EXPECT_EQ(second.spec.bytes, 64u * 64 * 4);
  EXPECT_EQ(second.offset, 64u * 64 * 4);
}

TEST(DivideIntoShardsTest, KeepsWholeWhatIsSmallOddOrOpaque) {
  TensorSpec opaque{.name = "packed", .dtype = DType::kOpaque, .shape = {64}, .bytes = 1 << 20};
  ASSERT_OK_AND_ASSIGN(
      auto shards, DivideIntoShards({F32("norm", {64}), F32("odd", {129, 64}), opaque}, ShardCount(2)));
  EXPECT_THAT(shards[0], SizeIs(1));  // the opaque one is by far the heaviest
  EXPECT_EQ(shards[0][0].spec.name, "packed");
  EXPECT_THAT(shards[1], SizeIs(2));
}

TEST(DivideIntoShardsTest, NeverCutsWithinAByte) {
  // 3 * 43691 four-bit elements would end in the middle of a byte.
  const TensorSpec odd_rows{.name = "q", .dtype = DType::kF4, .shape = {2, 43691}};
  ASSERT_OK_AND_ASSIGN(auto shards, DivideIntoShards({odd_rows, F32("b", {4})}, ShardCount(2)));
  EXPECT_EQ(shards[0][0].spec.shape, odd_rows.shape);
}

TEST(DivideIntoShardsTest, SpreadsWholeTensorsByBytes) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 101; ++i) tensors.push_back(F32("t" + std::to_string(i), {5 + i}));
  ASSERT_OK_AND_ASSIGN(auto shards, DivideIntoShards(tensors, ShardCount(4)));
  for (const auto& shard : shards) {
    EXPECT_NEAR(static_cast<double>(BytesOf(shard)), 101 * 55 * 4 / 4., 400);
  }
}

TEST(DivideIntoShardsTest, IsTheSameWhateverTheOrderOfTheTensors) {
  std::vector<TensorSpec> tensors = {F32("a", {128, 64}), F32("b", {3}), F32("c", {3}), F32("d", {7})};
  ASSERT_OK_AND_ASSIGN(auto forward, DivideIntoShards(tensors, ShardCount(2)));
  std::reverse(tensors.begin(), tensors.end());
  ASSERT_OK_AND_ASSIGN(auto backward, DivideIntoShards(tensors, ShardCount(2)));
  for (int shard = 0; shard < 2; ++shard) {
    ASSERT_EQ(forward[shard].size(), backward[shard].size());
    for (size_t i = 0; i < forward[shard].size(); ++i) {
      EXPECT_EQ(forward[shard][i].spec, backward[shard][i].spec);
    }
  }
}

TEST(DivideIntoShardsTest, PutsAnAliasWhereItsStorageWent) {
  TensorSpec head = F32("head", {128, 64});
  head.alias_of = "embedding";
  TensorSpec flat = F32("flat", {9});
  flat.alias_of = "table";
  ASSERT_OK_AND_ASSIGN(auto shards, DivideIntoShards({F32("embedding", {128, 64}), head,
                                                      F32("table", {3, 3}), flat},
                                                     ShardCount(2)));
  for (const auto& shard : shards) {
    std::vector<TensorSpec> specs;
    for (const TensorPart& part : shard) specs.push_back(part.spec);
    EXPECT_OK(ShardLayout::Build({.tensors = specs}));  // refuses an alias without its storage
  }
}

TEST(DivideIntoShardsTest, RefusesNumbersOfShardsThatMakeNoSense) {
  EXPECT_THAT(DivideIntoShards({F32("w", {4})}, ShardCount(0)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DivideIntoShards({F32("w", {4})}, ShardCount(5000)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DivideIntoShards({F32("w", {4})}, ShardCount(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be divided")));
}

TEST(DivideIntoShardsTest, RefusesAnAliasWithoutStorage) {
  TensorSpec stray = F32("stray", {4});
  stray.alias_of = "nobody";
  EXPECT_THAT(DivideIntoShards({stray}, ShardCount(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"nobody\"")));
  TensorSpec second = F32("second", {4});
  second.alias_of = "first";
  TensorSpec first = F32("first", {4});
  first.alias_of = "zero";
  EXPECT_THAT(DivideIntoShards({first, second, F32("zero", {4})}, ShardCount(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one itself")));
}

TEST(AssembleShardsTest, IsTheInverseOfDividing) {
  TensorSpec head = F32("head", {128, 64});
  head.alias_of = "embedding";
  ASSERT_OK_AND_ASSIGN(
      auto shards,
      DivideIntoShards({F32("embedding", {128, 64}), head, F32("norm", {64}), F32("scalar", {})},
                       ShardCount(2)));
  std::vector<ShardLayout> layouts;
  for (const auto& shard : shards) {
    std::vector<TensorSpec> specs;
    for (const TensorPart& part : shard) specs.push_back(part.spec);
    layouts.push_back(Layout(specs));
  }
  ASSERT_OK_AND_ASSIGN(auto whole, AssembleShards(layouts));
  ASSERT_THAT(whole, SizeIs(4));
  EXPECT_EQ(whole[0].spec.name, "embedding");
  EXPECT_THAT(whole[0].spec.shape, ElementsAre(128, 64));
  EXPECT_EQ(whole[0].spec.bytes, 128u * 64 * 4);
  ASSERT_THAT(whole[0].parts, SizeIs(2));
  EXPECT_TRUE(whole[0].parts[1].in_place);
  EXPECT_EQ(whole[0].parts[1].offset, 64u * 64 * 4);
  EXPECT_EQ(whole[1].spec.alias_of, "embedding");
  EXPECT_THAT(whole[1].parts, IsEmpty());
  EXPECT_THAT(whole[3].parts, SizeIs(1));
}

TEST(AssembleShardsTest, PlacesOnlyOneCopyOfWhatEveryShardHolds) {
  const ShardLayout left = Layout({F32("norm", {8}), Part("w", {4, 4}, {0, 0}, {2, 4})});
  const ShardLayout right = Layout({F32("norm", {8}), Part("w", {4, 4}, {2, 0}, {2, 4})});
  ASSERT_OK_AND_ASSIGN(auto whole, AssembleShards({left, right}));
  EXPECT_TRUE(whole[0].parts[0].in_place);
  EXPECT_FALSE(whole[0].parts[1].in_place);
  EXPECT_EQ(whole[1].parts[1].offset, 32u);
}

TEST(AssembleShardsTest, MarksColumnPartsForCopying) {
  const ShardLayout left = Layout({Part("w", {4, 4}, {0, 0}, {4, 2})});
  const ShardLayout right = Layout({Part("w", {4, 4}, {0, 2}, {4, 2})});
  ASSERT_OK_AND_ASSIGN(auto whole, AssembleShards({left, right}));
  EXPECT_FALSE(whole[0].parts[0].in_place);
  EXPECT_FALSE(whole[0].parts[1].in_place);
}

TEST(AssembleShardsTest, NamesATensorThatIsNotWhole) {
  EXPECT_THAT(AssembleShards({Layout({Part("w", {4, 4}, {0, 0}, {2, 4})})}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("8 of the 16 elements of tensor \"w\"")));
}

TEST(AssembleShardsTest, NamesATensorWhosePartsOverlap) {
  const ShardLayout a = Layout({Part("w", {4, 4}, {0, 0}, {3, 4})});
  const ShardLayout b = Layout({Part("w", {4, 4}, {2, 0}, {2, 4})});
  EXPECT_THAT(AssembleShards({a, b}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"w\" overlap")));
}

TEST(AssembleShardsTest, NamesATensorOnWhichShardsDisagree) {
  EXPECT_THAT(AssembleShards({Layout({F32("w", {4})}), Layout({F32("w", {5})})}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("disagree on tensor \"w\"")));
}

std::vector<ByteRun> RunsOf(TensorSpec part) {
  absl::StatusOr<TensorSpec> complete = CompleteTensorSpec(std::move(part));
  EXPECT_OK(complete);
  std::vector<ByteRun> runs;
  EXPECT_OK(ForEachRun(*complete, [&](const ByteRun& run) { runs.push_back(run); }));
  return runs;
}

TEST(ForEachRunTest, GivesOneRunForRowsAndOneARowForColumns) {
  EXPECT_THAT(RunsOf(F32("w", {4, 4})), SizeIs(1));
  const std::vector<ByteRun> rows = RunsOf(Part("w", {4, 4}, {1, 0}, {2, 4}));
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].offset_in_whole, 16u);
  EXPECT_EQ(rows[0].bytes, 32u);
  const std::vector<ByteRun> columns = RunsOf(Part("w", {4, 4}, {1, 2}, {2, 2}));
  ASSERT_THAT(columns, SizeIs(2));
  EXPECT_EQ(columns[1].offset_in_part, 8u);
  EXPECT_EQ(columns[1].offset_in_whole, (2u * 4 + 2) * 4);
  EXPECT_EQ(columns[1].bytes, 8u);
}

TEST(ForEachRunTest, WalksEveryOuterDimension) {
  const std::vector<ByteRun> runs = RunsOf(Part("w", {2, 3, 4}, {0, 1, 1}, {2, 2, 3}));
  ASSERT_THAT(runs, SizeIs(4));
  EXPECT_EQ(runs[0].offset_in_whole, (0u * 12 + 1 * 4 + 1) * 4);
  EXPECT_EQ(runs[1].offset_in_whole, (0u * 12 + 2 * 4 + 1) * 4);
  EXPECT_EQ(runs[2].offset_in_whole, (1u * 12 + 1 * 4 + 1) * 4);
  EXPECT_EQ(runs[3].offset_in_whole, (1u * 12 + 2 * 4 + 1) * 4);
}

TEST(ForEachRunTest, GivesNothingForATensorWithoutBytes) { EXPECT_THAT(RunsOf(F32("w", {0, 4})), IsEmpty()); }

TEST(ForEachRunTest, RefusesACutWithinAByte) {
  TensorSpec part{.name = "q", .dtype = DType::kF4, .shape = {4, 2}};
  part.global_shape = {4, 4};
  part.slice_begin = {0, 1};
  ASSERT_OK_AND_ASSIGN(const TensorSpec complete, CompleteTensorSpec(part));
  EXPECT_THAT(ForEachRun(complete, [](const ByteRun&) {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("\"q\"")));
}

}  // namespace
}  // namespace th
