#include "th/transfer/stream/located_segments.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::stream {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(LocatedSegmentsTest, SegmentsLandInTheOrderInWhichTheyWereLocated) {
  LocatedSegments located;
  located.Add(SegmentIndex(7), 100);
  located.Add(SegmentIndex(3), 50);
  EXPECT_THAT(located.TakeLanded(SegmentIndex(3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("segment 3 has landed")));
  ASSERT_OK_AND_ASSIGN(const uint64_t first, located.TakeLanded(SegmentIndex(7)));
  EXPECT_EQ(first, 100u);
  ASSERT_OK_AND_ASSIGN(const uint64_t second, located.TakeLanded(SegmentIndex(3)));
  EXPECT_EQ(second, 50u);
  EXPECT_TRUE(located.empty());
  EXPECT_THAT(located.TakeLanded(SegmentIndex(3)), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(LocatedSegmentsTest, TheWindowBoundsBytesAndNumber) {
  const ServedMemory::Window window{.bytes = 100, .segments = 3};
  LocatedSegments located;
  located.Add(SegmentIndex(0), 99);
  EXPECT_TRUE(located.HasRoom(window)) << "the last one may exceed the bytes";
  located.Add(SegmentIndex(1), 99);
  EXPECT_FALSE(located.HasRoom(window));
  ASSERT_OK(located.TakeLanded(SegmentIndex(0)));
  EXPECT_TRUE(located.HasRoom(window));
  located.Clear();
  for (const uint64_t segment : {0, 1, 2}) {
    EXPECT_TRUE(located.HasRoom(window));
    located.Add(SegmentIndex(segment), 1);
  }
  EXPECT_FALSE(located.HasRoom(window));
}

}  // namespace
}  // namespace th::stream
