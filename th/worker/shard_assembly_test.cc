#include "th/worker/shard_assembly.h"

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

TEST(AssembleShardsTest, PutsRowPartsInPlaceAndTakesWholeTensorsAsTheyAre) {
  const ShardLayout first = Layout({Part("embedding", {8, 4}, {0, 0}, {4, 4}), F32("norm", {4})});
  const ShardLayout second = Layout({Part("embedding", {8, 4}, {4, 0}, {4, 4}), F32("scalar", {})});
  ASSERT_OK_AND_ASSIGN(auto whole, AssembleShards({first, second}));
  ASSERT_THAT(whole, SizeIs(3));
  EXPECT_EQ(whole[0].spec.name, "embedding");
  EXPECT_THAT(whole[0].spec.shape, ElementsAre(8, 4));
  EXPECT_EQ(whole[0].spec.bytes, 8u * 4 * 4);
  ASSERT_THAT(whole[0].parts, SizeIs(2));
  EXPECT_TRUE(whole[0].parts[1].in_place);
  EXPECT_EQ(whole[0].parts[1].shard, 1u);
  EXPECT_EQ(whole[0].parts[1].offset, 4u * 4 * 4);
  EXPECT_THAT(whole[2].parts, SizeIs(1));
}

TEST(AssembleShardsTest, KeepsAliasesWithoutBytesOfTheirOwn) {
  TensorSpec head = F32("head", {8, 4});
  head.alias_of = "embedding";
  ASSERT_OK_AND_ASSIGN(auto whole, AssembleShards({Layout({F32("embedding", {8, 4}), head})}));
  ASSERT_THAT(whole, SizeIs(2));
  EXPECT_EQ(whole[1].spec.alias_of, "embedding");
  EXPECT_THAT(whole[1].parts, IsEmpty());
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
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("8 of the 16 elements of tensor \"w\"")));
}

TEST(AssembleShardsTest, NamesATensorWhosePartsOverlap) {
  const ShardLayout a = Layout({Part("w", {4, 4}, {0, 0}, {3, 4})});
  const ShardLayout b = Layout({Part("w", {4, 4}, {2, 0}, {2, 4})});
  EXPECT_THAT(AssembleShards({a, b}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"w\" overlap")));
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

TEST(ForEachRunTest, GivesNothingForATensorWithoutBytes) {
  EXPECT_THAT(RunsOf(F32("w", {0, 4})), IsEmpty());
}

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
