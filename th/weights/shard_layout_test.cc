#include "th/weights/shard_layout.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

TensorSpec Box(std::string name, std::vector<int64_t> begin, std::vector<int64_t> shape,
               std::vector<int64_t> global_shape) {
  return {.name = std::move(name),
          .dtype = DType::kU8,
          .shape = std::move(shape),
          .global_shape = std::move(global_shape),
          .slice_begin = std::move(begin)};
}

TensorSpec AliasBox(std::string name, std::vector<int64_t> begin, std::vector<int64_t> shape,
                    std::vector<int64_t> global_shape, std::string owner) {
  TensorSpec spec =
      Box(std::move(name), std::move(begin), std::move(shape), std::move(global_shape));
  spec.alias_of = std::move(owner);
  return spec;
}

// Every second row of a tensor of 2 * `count` rows.
std::vector<TensorSpec> Rows(const std::string& name, int64_t count) {
  std::vector<TensorSpec> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(Box(name, {2 * i, 0}, {1, 3}, {2 * count, 3}));
  return rows;
}

absl::StatusOr<ShardLayout> Layout(std::vector<TensorSpec> tensors, uint64_t segment_bytes = 4096) {
  return ShardLayout::Build({.tensors = std::move(tensors), .segment_bytes = segment_bytes});
}

std::vector<std::string> Names(const ShardLayout& layout) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : layout.tensors()) names.push_back(tensor.name);
  return names;
}

TEST(DefaultSegmentBytesTest, GrowsWithTheShard) {
  struct Case {
    uint64_t shard_bytes;
    uint64_t segment_bytes;
  };
  constexpr uint64_t kKiB = 1024;
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const Case cases[] = {
      {0, 256 * kKiB},
      {1, 256 * kKiB},
      {16 * kGiB, 256 * kKiB},
      {16 * kGiB + 1, 512 * kKiB},
      {32 * kGiB, 512 * kKiB},
      {50 * kGiB, 1024 * kKiB},
      {256 * kGiB, 4096 * kKiB},
      {2048 * kGiB, 4096 * kKiB},
      {std::numeric_limits<uint64_t>::max(), 4096 * kKiB},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(DefaultSegmentBytes(c.shard_bytes), c.segment_bytes) << c.shard_bytes;
  }
}

TEST(ShardLayoutTest, OrdersTensorsByTheBytesOfTheirNames) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout,
                       Layout({Bytes("b", 1), Bytes("\xc3\xbc", 1), Bytes("a.10", 1), Bytes("a", 1),
                               Bytes("a.2", 1), Bytes("Z", 1)}));
  EXPECT_THAT(Names(layout), ElementsAre("Z", "a", "a.10", "a.2", "b", "\xc3\xbc"));
}

TEST(ShardLayoutTest, DigestDoesNotDependOnTheOrderGiven) {
  std::vector<TensorSpec> tensors = {Bytes("a", 5000), Bytes("b", 7), Alias("c", 7, "b"),
                                     Bytes("d", 0)};
  ASSERT_OK_AND_ASSIGN(const ShardLayout first, Layout(tensors));
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(tensors.begin(), tensors.end(), random);
    ASSERT_OK_AND_ASSIGN(const ShardLayout again, Layout(tensors));
    EXPECT_EQ(again.digest(), first.digest());
  }
}

TEST(ShardLayoutTest, DigestStandsForEverythingInTheLayout) {
  TensorSpec slice = Bytes("a", 8);
  slice.global_shape = {16};
  TensorSpec other_slice = slice;
  other_slice.slice_begin = {8};
  TensorSpec other_dtype = Bytes("a", 8);
  other_dtype.dtype = DType::kI8;
  TensorSpec other_shape = Bytes("a", 8);
  other_shape.shape = {2, 4};
  const ShardLayout::Spec specs[] = {
      {.tensors = {}},
      {.tensors = {Bytes("a", 8)}},
      {.tensors = {Bytes("b", 8)}},
      {.tensors = {Bytes("a", 9)}},
      {.tensors = {other_dtype}},
      {.tensors = {other_shape}},
      {.tensors = {slice}},
      {.tensors = {other_slice}},
      {.tensors = {Bytes("a", 8), Bytes("b", 8)}},
      {.tensors = {Bytes("a", 8), Alias("b", 8, "a")}},
      {.tensors = {Bytes("a", 8)}, .segment_bytes = 8192},
      {.tensors = {Bytes("a", 8)}, .checksum = ChecksumAlgorithm::kNone},
  };
  std::vector<Digest> digests;
  for (const ShardLayout::Spec& spec : specs) {
    ASSERT_OK_AND_ASSIGN(const ShardLayout layout, ShardLayout::Build(spec));
    EXPECT_THAT(digests, ::testing::Not(::testing::Contains(layout.digest())));
    digests.push_back(layout.digest());
  }
}

TEST(ShardLayoutTest, PacksSmallTensorsAndSplitsLargeOnes) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout,
                       Layout({Bytes("a", 100), Bytes("b", 200), Bytes("c", 9000)}));
  EXPECT_EQ(layout.bytes(), 9300u);
  EXPECT_EQ(layout.segment_count(), 3u);
  EXPECT_THAT(
      layout.PiecesOf(SegmentIndex(0)),
      ElementsAre(SegmentPiece{0, 0, 100}, SegmentPiece{1, 0, 200}, SegmentPiece{2, 0, 3796}));
  EXPECT_THAT(layout.PiecesOf(SegmentIndex(1)), ElementsAre(SegmentPiece{2, 3796, 4096}));
  EXPECT_THAT(layout.PiecesOf(SegmentIndex(2)), ElementsAre(SegmentPiece{2, 7892, 1108}));
  EXPECT_EQ(layout.SegmentLength(SegmentIndex(2)), 1108u);
}

TEST(ShardLayoutTest, TensorsWithoutBytesHaveNoPieces) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout,
                       Layout({Bytes("a", 0), Bytes("b", 4096), Bytes("c", 0), Bytes("d", 0),
                               Bytes("e", 10), Bytes("f", 0)}));
  EXPECT_THAT(layout.storages(), SizeIs(6));
  EXPECT_THAT(layout.PiecesOf(SegmentIndex(0)), ElementsAre(SegmentPiece{1, 0, 4096}));
  EXPECT_THAT(layout.PiecesOf(SegmentIndex(1)), ElementsAre(SegmentPiece{4, 0, 10}));
}

TEST(ShardLayoutTest, AliasesShareOneStorage) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout,
                       Layout({Alias("a.head", 100, "m.embed"), Bytes("m.embed", 100),
                               Alias("z.head", 100, "m.embed"), Bytes("n", 50)}));
  EXPECT_EQ(layout.bytes(), 150u);
  EXPECT_THAT(layout.storages(), SizeIs(2));
  EXPECT_EQ(layout.StorageOf(0), 0u);
  EXPECT_EQ(layout.StorageOf(1), 0u);
  EXPECT_EQ(layout.StorageOf(3), 0u);
  EXPECT_EQ(layout.StorageOf(2), 1u);
  EXPECT_EQ(layout.storages()[0].tensor, 1u);
}

TEST(ShardLayoutTest, BoxesOfOneNameAreOrderedByTheirPlace) {
  std::vector<TensorSpec> rows = Rows("w", 256);
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout(rows));
  ASSERT_THAT(layout.tensors(), SizeIs(256));
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(layout.tensors()[i].slice_begin, rows[i].slice_begin);
    EXPECT_EQ(layout.storages()[i].stream_offset, 3 * i);
  }
  std::shuffle(rows.begin(), rows.end(), std::mt19937(1));
  ASSERT_OK_AND_ASSIGN(const ShardLayout again, Layout(rows));
  EXPECT_EQ(again.digest(), layout.digest());
  ASSERT_OK_AND_ASSIGN(const ShardLayout decoded, ShardLayout::Decode(layout.Encode()));
  EXPECT_EQ(decoded.tensors(), layout.tensors());
}

TEST(ShardLayoutTest, TiedBoxesShareTheStorageOfTheSamePlace) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout({AliasBox("t", {2, 0}, {1, 4}, {4, 4}, "w"),
                                                         AliasBox("t", {0, 0}, {1, 4}, {4, 4}, "w"),
                                                         Box("w", {2, 0}, {1, 4}, {4, 4}),
                                                         Box("w", {0, 0}, {1, 4}, {4, 4})}));
  EXPECT_THAT(layout.storages(), SizeIs(2));
  EXPECT_EQ(layout.StorageOf(0), layout.StorageOf(2));
  EXPECT_EQ(layout.StorageOf(1), layout.StorageOf(3));
  ASSERT_OK_AND_ASSIGN(const ShardLayout decoded, ShardLayout::Decode(layout.Encode()));
  EXPECT_EQ(decoded.digest(), layout.digest());
}

TEST(ShardLayoutTest, BearsScalarsAndOpaqueBytes) {
  const TensorSpec scalar{.name = "step", .dtype = DType::kI64};
  const TensorSpec opaque{.name = "packed", .dtype = DType::kOpaque, .bytes = 77};
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout({scalar, opaque}));
  EXPECT_EQ(layout.bytes(), 85u);
}

TEST(ShardLayoutTest, EmptyShardHasNoSegments) {
  for (const std::vector<TensorSpec>& tensors :
       {std::vector<TensorSpec>{}, std::vector<TensorSpec>{Bytes("a", 0)}}) {
    ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout(tensors));
    EXPECT_EQ(layout.segment_count(), 0u);
    EXPECT_THAT(layout.PiecesOf(SegmentIndex(0)), IsEmpty());
    EXPECT_EQ(layout.BytesOf(SegmentIndex(0), SegmentIndex(9)), 0u);
    EXPECT_FALSE(layout.digest().empty());
  }
  EXPECT_EQ(ShardLayout().segment_count(), 0u);
}

TEST(ShardLayoutTest, AnswersForSegmentsThatAreNotThere) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout({Bytes("a", 5000)}));
  const SegmentIndex beyond(2);
  const SegmentIndex far(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(layout.SegmentLength(beyond), 0u);
  EXPECT_EQ(layout.SegmentLength(far), 0u);
  EXPECT_THAT(layout.PiecesOf(far), IsEmpty());
  EXPECT_EQ(layout.BytesOf(SegmentIndex(1), far), 904u);
  EXPECT_EQ(layout.BytesOf(far, far), 0u);
  EXPECT_EQ(layout.BytesOf(SegmentIndex(1), SegmentIndex(0)), 0u);
}

TEST(ShardLayoutTest, CountsBytesOfRanges) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout({Bytes("a", 9300)}));
  EXPECT_EQ(layout.BytesOf(SegmentIndex(0), SegmentIndex(3)), 9300u);
  EXPECT_EQ(layout.BytesOf(SegmentIndex(0), SegmentIndex(2)), 8192u);
  EXPECT_EQ(layout.BytesOf(SegmentIndex(2), SegmentIndex(3)), 1108u);
  EXPECT_EQ(layout.BytesOf(SegmentIndex(1), SegmentIndex(1)), 0u);
}

// Every byte of the stream is in exactly one piece, in order.
class PiecesTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PiecesTest, TileTheStorages) {
  std::mt19937 random(GetParam());
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 200; ++i) {
    const int64_t limit = random() % 4 == 0 ? 30'000 : 300;
    tensors.push_back(Bytes(absl::StrCat("t", random() % 1000, ".", i), random() % limit));
  }
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout(tensors, 4096 + random() % 4096));
  std::vector<uint64_t> covered(layout.storages().size(), 0);
  uint64_t stream_offset = 0;
  for (uint64_t i = 0; i < layout.segment_count(); ++i) {
    for (const SegmentPiece& piece : layout.PiecesOf(SegmentIndex(i))) {
      ASSERT_GT(piece.bytes, 0u);
      ASSERT_EQ(piece.offset, covered[piece.storage]);
      ASSERT_EQ(layout.storages()[piece.storage].stream_offset + piece.offset, stream_offset);
      covered[piece.storage] += piece.bytes;
      stream_offset += piece.bytes;
    }
    ASSERT_EQ(layout.BytesOf(SegmentIndex(0), SegmentIndex(i + 1)), stream_offset);
  }
  for (size_t i = 0; i < covered.size(); ++i) EXPECT_EQ(covered[i], layout.storages()[i].bytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PiecesTest, ::testing::Range(1u, 6u));

TEST(ShardLayoutTest, TwoTerabytesAreLaidOutWithoutWalkingThem) {
  constexpr int64_t kTensors = 61'000;
  constexpr int64_t kTensorBytes = (int64_t{2} << 40) / kTensors;
  std::vector<TensorSpec> tensors;
  for (int64_t i = 0; i < kTensors; ++i) {
    tensors.push_back(
        Bytes(absl::StrCat("model.layers.", i % 61, ".mlp.experts.", i / 61, ".down_proj.weight"),
              kTensorBytes));
  }
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, Layout(std::move(tensors), 0));
  EXPECT_EQ(layout.segment_bytes(), uint64_t{4} << 20);
  EXPECT_EQ(layout.bytes(), uint64_t{kTensors * kTensorBytes});
  const SegmentPieces last = layout.PiecesOf(SegmentIndex(layout.segment_count() - 1));
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].offset + last[0].bytes, uint64_t{kTensorBytes});
  EXPECT_LT(layout.Encode().size(), size_t{2} << 20);
}

struct RefusedShard {
  std::string message;
  absl::StatusCode code;
  ShardLayout::Spec spec;
};

std::vector<RefusedShard> RefusedShards() {
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  TensorSpec strided = Bytes("s", 4);
  strided.strides = {2};
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 8;
  std::vector<TensorSpec> huge;
  huge.reserve(20);
  for (int i = 0; i < 20; ++i) huge.push_back(Bytes(absl::StrCat("h", i), kHuge));
  return {
      {"tensor 'a': two tensors have this name",
       kInvalid,
       {.tensors = {Bytes("a", 1), Bytes("b", 1), Bytes("a", 2)}}},
      {"a tensor has an empty name", kInvalid, {.tensors = {Bytes("", 1)}}},
      {"tensor 's': strides [2] of shape [4] are not contiguous", kInvalid, {.tensors = {strided}}},
      {"tensor 'w': two tensors have this name, and are not boxes of one tensor",
       kInvalid,
       {.tensors = {Box("w", {0, 0}, {2, 2}, {4, 4}), Box("w", {2, 0}, {2, 2}, {4, 5})}}},
      {"tensor 'w': two tensors have this name, and are not boxes of one tensor",
       kInvalid,
       {.tensors = {Box("w", {0, 0}, {2, 2}, {4, 4}), Box("w", {1}, {2}, {4})}}},
      {"tensor 'w': two tensors have this name, and their boxes at [0,1] and [1,0] overlap",
       kInvalid,
       {.tensors = {Box("w", {0, 1}, {2, 2}, {4, 4}), Box("w", {1, 0}, {2, 2}, {4, 4})}}},
      {"tensor 'w': two tensors have this name, and their boxes at [0,0] and [0,0] overlap",
       kInvalid,
       {.tensors = {Box("w", {0, 0}, {0, 2}, {4, 4}), Box("w", {0, 0}, {2, 0}, {4, 4})}}},
      {"tensor 'w': 257 boxes have this name; at most 256", kInvalid, {.tensors = Rows("w", 257)}},
      {"tensor 't': alias of 'w', which has several boxes, none of them at [1,0]",
       kInvalid,
       {.tensors = {Box("w", {0, 0}, {1, 4}, {4, 4}), Box("w", {2, 0}, {1, 4}, {4, 4}),
                    AliasBox("t", {1, 0}, {1, 4}, {4, 4}, "w")}}},
      {"tensor 'b': alias of 'x', which the shard does not have",
       kInvalid,
       {.tensors = {Bytes("a", 1), Alias("b", 1, "x")}}},
      {"tensor 'c': alias of 'b', which is an alias itself",
       kInvalid,
       {.tensors = {Bytes("a", 1), Alias("b", 1, "a"), Alias("c", 1, "b")}}},
      {"tensor 'a': alias of 'a', which is an alias itself",
       kInvalid,
       {.tensors = {Alias("a", 1, "a")}}},
      {"tensor 'b': alias of 'a', which has 1 bytes, not 2",
       kInvalid,
       {.tensors = {Bytes("a", 1), Alias("b", 2, "a")}}},
      {"tensor 'h6': the shard's bytes overflow", kInvalid, {.tensors = huge}},
      {"segment_bytes=4095 is outside 4096 to 67108864",
       kInvalid,
       {.tensors = {Bytes("a", 1)}, .segment_bytes = 4095}},
      {"segment_bytes=67108865",
       kInvalid,
       {.tensors = {Bytes("a", 1)}, .segment_bytes = kMaxSegmentBytes + 1}},
      {"16777217 segments; at most 16777216",
       kInvalid,
       {.tensors = {Bytes("a", (int64_t{1} << 36) + 1)}, .segment_bytes = 4096}},
      {"checksum algorithm 9 is unknown",
       kInvalid,
       {.tensors = {Bytes("a", 1)}, .checksum = static_cast<ChecksumAlgorithm>(9)}},
  };
}

class RefusedShardTest : public ::testing::TestWithParam<RefusedShard> {};

TEST_P(RefusedShardTest, IsRefusedNamingTheTensor) {
  EXPECT_THAT(ShardLayout::Build(GetParam().spec),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(All, RefusedShardTest, ::testing::ValuesIn(RefusedShards()));

TEST(FirstDifferenceTest, NamesTheFirstTensorThatDiffers) {
  TensorSpec slice = Bytes("b", 1);
  slice.global_shape = {4};
  slice.slice_begin = {2};
  TensorSpec opaque{.name = "b", .dtype = DType::kOpaque, .bytes = 7};
  const std::vector<TensorSpec> holder = {Bytes("a", 1), Bytes("b", 1), Bytes("c", 1)};
  struct Case {
    std::vector<TensorSpec> reader;
    std::string expected;
  };
  const Case cases[] = {
      {holder, "no difference"},
      {{holder[0], holder[2]}, "tensor 'b' is only in the holder's shard"},
      {{holder[0], holder[1]}, "tensor 'c' is only in the holder's shard"},
      {{holder[0], holder[1], Bytes("bb", 1), holder[2]},
       "tensor 'bb' is only in the reader's shard"},
      {{holder[0], holder[1], holder[2], Bytes("d", 1)},
       "tensor 'd' is only in the reader's shard"},
      {{holder[0], Bytes("b", 2), Bytes("c", 2)},
       "tensor 'b' is U8 [2] in the reader's shard, U8 [1] in the holder's"},
      {{holder[0], slice, holder[2]},
       "tensor 'b' is U8 [1] at [2] of [4] in the reader's shard, U8 [1] in the holder's"},
      {{holder[0], opaque, holder[2]},
       "tensor 'b' is OPAQUE [] of 7 bytes in the reader's shard, U8 [1] in the holder's"},
      {{holder[0], Alias("b", 1, "a"), holder[2]},
       "tensor 'b' is U8 [1] alias of 'a' in the reader's shard, U8 [1] in the holder's"},
  };
  ASSERT_OK_AND_ASSIGN(const ShardLayout held, Layout(holder));
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const ShardLayout wanted, Layout(c.reader));
    EXPECT_EQ(FirstDifference(wanted, held), c.expected);
  }
}

TEST(FirstDifferenceTest, NamesWhatDiffersBesidesTensors) {
  ASSERT_OK_AND_ASSIGN(const ShardLayout small, Layout({Bytes("a", 1)}, 4096));
  ASSERT_OK_AND_ASSIGN(const ShardLayout large, Layout({Bytes("a", 1)}, 8192));
  ASSERT_OK_AND_ASSIGN(const ShardLayout unchecksummed,
                       ShardLayout::Build({.tensors = {Bytes("a", 1)},
                                           .segment_bytes = 4096,
                                           .checksum = ChecksumAlgorithm::kNone}));
  EXPECT_EQ(FirstDifference(small, large),
            "the segment size is 4096 bytes in the reader's shard, 8192 bytes in the holder's");
  EXPECT_EQ(FirstDifference(small, unchecksummed),
            "the checksum algorithm is 2 in the reader's shard, 0 in the holder's");
}

}  // namespace
}  // namespace th
