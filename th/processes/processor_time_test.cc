#include "th/processes/processor_time.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

TEST(ProcessorTimeTest, IsUserAndSystemTimeWhateverTheNameIs) {
  constexpr char kStat[] =
      "4711 (a (bad) name 1 2) S 1 4711 4711 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1 0 99 1 2";
  ASSERT_OK_AND_ASSIGN(const absl::Duration time, ProcessorTimeOfStat(kStat, 100));
  EXPECT_EQ(time, absl::Seconds(2));
}

TEST(ProcessorTimeTest, OtherTextIsRefused) {
  for (const char* text :
       {"", "4711 (name", "4711 (name) S 1 2", "1 (n) S a b c d e f g h i j k l"})
    EXPECT_EQ(ProcessorTimeOfStat(text, 100).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ProcessorTimeTest, GrowsWithWhatThisProcessDoes) {
  ASSERT_OK_AND_ASSIGN(const absl::Duration before, ProcessorTime(getpid()));
  absl::Duration now = before;
  while (now == before) {
    ASSERT_OK_AND_ASSIGN(now, ProcessorTime(getpid()));
  }
  EXPECT_GT(now, before);
}

TEST(ProcessorTimeTest, OfNoProcessThereIsNone) {
  EXPECT_EQ(ProcessorTime(-1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace th
