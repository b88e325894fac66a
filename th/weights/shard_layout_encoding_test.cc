#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/weights/shard_layout.h"

namespace th {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

// One tensor of each sort that the format tells apart.
std::vector<TensorSpec> EverySort() {
  return {
      {.name = "embed.weight", .dtype = DType::kBF16, .shape = {300, 64}},
      {.name = "head.weight",
       .dtype = DType::kBF16,
       .shape = {64, 300},
       .alias_of = "embed.weight"},
      {.name = "layers.0.norm", .dtype = DType::kF32, .shape = {64}},
      {.name = "layers.1.norm", .dtype = DType::kF4, .shape = {33}},
      {.name = "packed", .dtype = DType::kOpaque, .shape = {3}, .bytes = 12345},
      {.name = "slice",
       .dtype = DType::kF8E4M3,
       .shape = {16, 64},
       .global_shape = {64, 64},
       .slice_begin = {16, 0}},
      {.name = "step", .dtype = DType::kI64},
      {.name = "zero", .dtype = DType::kF32, .shape = {0, 4}},
  };
}

ShardLayout Layout() {
  return *ShardLayout::Build({.tensors = EverySort(), .segment_bytes = 4096});
}

TEST(ShardLayoutEncodingTest, DecodesWhatItEncodes) {
  const ShardLayout layout = Layout();
  ASSERT_OK_AND_ASSIGN(const ShardLayout decoded, ShardLayout::Decode(layout.Encode()));
  EXPECT_THAT(decoded.tensors(), ElementsAreArray(layout.tensors()));
  EXPECT_EQ(decoded.digest(), layout.digest());
  EXPECT_EQ(decoded.segment_bytes(), layout.segment_bytes());
  EXPECT_EQ(decoded.checksum(), layout.checksum());
  EXPECT_EQ(decoded.bytes(), layout.bytes());
  EXPECT_EQ(decoded.Encode(), layout.Encode());
}

TEST(ShardLayoutEncodingTest, DigestIsOfTheEncoding) {
  EXPECT_EQ(Layout().digest(), Sha256(Layout().Encode()));
}

// The bytes are a promise to every other build: a change of them is another version of the format.
TEST(ShardLayoutEncodingTest, BytesStayAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(
      const ShardLayout layout,
      ShardLayout::Build(
          {.tensors = {{.name = "ab", .dtype = DType::kF32, .shape = {2, 300}},
                       {.name = "ac", .dtype = DType::kF32, .shape = {600}, .alias_of = "ab"}},
           .segment_bytes = 4096}));
  const std::string expected(
      "THSL\x02\x02\x80\x20\x02"
      "\x00\x0c\x00\x02"
      "ab\x02\x02\xac\x02"
      "\x01\x0c\x01\x01"
      "c\x01\xd8\x04\x00",
      9 + 4 + 2 + 4 + 4 + 1 + 4);
  EXPECT_EQ(layout.Encode(), expected);
}

TEST(ShardLayoutEncodingTest, EveryTruncationIsRefused) {
  const std::string encoded = Layout().Encode();
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    EXPECT_THAT(ShardLayout::Decode(absl::string_view(encoded).substr(0, bytes)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bytes;
  }
}

TEST(ShardLayoutEncodingTest, NoOtherBytesDecodeToTheSameLayout) {
  const ShardLayout layout = Layout();
  const std::string encoded = layout.Encode();
  for (size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
    std::string flipped = encoded;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const absl::StatusOr<ShardLayout> decoded = ShardLayout::Decode(flipped);
    if (decoded.ok()) {
      EXPECT_NE(decoded->digest(), layout.digest()) << "bit " << bit;
    }
  }
}

std::string Head(char tensors) {
  return absl::StrCat("THSL\x02\x02\x80\x20", std::string(1, tensors));
}

std::string Tensor(char shared, absl::string_view rest) {
  return absl::StrCat(absl::string_view("\x00\x02", 2), std::string(1, shared),
                      std::string(1, static_cast<char>(rest.size())), rest,
                      absl::string_view("\x01\x05", 2));
}

TEST(ShardLayoutEncodingTest, RefusesHostileBytes) {
  struct Case {
    std::string encoded;
    std::string message;
  };
  const Case cases[] = {
      {"", "wrong first bytes"},
      {"THSM\x01\x01\x80\x20", "wrong first bytes"},
      {"THSL\x01\x02\x80\x20", "version 1 is unknown"},
      {absl::StrCat(Head(1), Tensor(0, "a"), "x"), "1 bytes too many"},
      {Head(100), "100 tensors cannot be in it"},
      {absl::StrCat(Head(2), Tensor(0, "b"), Tensor(0, "a")), "canonical"},
      {absl::StrCat(Head(2), Tensor(0, "ab"), Tensor(0, "ac")), "canonical"},
      {absl::StrCat(Head(2), Tensor(0, "a"), Tensor(1, "")), "two tensors have this name"},
      {absl::StrCat(Head(1), Tensor(1, "a")), "a name is cut off"},
      {absl::StrCat(Head(1), "\x04\x02", "abcdef"), "unknown flags"},
      {absl::StrCat(Head(1), Tensor(0, "a").replace(5, 1, "\x11"), std::string(16, '\0')),
       "too many dimensions"},
      {absl::StrCat("THSL\x02\x02", std::string(9, '\x80'), "\x02"), "a number is too large"},
      {absl::StrCat("THSL\x02\x02\x80\xa0", absl::string_view("\x00\x01", 2), Tensor(0, "a")),
       "canonical"},
      {absl::StrCat(absl::string_view("THSL\x02\x02\x00\x01", 8), Tensor(0, "a")), "canonical"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ShardLayout::Decode(c.encoded),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(ShardLayoutEncodingTest, RefusesNamesThatGrowFromFewBytes) {
  // Every name but the first takes seven bytes and stands for a thousand.
  std::string encoded =
      absl::StrCat("THSL\x02\x02\x80\x20\xf0\xa2\x04", std::string("\0\x02\0\xe7\x07", 5),
                   std::string(999, 'a'), std::string("\x01\x05", 2));
  for (int i = 1; i < 70'000; ++i) encoded += std::string("\0\x02\xe7\x07\0\x01\x05", 7);
  EXPECT_THAT(ShardLayout::Decode(encoded),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long names")));
}

TEST(ShardLayoutEncodingTest, RefusesMoreBytesThanALayoutMayHave) {
  EXPECT_THAT(ShardLayout::Decode(std::string(kMaxLayoutBytes + 1, '\0')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 67108864")));
}

TEST(ShardLayoutEncodingTest, LayoutsWithoutTensorsAreEncodedToo) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout empty, ShardLayout::Build({}));
  EXPECT_THAT(ShardLayout::Decode(empty.Encode()), IsOk());
}

}  // namespace
}  // namespace th
