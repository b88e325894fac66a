#include "th/monitoring/process_figures.h"

#include <ctime>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

TEST(ProcessFiguresTest, CpuTimeRisesWithWork) {
  const absl::Duration before = ReadProcessFigures().cpu;
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 20) {
  }
  EXPECT_GE(ReadProcessFigures().cpu - before, absl::Milliseconds(40));
}

TEST(ProcessFiguresTest, ResidentMemoryRisesWithWhatIsWritten) {
  constexpr size_t kBytes = 64u << 20;
  const uint64_t before = ReadProcessFigures().resident_bytes;
  EXPECT_GT(before, 0u);
  const std::vector<char> written(kBytes, 1);
  EXPECT_GE(ReadProcessFigures().resident_bytes, before + kBytes / 2);
  EXPECT_EQ(written.back(), 1);
}

TEST(ProcessFiguresTest, ItHasStartedALittleWhileAgo) {
  const ProcessFigures figures = ReadProcessFigures();
  EXPECT_LE(figures.started, absl::Now() + absl::Seconds(1));
  EXPECT_GE(figures.started, absl::Now() - absl::Hours(1));
  EXPECT_EQ(figures.started, ReadProcessFigures().started);
  EXPECT_GT(figures.open_descriptors, 0u);
  EXPECT_GE(figures.max_descriptors, figures.open_descriptors);
}

}  // namespace
}  // namespace th
