#include "th/client/receive_plan.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr uint64_t kSegmentBytes = 4096;
constexpr uint64_t kPlenty = uint64_t{1} << 30;

SegmentRange R(uint64_t begin, uint64_t end) { return {SegmentIndex(begin), SegmentIndex(end)}; }

TensorSpec Bytes(std::string name, int64_t bytes, std::string alias_of = "") {
  TensorSpec tensor;
  tensor.name = std::move(name);
  tensor.dtype = DType::kU8;
  tensor.shape = {bytes};
  tensor.alias_of = std::move(alias_of);
  return tensor;
}

// In stream order: a 10000, b 0, c 100, d 8192; "tied" is another name of c.
std::shared_ptr<const ShardLayout> Layout() {
  auto layout = ShardLayout::Build({.tensors = {Bytes("a", 10000), Bytes("b", 0), Bytes("c", 100),
                                                Bytes("d", 8192), Bytes("tied", 100, "c")},
                                    .segment_bytes = kSegmentBytes});
  EXPECT_OK(layout.status());
  return std::make_shared<const ShardLayout>(*std::move(layout));
}

// name, offset, bytes, segment, offset in the segment
using Seen = std::tuple<std::string, uint64_t, uint64_t, uint64_t, uint64_t>;

std::vector<Seen> SlicesOf(ReceivePlan& plan) {
  const auto layout = Layout();
  std::vector<Seen> seen;
  while (const auto slice = plan.Next()) {
    seen.emplace_back(layout->tensors()[slice->tensor].name, slice->offset, slice->bytes,
                      slice->segment.value, slice->segment_offset);
  }
  return seen;
}

TEST(ReceivePlanTest, AllTensorsComeInStreamOrderCutAtSegments) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {}, kPlenty));
  EXPECT_EQ(plan.tensors(), 5u);
  EXPECT_THAT(plan.wanted().ranges(), ElementsAre(R(0, 5)));
  EXPECT_THAT(SlicesOf(plan), ElementsAre(Seen("a", 0, 4096, 0, 0), Seen("a", 4096, 4096, 1, 0),
                                          Seen("a", 8192, 1808, 2, 0), Seen("b", 0, 0, 0, 0),
                                          Seen("c", 0, 100, 2, 1808), Seen("tied", 0, 100, 2, 1808),
                                          Seen("d", 0, 2188, 2, 1908), Seen("d", 2188, 4096, 3, 0),
                                          Seen("d", 6284, 1908, 4, 0)));
}

TEST(ReceivePlanTest, SegmentsWithoutAnAskedTensorAreNotWanted) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {"d"}, kPlenty));
  EXPECT_THAT(plan.wanted().ranges(), ElementsAre(R(2, 5)));
  ASSERT_OK_AND_ASSIGN(plan, ReceivePlan::Make(Layout(), {"c"}, kPlenty));
  EXPECT_THAT(plan.wanted().ranges(), ElementsAre(R(2, 3)));
}

TEST(ReceivePlanTest, ATiedNameComesUnderTheNameThatWasAsked) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {"tied"}, kPlenty));
  EXPECT_THAT(SlicesOf(plan), ElementsAre(Seen("tied", 0, 100, 2, 1808)));
}

TEST(ReceivePlanTest, PatternsAndNamesAddUpAndNothingComesTwice) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {"[cd]", "c", "t*"}, kPlenty));
  EXPECT_EQ(plan.tensors(), 3u);
}

TEST(ReceivePlanTest, ATensorWithoutBytesNeedsNoSegment) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {"b"}, /*limit_bytes=*/0));
  EXPECT_TRUE(plan.wanted().empty());
  EXPECT_THAT(SlicesOf(plan), ElementsAre(Seen("b", 0, 0, 0, 0)));
}

TEST(ReceivePlanTest, AsManySegmentsAsTheLimitHoldsAndNoMoreThanAreWanted) {
  ASSERT_OK_AND_ASSIGN(ReceivePlan plan, ReceivePlan::Make(Layout(), {}, 3 * kSegmentBytes - 1));
  EXPECT_EQ(plan.slots(), 2u);
  EXPECT_EQ(plan.ring_bytes(), 2 * kSegmentBytes);
  ASSERT_OK_AND_ASSIGN(plan, ReceivePlan::Make(Layout(), {"d"}, kPlenty));
  EXPECT_EQ(plan.slots(), 3u);
}

TEST(ReceivePlanTest, ALimitBelowOneSegmentNamesTheLeast) {
  EXPECT_THAT(ReceivePlan::Make(Layout(), {}, kSegmentBytes - 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a limit of 4095 bytes"), HasSubstr("the least is 4096"))));
}

TEST(ReceivePlanTest, AShardShorterThanASegmentNeedsNoMoreThanItself) {
  auto small = ShardLayout::Build({.tensors = {Bytes("a", 7)}, .segment_bytes = kSegmentBytes});
  ASSERT_OK(small.status());
  const auto layout = std::make_shared<const ShardLayout>(*std::move(small));
  ASSERT_OK_AND_ASSIGN(const ReceivePlan plan, ReceivePlan::Make(layout, {}, 7));
  EXPECT_EQ(plan.ring_bytes(), 7u);
  EXPECT_THAT(ReceivePlan::Make(layout, {}, 6).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the least is 7")));
}

TEST(ReceivePlanTest, AnUnknownNameIsToldWithNearOnes) {
  auto named = ShardLayout::Build(
      {.tensors = {Bytes("model.layers.0.mlp.weight", 8), Bytes("model.layers.1.mlp.weight", 8),
                   Bytes("lm_head.weight", 8), Bytes("other", 8)}});
  ASSERT_OK(named.status());
  const auto layout = std::make_shared<const ShardLayout>(*std::move(named));
  EXPECT_THAT(ReceivePlan::Make(layout, {"model.layers.2.mlp.weight"}, kPlenty).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("is named model.layers.2.mlp.weight"),
                             HasSubstr("model.layers.0.mlp.weight, model.layers.1.mlp.weight"))));
  EXPECT_THAT(ReceivePlan::Make(layout, {"decoder.*"}, kPlenty).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("matches decoder.*")));
}

TEST(ReceivePlanTest, PatternsAreLimited) {
  std::vector<std::string> patterns;
  patterns.reserve(kMaxReceivePatterns + 1);
  for (size_t i = 0; i <= kMaxReceivePatterns; ++i) patterns.push_back(absl::StrCat("*", i));
  EXPECT_THAT(ReceivePlan::Make(Layout(), patterns, kPlenty).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 1024")));
}

}  // namespace
}  // namespace th
