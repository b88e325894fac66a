#include "th/worker/model_memory.h"

#include <cstdint>
#include <cstring>
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
using testing::StatusIs;

TensorSpec Part(std::string name, std::vector<int64_t> global, std::vector<int64_t> begin,
                std::vector<int64_t> shape) {
  TensorSpec spec{.name = std::move(name), .dtype = DType::kU8, .shape = std::move(shape)};
  spec.global_shape = std::move(global);
  spec.slice_begin = std::move(begin);
  return spec;
}

ShardLayout Layout(std::vector<TensorSpec> tensors) {
  absl::StatusOr<ShardLayout> layout = ShardLayout::Build({.tensors = std::move(tensors)});
  EXPECT_OK(layout);
  return *std::move(layout);
}

void Receive(const ModelMemory& model, uint32_t shard, size_t tensor, std::vector<uint8_t> bytes) {
  const Tensor& to = model.TensorsOfShard(shard)[tensor];
  ASSERT_EQ(to.bytes, bytes.size());
  memcpy(to.data, bytes.data(), bytes.size());
}

std::vector<uint8_t> Content(const Tensor& tensor) {
  const auto* data = static_cast<const uint8_t*>(tensor.data);
  return {data, data + tensor.bytes};
}

TEST(ModelMemoryTest, ReceivesRowPartsStraightIntoTheWhole) {
  ASSERT_OK_AND_ASSIGN(ModelMemory model,
                       ModelMemory::Allocate({Layout({Part("w", {4, 2}, {0, 0}, {2, 2})}),
                                              Layout({Part("w", {4, 2}, {2, 0}, {2, 2})})}));
  EXPECT_EQ(model.TensorsOfShard(1)[0].data, static_cast<uint8_t*>(model.tensors()[0].data) + 4);
  Receive(model, 0, 0, {1, 2, 3, 4});
  Receive(model, 1, 0, {5, 6, 7, 8});
  ASSERT_OK(model.Gather());
  EXPECT_THAT(Content(model.tensors()[0]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(model.bytes(), 8u);
}

TEST(ModelMemoryTest, GathersColumnParts) {
  ASSERT_OK_AND_ASSIGN(ModelMemory model,
                       ModelMemory::Allocate({Layout({Part("w", {2, 4}, {0, 0}, {2, 2})}),
                                              Layout({Part("w", {2, 4}, {0, 2}, {2, 2})})}));
  Receive(model, 0, 0, {1, 2, 5, 6});
  Receive(model, 1, 0, {3, 4, 7, 8});
  ASSERT_OK(model.Gather());
  EXPECT_THAT(Content(model.tensors()[0]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(ModelMemoryTest, TakesATensorThatAllShardsHoldOnceAndComparesTheRest) {
  const ShardLayout left = Layout({Part("norm", {2}, {0}, {2}), Part("w", {4}, {0}, {2})});
  const ShardLayout right = Layout({Part("norm", {2}, {0}, {2}), Part("w", {4}, {2}, {2})});
  ASSERT_OK_AND_ASSIGN(ModelMemory model, ModelMemory::Allocate({left, right}));
  for (uint32_t shard : {0, 1}) Receive(model, shard, 0, {8, 9});
  EXPECT_OK(model.Gather());
  EXPECT_THAT(Content(model.tensors()[0]), ElementsAre(8, 9));
  Receive(model, 1, 0, {8, 0});
  EXPECT_THAT(model.Gather(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"norm\"")));
}

TEST(ModelMemoryTest, PointsAliasesAtTheirOwners) {
  TensorSpec head = Part("head", {2}, {0}, {2});
  head.alias_of = "table";
  ASSERT_OK_AND_ASSIGN(ModelMemory model,
                       ModelMemory::Allocate({Layout({head, Part("table", {2}, {0}, {2})})}));
  EXPECT_EQ(model.TensorsOfShard(0)[0].data, model.TensorsOfShard(0)[1].data);
  EXPECT_EQ(model.tensors()[0].data, model.tensors()[1].data);
  EXPECT_EQ(model.bytes(), 2u);
}

TEST(ModelMemoryTest, RefusesShardsThatAreNotAWholeModel) {
  EXPECT_THAT(ModelMemory::Allocate({Layout({Part("w", {4}, {0}, {2})})}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"w\"")));
}

}  // namespace
}  // namespace th
