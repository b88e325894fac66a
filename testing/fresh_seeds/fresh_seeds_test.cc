// Random runs that nobody has seen before: their seeds follow from BuildVersion(), which names the
// commit. Trees that are modified share the seeds of "-modified", builds outside of git those of
// "unknown". A seed that fails shows a bug, perhaps an older one: it is mended, not drawn again.
#include <cstdint>
#include <iostream>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/simulator/random_runs/failed_run.h"
#include "th/simulator/random_runs/random_run.h"
#include "th/version/version.h"

namespace th {
namespace {

constexpr uint64_t kSeeds = 2'000;
constexpr uint64_t kSeedsPerCase = 50;
// Above every seed that another test fixes.
constexpr uint64_t kFirstOfAllBuilds = 1'000'000'000;
// Ranges of kSeeds, one of which a build has, so that ranges never overlap.
constexpr uint64_t kSeedRanges = 1'000'000'000'000;

// FNV-1a, 64 bits: unlike Abseil's hashes the same in every process.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3;
  }
  return hash;
}

uint64_t FirstSeed() { return kFirstOfAllBuilds + HashOf(BuildVersion()) % kSeedRanges * kSeeds; }

class FreshSeedsTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(FreshSeedsTest, NothingIsEverViolated) {
  const uint64_t first = FirstSeed() + GetParam();
  std::cout << BuildVersion() << ": th simulate --first-seed " << first << " --seeds "
            << kSeedsPerCase << std::endl;
  for (uint64_t seed = first; seed < first + kSeedsPerCase; ++seed) {
    const RandomRunResult result = RunAtRandom({.seed = seed});
    EXPECT_THAT(result.violations, ::testing::IsEmpty())
        << DescribeFailedRun({.seed = seed}, result).ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheCommit, FreshSeedsTest,
                         ::testing::Range<uint64_t>(0, kSeeds, kSeedsPerCase));

}  // namespace
}  // namespace th
