#include "th/weights/shard_partition.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/weights/shard_layout.h"
#include "th/weights/synthetic.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

TensorSpec Bytes(std::string name, int64_t bytes) {
  return {.name = std::move(name), .dtype = DType::kU8, .shape = {bytes}};
}

TensorSpec Alias(std::string name, int64_t bytes, std::string owner) {
  TensorSpec spec = Bytes(std::move(name), bytes);
  spec.alias_of = std::move(owner);
  return spec;
}

std::vector<std::string> Names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST(SplitIntoShardsTest, BalancesBytes) {
  ASSERT_OK_AND_ASSIGN(
      const auto shards,
      SplitIntoShards({Bytes("a", 10), Bytes("b", 1), Bytes("c", 6), Bytes("d", 5)}, 2));
  ASSERT_THAT(shards, SizeIs(2));
  EXPECT_THAT(Names(shards[0]), ElementsAre("a", "b"));
  EXPECT_THAT(Names(shards[1]), ElementsAre("c", "d"));
}

TEST(SplitIntoShardsTest, KeepsAliasesWithTheirOwner) {
  ASSERT_OK_AND_ASSIGN(const auto shards, SplitIntoShards({Alias("head", 4, "z"), Bytes("a", 9),
                                                           Bytes("z", 4), Alias("tail", 4, "z")},
                                                          2));
  EXPECT_THAT(Names(shards[0]), ElementsAre("a"));
  EXPECT_THAT(Names(shards[1]), ElementsAre("head", "z", "tail"));
}

TEST(SplitIntoShardsTest, GivesEveryShardATensorEvenWithoutBytes) {
  ASSERT_OK_AND_ASSIGN(const auto shards,
                       SplitIntoShards({Bytes("a", 0), Bytes("b", 0), Bytes("c", 0)}, 3));
  for (const auto& shard : shards) EXPECT_THAT(shard, SizeIs(1));
}

TEST(SplitIntoShardsTest, OneShardIsTheWholeModel) {
  ASSERT_OK_AND_ASSIGN(const auto shards, SplitIntoShards({Bytes("b", 1), Bytes("a", 1)}, 1));
  EXPECT_THAT(Names(shards[0]), ElementsAre("b", "a"));
}

TEST(SplitIntoShardsTest, ShardsDoNotDependOnTheOrderGiven) {
  ASSERT_OK_AND_ASSIGN(std::vector<TensorSpec> tensors,
                       SyntheticModel(SyntheticKind::kLlm, kMinSyntheticBytes));
  std::vector<std::vector<Digest>> digests;
  std::mt19937 random(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto shards, SplitIntoShards(tensors, 4));
    digests.emplace_back();
    for (const auto& shard : shards) {
      ASSERT_OK_AND_ASSIGN(const ShardLayout layout, ShardLayout::Build({.tensors = shard}));
      digests.back().push_back(layout.digest());
    }
    std::shuffle(tensors.begin(), tensors.end(), random);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
  EXPECT_THAT(std::set<Digest>(digests[0].begin(), digests[0].end()), SizeIs(4));
}

TEST(SplitIntoShardsTest, LargestShardExceedsTheMeanByATensorAtMost) {
  for (const SyntheticKind kind : {SyntheticKind::kLlm, SyntheticKind::kMoe}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> tensors,
                         SyntheticModel(kind, 4 * kMinSyntheticBytes));
    uint64_t total = 0;
    uint64_t largest_tensor = 0;
    for (const TensorSpec& tensor : tensors) {
      total += tensor.alias_of.empty() ? tensor.bytes : 0;
      largest_tensor = std::max(largest_tensor, tensor.bytes);
    }
    ASSERT_OK_AND_ASSIGN(const auto shards, SplitIntoShards(tensors, 3));
    uint64_t sum = 0;
    for (const auto& shard : shards) {
      ASSERT_OK_AND_ASSIGN(const ShardLayout layout, ShardLayout::Build({.tensors = shard}));
      EXPECT_LE(layout.bytes(), total / 3 + largest_tensor);
      sum += layout.bytes();
    }
    EXPECT_EQ(sum, total);
  }
}

TEST(SplitIntoShardsTest, RefusesWhatCannotBeSplit) {
  struct Case {
    std::vector<TensorSpec> tensors;
    uint32_t shard_count;
    std::string message;
  };
  const Case cases[] = {
      {{Bytes("a", 1)}, 0, "cannot make 0 shards"},
      {{Bytes("a", 1)}, 2, "cannot make 2 shards of 1 tensors"},
      {{Bytes("a", 1), Alias("b", 1, "a")}, 2, "cannot make 2 shards of 1 tensors"},
      {{}, 1, "cannot make 1 shards of 0 tensors"},
      {{Bytes("a", 1), Bytes("a", 1)}, 1, "tensor 'a': two tensors have this name"},
      {{Bytes("a", 1), Alias("b", 1, "x")}, 1, "tensor 'b': alias of 'x', which is not there"},
      {{Bytes("a", -1)}, 1, "tensor 'a': shape [-1] has a negative dimension"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(SplitIntoShards(c.tensors, c.shard_count),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace th
