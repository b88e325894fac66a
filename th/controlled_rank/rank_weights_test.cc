#include "th/controlled_rank/rank_weights.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/checkpoint_writer.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::StatusIs;

const ModelChoice kEqual = {.bytes = 100'003, .tensors = 7};

RankWeights Loaded(ModelChoice model, uint32_t shard = 0, uint32_t shards = 1) {
  absl::StatusOr<RankWeights> weights =
      RankWeights::Allocate({.model = std::move(model), .shard = shard, .shards = shards});
  EXPECT_OK(weights);
  EXPECT_OK(weights->Load());
  return *std::move(weights);
}

TEST(RankWeightsTest, MakesSoManyTensorsOfAllTheBytes) {
  const RankWeights weights = Loaded(kEqual);
  EXPECT_THAT(weights.tensors(), SizeIs(7));
  EXPECT_EQ(weights.bytes(), 100'003u);
}

TEST(RankWeightsTest, AChangeReachesEveryTensorAndIsTakenBack) {
  RankWeights weights = Loaded(kEqual);
  const TensorChecksums before = weights.Checksum();
  weights.ChangeTo(2);
  const TensorChecksums changed = weights.Checksum();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NE(before[i].second, changed[i].second);
  weights.ChangeTo(3);
  EXPECT_NE(Combine(weights.Checksum()), Combine(changed));
  weights.ChangeTo(2);
  EXPECT_EQ(Combine(weights.Checksum()), Combine(changed));
  weights.ChangeTo(0);
  EXPECT_EQ(Combine(weights.Checksum()), Combine(before));
}

TEST(RankWeightsTest, AChangeReachesNearlyAllBytes) {
  RankWeights weights = Loaded({.bytes = 1 << 20, .tensors = 1});
  const auto* data = static_cast<const uint8_t*>(weights.tensors()[0].data);
  const std::vector<uint8_t> before(data, data + weights.bytes());
  weights.ChangeTo(1);
  size_t same = 0;
  for (size_t i = 0; i < before.size(); ++i) same += before[i] == data[i];
  EXPECT_LT(same, before.size() / 200);
}

TEST(RankWeightsTest, AScribbleLeavesNoByteAsItWas) {
  RankWeights weights = Loaded({.bytes = 1 << 16, .tensors = 2});
  std::vector<std::vector<uint8_t>> before;
  for (const Tensor& tensor : weights.tensors()) {
    const auto* data = static_cast<const uint8_t*>(tensor.data);
    before.emplace_back(data, data + tensor.bytes);
  }
  weights.Scribble();
  for (size_t i = 0; i < before.size(); ++i) {
    const auto* data = static_cast<const uint8_t*>(weights.tensors()[i].data);
    for (size_t at = 0; at < before[i].size(); ++at) ASSERT_NE(data[at], before[i][at]) << at;
  }
}

TEST(RankWeightsTest, RanksWithTheSameShardHaveTheSameBytesAndOthersOtherOnes) {
  RankWeights left = Loaded(kEqual, 0, 2), again = Loaded(kEqual, 0, 2),
              right = Loaded(kEqual, 1, 2);
  left.ChangeTo(5);
  again.ChangeTo(5);
  right.ChangeTo(5);
  EXPECT_EQ(Combine(left.Checksum()), Combine(again.Checksum()));
  EXPECT_NE(Combine(left.Checksum()), Combine(right.Checksum()));
  EXPECT_EQ(left.bytes() + right.bytes(), 100'003u);
}

TEST(RankWeightsTest, ReadsACheckpointFolder) {
  const std::string folder = ::testing::TempDir() + "/rank_weights_folder";
  const std::string content = "abcdefgh";
  const CheckpointTensor tensor = {
      .spec = {.name = "w", .dtype = DType::kU8, .shape = {8}, .bytes = 8}, .data = content.data()};
  ASSERT_OK(WriteCheckpoint(folder, {tensor}, {}));
  const RankWeights weights = Loaded({.folder = folder});
  EXPECT_EQ(memcmp(weights.tensors()[0].data, content.data(), 8), 0);
  EXPECT_EQ(weights.Checksum()[0].second, Sha256(content));
}

TEST(RankWeightsTest, RefusesModelsThatCannotBe) {
  EXPECT_THAT(RankWeights::Allocate({.model = {.folder = "/no/such/folder"}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder")));
  EXPECT_THAT(RankWeights::Allocate({.model = {.synthetic = "cnn", .bytes = 1 << 30}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(RankWeights::Allocate({.model = {.bytes = 3, .tensors = 4}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not fit")));
}

TEST(ShardChoiceTest, SurvivesJson) {
  const ShardChoice choice = {
      .model = {.synthetic = "moe", .bytes = uint64_t{5} << 30}, .shard = 1, .shards = 3};
  ASSERT_OK_AND_ASSIGN(const ShardChoice back, ShardChoiceFromJson(ToJson(choice)));
  EXPECT_EQ(ToJson(back), ToJson(choice));
}

TEST(ShardChoiceTest, RefusesMalformedJson) {
  nlohmann::json outside = ToJson(ShardChoice{.shard = 2, .shards = 2});
  nlohmann::json wrong_type = ToJson(ShardChoice{});
  wrong_type["bytes"] = "many";
  for (const nlohmann::json& json :
       {nlohmann::json::object(), nlohmann::json(3), outside, wrong_type}) {
    EXPECT_THAT(ShardChoiceFromJson(json), StatusIs(absl::StatusCode::kInvalidArgument)) << json;
  }
}

TEST(CombineTest, DependsOnNamesAndSums) {
  const TensorChecksums checksums = {{"a", Sha256("x")}, {"b", Sha256("y")}};
  const std::set<Digest> all = {
      Combine(checksums), Combine({{"a", Sha256("y")}, {"b", Sha256("y")}}),
      Combine({{"a", Sha256("x")}, {"c", Sha256("y")}}), Combine({checksums[0]})};
  EXPECT_THAT(all, SizeIs(4));
}

}  // namespace
}  // namespace th
