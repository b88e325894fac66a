#include "th/client/tensor_binding.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

alignas(64) std::array<uint8_t, 4096> memory;

Tensor Bytes(std::string name, size_t offset, int64_t bytes) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = DType::kU8;
  tensor.shape = {bytes};
  tensor.data = memory.data() + offset;
  return tensor;
}

void* At(size_t offset) { return memory.data() + offset; }

// The box at `begin` of a tensor of 64 bytes.
Tensor Box(std::string name, size_t offset, int64_t begin, int64_t bytes) {
  Tensor tensor = Bytes(std::move(name), offset, bytes);
  tensor.global_shape = {64};
  tensor.slice_begin = {begin};
  return tensor;
}

const TensorSpec& Find(const ShardLayout& layout, absl::string_view name) {
  for (const TensorSpec& tensor : layout.tensors()) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << name << " is not in the layout";
  return layout.tensors().front();
}

TEST(TensorBindingTest, StoragesLieWhereTheirTensorsDo) {
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({Bytes("b", 100, 10), Bytes("a", 0, 20)}, {}));
  ASSERT_EQ(binding.layout->storages().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::string& name = binding.layout->tensors()[binding.layout->storages()[i].tensor].name;
    EXPECT_EQ(binding.storages[i], memory.data() + (name == "a" ? 0 : 100));
  }
  EXPECT_EQ(binding.layout->bytes(), 30u);
}

TEST(TensorBindingTest, TensorsAtOneAddressAreAliasesOfTheFirstByName) {
  ASSERT_OK_AND_ASSIGN(
      const TensorBinding binding,
      BindTensors({Bytes("lm_head", 0, 64), Bytes("embed", 0, 64), Bytes("other", 64, 8)}, {}));
  EXPECT_EQ(Find(*binding.layout, "lm_head").alias_of, "embed");
  EXPECT_EQ(Find(*binding.layout, "embed").alias_of, "");
  EXPECT_EQ(binding.layout->bytes(), 72u);
}

TEST(TensorBindingTest, TheOrderInWhichTiedTensorsAreGivenMakesNoDifference) {
  ASSERT_OK_AND_ASSIGN(const TensorBinding one,
                       BindTensors({Bytes("x", 0, 64), Bytes("y", 0, 64)}, {}));
  ASSERT_OK_AND_ASSIGN(const TensorBinding two,
                       BindTensors({Bytes("y", 512, 64), Bytes("x", 512, 64)}, {}));
  EXPECT_EQ(one.layout->digest(), two.layout->digest());
}

TEST(TensorBindingTest, AnOwnerThatWasNamedOwnsAllTensorsOfItsAddress) {
  Tensor named = Bytes("a", 0, 64);
  named.alias_of = "z";
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({named, Bytes("m", 0, 64), Bytes("z", 0, 64)}, {}));
  EXPECT_EQ(Find(*binding.layout, "a").alias_of, "z");
  EXPECT_EQ(Find(*binding.layout, "m").alias_of, "z");
  EXPECT_EQ(Find(*binding.layout, "z").alias_of, "");
}

TEST(TensorBindingTest, AnAliasNeedsNoAddressOfItsOwn) {
  Tensor alias = Bytes("a", 0, 64);
  alias.alias_of = "z";
  alias.data = nullptr;
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding, BindTensors({alias, Bytes("z", 0, 64)}, {}));
  EXPECT_EQ(binding.layout->storages().size(), 1u);
}

TEST(TensorBindingTest, ZeroByteTensorsMayLieNowhereOrAnywhere) {
  Tensor nowhere = Bytes("nowhere", 0, 0);
  nowhere.data = nullptr;
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({nowhere, Bytes("inside", 8, 0), Bytes("a", 0, 64)}, {}));
  EXPECT_EQ(binding.layout->bytes(), 64u);
}

TEST(TensorBindingTest, AScalarHasOneElement) {
  Tensor scalar = Bytes("scale", 0, 1);
  scalar.dtype = DType::kF32;
  scalar.shape = {};
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding, BindTensors({scalar}, {}));
  EXPECT_EQ(binding.layout->bytes(), 4u);
}

TEST(TensorBindingTest, ChecksumsCanBeLeftOutByChoice) {
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({Bytes("a", 0, 64)}, {.checksums = false}));
  EXPECT_EQ(binding.layout->checksum(), ChecksumAlgorithm::kNone);
}

struct BadCase {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<std::string> says;
};

std::vector<BadCase> BadCases() {
  Tensor null_data = Bytes("no_data", 0, 8);
  null_data.data = nullptr;
  Tensor strided = Bytes("strided", 0, 8);
  strided.strides = {2};
  Tensor elsewhere = Bytes("tied", 128, 8);
  elsewhere.alias_of = "owner";
  Tensor orphan = Bytes("orphan", 0, 8);
  orphan.alias_of = "nobody";
  Tensor wrapping = Bytes("wrapping", 0, 8);
  wrapping.data = reinterpret_cast<void*>(UINTPTR_MAX - 3);
  Tensor wrong_bytes = Bytes("wrong_bytes", 0, 8);
  wrong_bytes.bytes = 9;
  return {
      {"DuplicateName",
       {Bytes("twice", 0, 8), Bytes("twice", 8, 8)},
       {"'twice'", "two tensors have this name"}},
      {"BoxesInOnePlace",
       {Box("split", 0, 0, 8), Box("split", 0, 8, 8)},
       {"'split'", "same memory"}},
      {"OverlappingBoxes",
       {Box("split", 0, 0, 8), Box("split", 8, 4, 8)},
       {"'split'", "[0]", "[4]", "overlap"}},
      {"NullData", {null_data}, {"'no_data'", "8 bytes", "null"}},
      {"Strides", {strided}, {"strided"}},
      {"PartialOverlap",
       {Bytes("low", 0, 10), Bytes("high", 9, 10)},
       {"'low'", "'high'", "overlap"}},
      {"OneInsideAnother", {Bytes("out", 0, 64), Bytes("in", 8, 8)}, {"'out'", "'in'", "overlap"}},
      {"SameAddressOtherSize", {Bytes("one", 0, 8), Bytes("two", 0, 16)}, {"'one'", "'two'"}},
      {"AliasElsewhere",
       {elsewhere, Bytes("owner", 0, 8)},
       {"'tied'", "'owner'", "another address"}},
      {"AliasOfNobody", {orphan}, {"orphan", "nobody"}},
      {"PastTheEndOfMemory", {wrapping}, {"'wrapping'", "end of memory"}},
      {"BytesThatDisagree", {wrong_bytes}, {"wrong_bytes"}},
  };
}

TEST(TensorBindingTest, RefusesBadTensorsByName) {
  for (const BadCase& bad : BadCases()) {
    SCOPED_TRACE(bad.name);
    const absl::Status status = BindTensors(bad.tensors, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& words : bad.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    }
  }
}

TEST(TensorBindingTest, EachBoxOfATensorLiesWhereItWasGiven) {
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({Box("w", 40, 16, 8), Box("w", 0, 0, 8)}, {}));
  EXPECT_THAT(binding.storages, ElementsAre(At(0), At(40)));
}

TEST(TensorBindingTest, TiedBoxesFindTheirOwnersBoxes) {
  Tensor tied = Box("tied", 0, 16, 8);
  tied.data = nullptr;
  tied.alias_of = "w";
  ASSERT_OK_AND_ASSIGN(const TensorBinding binding,
                       BindTensors({tied, Box("w", 40, 16, 8), Box("w", 0, 0, 8)}, {}));
  EXPECT_EQ(binding.layout->StorageOf(0), binding.layout->StorageOf(2));
}

TEST(TensorBindingTest, NeighboursDoNotOverlap) {
  EXPECT_OK(BindTensors({Bytes("a", 0, 10), Bytes("b", 10, 10), Bytes("c", 20, 10)}, {}).status());
}

}  // namespace
}  // namespace th
