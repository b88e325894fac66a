#include "th/weights/tensor.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(DTypeTest, NamesAreRead) {
  int known = 0;
  for (int value = 0; value < 256; ++value) {
    const auto dtype = static_cast<DType>(value);
    if (DTypeName(dtype) == "UNKNOWN") continue;
    ++known;
    EXPECT_THAT(ParseDType(DTypeName(dtype)), IsOkAndHolds(dtype));
    EXPECT_EQ(DTypeBits(dtype) == 0, dtype == DType::kOpaque) << value;
  }
  EXPECT_EQ(known, 23);
}

TEST(DTypeTest, WireValuesStayAsTheyAre) {
  EXPECT_EQ(static_cast<int>(DType::kOpaque), 0);
  EXPECT_EQ(static_cast<int>(DType::kBF16), 11);
  EXPECT_EQ(static_cast<int>(DType::kF8E4M3), 14);
  EXPECT_EQ(static_cast<int>(DType::kC64), 22);
}

TEST(DTypeTest, RefusesUnknownNames) {
  EXPECT_THAT(ParseDType("f32"),
              StatusIs(absl::StatusCode::kInvalidArgument, "unknown dtype 'f32'"));
}

TEST(BytesOfShapeTest, FollowsFromDTypeAndShape) {
  struct Case {
    DType dtype;
    std::vector<int64_t> shape;
    uint64_t bytes;
  };
  const Case cases[] = {
      {DType::kF32, {}, 4},         {DType::kF32, {2, 3}, 24}, {DType::kF32, {2, 0, 3}, 0},
      {DType::kBF16, {5}, 10},      {DType::kF4, {3}, 2},      {DType::kF4, {4}, 2},
      {DType::kF6E2M3, {4}, 3},     {DType::kF6E3M2, {5}, 4},  {DType::kBool, {7}, 7},
      {DType::kC64, {2}, 16},       {DType::kF4, {}, 1},       {DType::kU8, {kHuge / 8}, kHuge / 8},
      {DType::kF64, {kHuge, 0}, 0},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(BytesOfShape(c.dtype, c.shape), IsOkAndHolds(c.bytes))
        << DTypeName(c.dtype) << " " << ShapeToString(c.shape);
  }
}

TEST(BytesOfShapeTest, RefusesWhatHasNoSize) {
  struct Case {
    DType dtype;
    std::vector<int64_t> shape;
    std::string message;
  };
  const Case cases[] = {
      {DType::kF32, {-1}, "shape [-1] has a negative dimension"},
      {DType::kF32, {0, -1}, "negative"},
      {DType::kF32, {kHuge}, "overflows"},
      {DType::kU8, {kHuge, kHuge}, "overflows"},
      {DType::kU8, {int64_t{1} << 32, int64_t{1} << 32}, "overflows"},
      {DType::kF32, std::vector<int64_t>(17, 1), "17 dimensions; at most 16"},
      {DType::kOpaque, {1}, "OPAQUE says nothing about bytes"},
      {static_cast<DType>(99), {1}, "says nothing about bytes"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(BytesOfShape(c.dtype, c.shape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TensorSpec Matrix() { return {.name = "w", .dtype = DType::kF32, .shape = {2, 3}}; }

TEST(CompleteTensorSpecTest, FillsInWhatFollows) {
  ASSERT_OK_AND_ASSIGN(const TensorSpec spec, CompleteTensorSpec(Matrix()));
  EXPECT_EQ(spec.bytes, 24u);
  EXPECT_THAT(spec.global_shape, ElementsAre(2, 3));
  EXPECT_THAT(spec.slice_begin, ElementsAre(0, 0));
  EXPECT_THAT(CompleteTensorSpec(spec), IsOkAndHolds(spec));
}

TEST(CompleteTensorSpecTest, BearsContiguousStrides) {
  struct Case {
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  };
  const Case cases[] = {
      {{2, 3}, {3, 1}}, {{1, 3}, {99, 1}},       {{2, 1}, {1, 7}},
      {{2, 0}, {5, 5}}, {{2, 3, 4}, {12, 4, 1}},
  };
  for (const Case& c : cases) {
    TensorSpec spec = Matrix();
    spec.shape = c.shape;
    spec.strides = c.strides;
    ASSERT_OK_AND_ASSIGN(spec, CompleteTensorSpec(spec));
    EXPECT_THAT(spec.strides, IsEmpty());
  }
}

TEST(CompleteTensorSpecTest, BearsSlicesUpToTheEdge) {
  TensorSpec spec = Matrix();
  spec.global_shape = {8, 3};
  spec.slice_begin = {6, 0};
  EXPECT_OK(CompleteTensorSpec(spec));
}

TEST(CompleteTensorSpecTest, BearsOpaqueBytesOfAnyShape) {
  const TensorSpec spec{.name = "packed", .dtype = DType::kOpaque, .shape = {3}, .bytes = 12345};
  ASSERT_OK_AND_ASSIGN(const TensorSpec complete, CompleteTensorSpec(spec));
  EXPECT_EQ(complete.bytes, 12345u);
}

struct RefusedSpec {
  std::string message;
  absl::StatusCode code;
  void (*spoil)(TensorSpec& spec);
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

const RefusedSpec kRefusedSpecs[] = {
    {"empty name", kInvalid, [](TensorSpec& s) { s.name = ""; }},
    {"has 1025 bytes; at most 1024", kInvalid, [](TensorSpec& s) { s.name.assign(1025, 'x'); }},
    {"not UTF-8", kInvalid, [](TensorSpec& s) { s.name = "\xff"; }},
    {"tensor 'w': its dtype is unknown", kInvalid,
     [](TensorSpec& s) { s.dtype = static_cast<DType>(23); }},
    {"tensor 'w': shape [2,-3] has a negative dimension", kInvalid,
     [](TensorSpec& s) { s.shape[1] = -3; }},
    {"tensor 'w': shape", kInvalid,
     [](TensorSpec& s) {
       s.shape = {kHuge, kHuge};
     }},
    {"tensor 'w': shape [-1] has a negative dimension", kInvalid,
     [](TensorSpec& s) { s.dtype = DType::kOpaque, s.shape = {-1}; }},
    {"tensor 'w': bytes=23 disagree with F32 [2,3], which has 24", kInvalid,
     [](TensorSpec& s) { s.bytes = 23; }},
    {"tensor 'w': strides [1,2] of shape [2,3] are not contiguous", kInvalid,
     [](TensorSpec& s) {
       s.strides = {1, 2};
     }},
    {"tensor 'w': strides [1] of shape [2,3]", kInvalid, [](TensorSpec& s) { s.strides = {1}; }},
    {"tensor 'w': slice [2,3] at [0,0] is not inside the global shape [2]", kInvalid,
     [](TensorSpec& s) { s.global_shape = {2}; }},
    {"tensor 'w': slice [2,3] at [7,0] is not inside the global shape [8,3]", kInvalid,
     [](TensorSpec& s) {
       s.global_shape = {8, 3}, s.slice_begin = {7, 0};
     }},
    {"tensor 'w': slice [2,3] at [-1,0]", kInvalid,
     [](TensorSpec& s) {
       s.global_shape = {8, 3}, s.slice_begin = {-1, 0};
     }},
    {"tensor 'w': slice [2,3] at [9223372036854775807,0]", kInvalid,
     [](TensorSpec& s) {
       s.slice_begin = {kHuge, 0};
     }},
};

class RefusedSpecTest : public ::testing::TestWithParam<RefusedSpec> {};

TEST_P(RefusedSpecTest, IsRefusedNamingTheTensor) {
  TensorSpec spec = Matrix();
  GetParam().spoil(spec);
  EXPECT_THAT(CompleteTensorSpec(spec), StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(All, RefusedSpecTest, ::testing::ValuesIn(kRefusedSpecs));

}  // namespace
}  // namespace th
