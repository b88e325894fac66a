#include "th/bench/memory_need.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr char kMeminfo[] =
    "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\n";

TEST(CheckMemoryTest, WhatFitsIsTaken) {
  EXPECT_OK(CheckMemory({.version_bytes = 4 * kGiB, .copies = 2}, 8 * kGiB));
}

TEST(CheckMemoryTest, WhatDoesNotFitIsRefusedWithWhatThereIsAndWhatFits) {
  EXPECT_THAT(CheckMemory({.version_bytes = 2048 * kGiB, .copies = 2}, 8 * kGiB),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--bytes 2TiB is in memory 2 times at once, 4TiB in all"),
                             HasSubstr("this machine has 8GiB left"),
                             HasSubstr("give at most --bytes 4GiB"))));
}

TEST(CheckMemoryTest, AProductThatNoIntegerHoldsIsRefusedToo) {
  EXPECT_THAT(CheckMemory({.version_bytes = std::numeric_limits<uint64_t>::max(), .copies = 3}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(AvailableMemoryTest, TheControlGroupMayLeaveLess) {
  EXPECT_EQ(AvailableMemoryOf(kMeminfo, ""), 8 * kGiB);
  EXPECT_EQ(AvailableMemoryOf(kMeminfo, "max\n"), 8 * kGiB);
  EXPECT_EQ(AvailableMemoryOf(kMeminfo, "1073741824\n"), kGiB);
  EXPECT_EQ(AvailableMemoryOf("", ""), std::numeric_limits<uint64_t>::max());
}

TEST(AvailableMemoryTest, ThisMachineHasSomeAndLessThanAPetabyte) {
  EXPECT_GT(AvailableMemory(), uint64_t{16} << 20);
  EXPECT_LT(AvailableMemory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace th
