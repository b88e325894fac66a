#include "th/weights/segments.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

SegmentRange Range(uint64_t begin, uint64_t end) {
  return {SegmentIndex(begin), SegmentIndex(end)};
}

SegmentSet Set(std::vector<SegmentRange> ranges) { return SegmentSet::FromRanges(ranges); }

TEST(SegmentSetTest, AddMergesWhatTouches) {
  struct Case {
    std::string why;
    std::vector<SegmentRange> before;
    SegmentRange added;
    std::string after;
  };
  const Case cases[] = {
      {"first", {}, Range(2, 4), "[2,4)"},
      {"nothing", {Range(2, 4)}, Range(9, 9), "[2,4)"},
      {"inverted", {Range(2, 4)}, Range(9, 7), "[2,4)"},
      {"before", {Range(5, 6)}, Range(2, 4), "[2,4) [5,6)"},
      {"after", {Range(2, 4)}, Range(5, 6), "[2,4) [5,6)"},
      {"touches the end", {Range(2, 4)}, Range(4, 6), "[2,6)"},
      {"touches the beginning", {Range(4, 6)}, Range(2, 4), "[2,6)"},
      {"fills a gap", {Range(0, 2), Range(4, 6)}, Range(2, 4), "[0,6)"},
      {"swallows several", {Range(1, 2), Range(4, 5), Range(8, 9)}, Range(0, 8), "[0,9)"},
      {"inside", {Range(0, 9)}, Range(3, 4), "[0,9)"},
      {"between", {Range(0, 1), Range(8, 9)}, Range(3, 4), "[0,1) [3,4) [8,9)"},
  };
  for (const Case& c : cases) {
    SegmentSet set = Set(c.before);
    set.Add(c.added);
    EXPECT_EQ(set.ToString(), c.after) << c.why;
  }
}

TEST(SegmentSetTest, RemoveCutsWhatItCovers) {
  struct Case {
    std::string why;
    SegmentRange removed;
    std::string after;
  };
  // Each case is taken out of [0,10) [20,30).
  const Case cases[] = {
      {"nothing", Range(5, 5), "[0,10) [20,30)"},
      {"a gap", Range(10, 20), "[0,10) [20,30)"},
      {"the middle", Range(3, 5), "[0,3) [5,10) [20,30)"},
      {"the beginning", Range(0, 4), "[4,10) [20,30)"},
      {"the end", Range(25, 99), "[0,10) [20,25)"},
      {"across", Range(9, 21), "[0,9) [21,30)"},
      {"one of two", Range(20, 30), "[0,10)"},
      {"all", Range(0, 100), ""},
  };
  for (const Case& c : cases) {
    SegmentSet set = Set({Range(0, 10), Range(20, 30)});
    set.Remove(c.removed);
    EXPECT_EQ(set.ToString(), c.after) << c.why;
  }
}

TEST(SegmentSetTest, FromRangesSortsAndMerges) {
  EXPECT_EQ(Set({Range(5, 7), Range(9, 9), Range(0, 2), Range(2, 3), Range(6, 8)}).ToString(),
            "[0,3) [5,8)");
}

TEST(SegmentSetTest, WatermarkIsTheFirstMissing) {
  EXPECT_EQ(SegmentSet().Watermark(), SegmentIndex(0));
  EXPECT_EQ(Set({Range(1, 9)}).Watermark(), SegmentIndex(0));
  EXPECT_EQ(Set({Range(0, 4), Range(5, 9)}).Watermark(), SegmentIndex(4));
  EXPECT_EQ(SegmentSet::AllOf(12).Watermark(), SegmentIndex(12));
}

TEST(SegmentSetTest, FirstMissingLooksAtBothSets) {
  const SegmentSet held = Set({Range(0, 4), Range(6, 8)});
  const SegmentSet asked = Set({Range(4, 5), Range(8, 10), Range(12, 13)});
  struct Case {
    uint64_t from;
    uint64_t max_count;
    SegmentRange expected;
  };
  const Case cases[] = {
      {0, 100, Range(5, 6)},   {5, 100, Range(5, 6)},    {6, 100, Range(10, 12)},
      {6, 1, Range(10, 11)},   {11, 100, Range(11, 12)}, {12, 100, Range(13, 20)},
      {12, 3, Range(13, 16)},  {19, 100, Range(19, 20)}, {20, 100, Range(0, 0)},
      {999, 100, Range(0, 0)}, {0, 0, Range(0, 0)},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(held.FirstMissing(SegmentIndex(c.from), 20, c.max_count, asked), c.expected)
        << "from " << c.from << " at most " << c.max_count;
  }
}

TEST(SegmentSetTest, NothingIsMissingInACompleteSet) {
  const SegmentSet all = SegmentSet::AllOf(20);
  EXPECT_TRUE(all.FirstMissing(SegmentIndex(0), 20, 5, SegmentSet()).empty());
  EXPECT_TRUE(SegmentSet().FirstMissing(SegmentIndex(0), 20, 5, all).empty());
  EXPECT_TRUE(all.Complement(20).empty());
}

TEST(SegmentSetTest, AddAllIsTheUnion) {
  SegmentSet set = Set({Range(0, 2), Range(8, 9)});
  set.AddAll(Set({Range(2, 3), Range(7, 8), Range(20, 21)}));
  set.AddAll(set);
  EXPECT_EQ(set.ToString(), "[0,3) [7,9) [20,21)");
}

// A plain list of booleans as the reference.
class SegmentSetModelTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SegmentSetModelTest, AgreesWithAListOfBooleans) {
  constexpr uint64_t kSegments = 40;
  std::mt19937 random(GetParam());
  SegmentSet set;
  std::vector<bool> model(kSegments, false);
  for (int step = 0; step < 300; ++step) {
    const uint64_t begin = random() % kSegments;
    const uint64_t end = std::min(begin + random() % 9, kSegments);
    const bool add = random() % 2 == 0;
    add ? set.Add(Range(begin, end)) : set.Remove(Range(begin, end));
    std::fill(model.begin() + begin, model.begin() + end, add);
    for (uint64_t i = 0; i < kSegments; ++i) {
      ASSERT_EQ(set.Contains(SegmentIndex(i)), model[i]) << i << " of " << set.ToString();
      ASSERT_NE(set.Complement(kSegments).Contains(SegmentIndex(i)), model[i]) << i;
    }
    ASSERT_EQ(set.count(), uint64_t(std::count(model.begin(), model.end(), true)));
    ASSERT_EQ(set.ContainsAll(Range(begin, end)),
              std::find(model.begin() + begin, model.begin() + end, false) == model.begin() + end);
    ASSERT_EQ(set, SegmentSet::FromRanges(set.ranges()));
    const auto missing = std::find(model.begin() + begin, model.end(), false);
    const SegmentRange found = set.FirstMissing(SegmentIndex(begin), kSegments, 3, {});
    ASSERT_EQ(found.empty(), missing == model.end());
    if (!found.empty()) {
      ASSERT_EQ(found.begin.value, uint64_t(missing - model.begin()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SegmentSetModelTest, ::testing::Range(1u, 6u));

}  // namespace
}  // namespace th
