#include "th/simulator/random_runs/random_run.h"

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/under_sanitizer.h"
#include "th/simulator/random_runs/failed_run.h"

namespace th {
namespace {

using ::testing::IsEmpty;

const uint64_t kSeeds = testing::UnderSanitizer() ? 200 : 2'000;  // no more is to be found out
constexpr uint64_t kSeedsPerCase = 50;

// The coverage of all seeds that this process has run. A shard's seeds must take every step that is
// not rare; should they miss one, further seeds are run, so that only a step that is lost fails.
class Coverage : public ::testing::Environment {
 public:
  void Add(const RandomRunResult& result) {
    ++seeds_;
    coverage_.Add(result.coverage);
    staged_ += result.staged;
    applied_ += result.applied;
    received_ += result.received;
  }
  void TearDown() override {
    if (seeds_ < kSeedsThatCover) return;
    for (uint64_t seed = 0; seed < kMaxFurtherSeeds && !Missing().empty(); ++seed) {
      const RandomRunSpec spec{.seed = kFirstFurtherSeed + seed};
      const RandomRunResult result = RunAtRandom(spec);
      EXPECT_THAT(result.violations, IsEmpty()) << DescribeFailedRun(spec, result).ToString();
      Add(result);
    }
    std::cout << seeds_ << " seeds took " << coverage_.Summary() << "\n";
    std::cout << staged_ << " times a group has staged a version, " << applied_
              << " times moved it in; " << received_ << " streams were received\n";
    // Runs that hardly did any of it would show nothing.
    EXPECT_GT(applied_, seeds_ / 2);
    EXPECT_GT(received_, seeds_);
    EXPECT_THAT(Missing(), IsEmpty()) << seeds_ << " seeds: " << coverage_.Summary();
    for (TransitionTable table : kTransitionTables) {
      EXPECT_THAT(coverage_.TakenAgainstTheTable(table), IsEmpty());
    }
  }

 private:
  static constexpr uint64_t kSeedsThatCover = 400;
  static constexpr uint64_t kFirstFurtherSeed = 100'001, kMaxFurtherSeeds = 3'000;
  std::vector<std::string> Missing() const {
    std::vector<std::string> missing;
    for (TransitionTable table : kTransitionTables) {
      for (const DrawnTransition& drawn : TransitionsOf(table)) {
        const bool demanded = drawn.why_not_here.empty() && !drawn.rare;
        if (demanded && coverage_.times(table, drawn.name) == 0) missing.push_back(drawn.name);
      }
    }
    return missing;
  }

  uint64_t seeds_ = 0;
  uint64_t staged_ = 0, applied_ = 0, received_ = 0;
  TransitionCoverage coverage_;
};
Coverage* const kCoverage = new Coverage;  // GoogleTest deletes it
const ::testing::Environment* const kRegistered = ::testing::AddGlobalTestEnvironment(kCoverage);

class SeedsTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SeedsTest, NothingIsEverViolated) {
  for (uint64_t seed = GetParam(); seed < GetParam() + kSeedsPerCase; ++seed) {
    const RandomRunResult result = RunAtRandom({.seed = seed});
    kCoverage->Add(result);
    EXPECT_THAT(result.violations, IsEmpty())
        << DescribeFailedRun({.seed = seed}, result).ToString();
    EXPECT_GE(result.events, kMinEventsPerRun) << "seed " << seed;
    EXPECT_GE(result.faults_happened, kMinFaults) << "seed " << seed;
    EXPECT_GT(result.segments, 0u) << "seed " << seed;
    EXPECT_GT(result.operations_done, 0u) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Random, SeedsTest, ::testing::Range<uint64_t>(1, kSeeds, kSeedsPerCase));

std::string TraceOf(RandomRunSpec spec) {
  std::string text;
  spec.trace = [&text](const std::string& line) { absl::StrAppend(&text, line, "\n"); };
  RunAtRandom(spec);
  return text;
}

TEST(RandomRunTest, ASeedIsOneRunForEver) {
  const std::string trace = TraceOf({.seed = 11});
  EXPECT_EQ(trace, TraceOf({.seed = 11}));
  EXPECT_NE(trace, TraceOf({.seed = 12}));
}

TEST(RandomRunTest, AFaultThatIsLeftOutDoesNotHappen) {
  const size_t faults = RunAtRandom({.seed = 11}).faults.size();
  RandomRunSpec spec{.seed = 11};
  for (size_t fault = 0; fault < faults; ++fault) spec.without.insert(fault);
  EXPECT_THAT(TraceOf({.seed = 11}), ::testing::HasSubstr("fault: "));
  EXPECT_THAT(TraceOf(spec), ::testing::Not(::testing::HasSubstr("fault: ")));
}

}  // namespace
}  // namespace th
