#include "th/worker/tensor_memory.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TensorSpec Bytes(std::string name, int64_t bytes, std::string alias_of = "") {
  TensorSpec spec{.name = std::move(name), .dtype = DType::kU8, .shape = {bytes}};
  spec.alias_of = std::move(alias_of);
  return spec;
}

class TensorMemoryTest : public ::testing::TestWithParam<TensorPlacement> {};

TEST_P(TensorMemoryTest, GivesEveryTensorMemoryOfItsOwn) {
  ASSERT_OK_AND_ASSIGN(
      TensorMemory memory,
      TensorMemory::Allocate({Bytes("a", 100), Bytes("b", 3), Bytes("c", 70)}, GetParam()));
  EXPECT_EQ(memory.bytes(), 173u);
  for (int i = 0; i < 3; ++i) memset(memory.tensors()[i].data, i + 1, memory.tensors()[i].bytes);
  for (int i = 0; i < 3; ++i) {
    const auto* data = static_cast<const uint8_t*>(memory.tensors()[i].data);
    EXPECT_EQ(data[0], i + 1);
    EXPECT_EQ(data[memory.tensors()[i].bytes - 1], i + 1);
  }
}

TEST_P(TensorMemoryTest, LetsAnAliasShareItsOwnersMemory) {
  ASSERT_OK_AND_ASSIGN(
      TensorMemory memory,
      TensorMemory::Allocate({Bytes("head", 8, "table"), Bytes("table", 8)}, GetParam()));
  EXPECT_EQ(memory.bytes(), 8u);
  EXPECT_EQ(memory.tensors()[0].data, memory.tensors()[1].data);
  EXPECT_NE(memory.tensors()[0].data, nullptr);
}

TEST_P(TensorMemoryTest, BearsTensorsWithoutBytesAndNoTensors) {
  ASSERT_OK_AND_ASSIGN(TensorMemory empty, TensorMemory::Allocate({Bytes("none", 0)}, GetParam()));
  EXPECT_EQ(empty.bytes(), 0u);
  EXPECT_OK(TensorMemory::Allocate({}, GetParam()));
}

TEST_P(TensorMemoryTest, KeepsAddressesWhenItIsMoved) {
  ASSERT_OK_AND_ASSIGN(TensorMemory memory, TensorMemory::Allocate({Bytes("a", 100)}, GetParam()));
  void* const data = memory.tensors()[0].data;
  const TensorMemory moved = std::move(memory);
  EXPECT_EQ(moved.tensors()[0].data, data);
  memset(data, 1, 100);
}

TEST_P(TensorMemoryTest, NamesATensorThatItRefuses) {
  EXPECT_THAT(TensorMemory::Allocate({Bytes("stray", 4, "nobody")}, GetParam()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"nobody\"")));
  EXPECT_THAT(TensorMemory::Allocate({Bytes("negative", -4)}, GetParam()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative")));
}

INSTANTIATE_TEST_SUITE_P(Placements, TensorMemoryTest,
                         ::testing::Values(TensorPlacement::kOneArena,
                                           TensorPlacement::kSeparately));

}  // namespace
}  // namespace th
