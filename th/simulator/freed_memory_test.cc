// A caller frees a buffer while an update fills it, on a virtual clock: what is on its way lands
// before the caller hears of the end, or nowhere; and the rule of the checker that says so can
// fail.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/cluster_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

using Ranks = std::vector<SimulatedWorker*>;

// Several segments land within it.
constexpr absl::Duration kLongestStop = absl::Milliseconds(80);

auto Moved() {
  return AllOf(Field(&OperationDone::status, IsOk()),
               Field(&OperationDone::outcome, UpdateOutcome::kMoved));
}

class FreedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Ranks trainer = cluster.JoinGroup("trainer", 4);
    rollout_ = cluster.JoinGroup("rollout-1", 4);
    cluster.PublishAll(trainer, "step-1");
  }
  void UpdateHalf() {
    for (SimulatedWorker* rank : rollout_) updates_.push_back(rank->Update());
    ASSERT_TRUE(cluster.RunUntil([this] {
      return std::all_of(rollout_.begin(), rollout_.end(),
                         [](const SimulatedWorker* rank) { return rank->held_fraction() >= 0.25; });
    }));
  }
  uint64_t SegmentsAccepted() const {
    uint64_t segments = 0;
    for (const SimulatedWorker* rank : rollout_) {
      for (const auto& [source, from] : rank->segments_from()) segments += from;
    }
    return segments;
  }

  ClusterHarness cluster{kLongestStop};
  Ranks rollout_;
  std::vector<CallId> updates_;
};

TEST_F(FreedMemoryTest, TheCallEndsOnceWhatIsOnItsWayHasLandedAndTheRanksFillAgain) {
  UpdateHalf();
  const uint64_t before = SegmentsAccepted();
  for (SimulatedWorker* rank : rollout_) rank->RegisterAgain();
  const auto ends_at_once =
      std::count_if(rollout_.begin(), rollout_.end(), [this](const SimulatedWorker* rank) {
        return rank->done.contains(updates_[rank->spec().name.rank.value]);
      });
  EXPECT_LT(ends_at_once, 4);
  EXPECT_THAT(cluster.Await(rollout_, updates_),
              Each(Field(&OperationDone::status, StatusIs(absl::StatusCode::kCancelled))));
  EXPECT_GT(SegmentsAccepted(), before) << "nothing has landed after the stop";
  ASSERT_TRUE(cluster.RunUntil([this] {
    return std::all_of(rollout_.begin(), rollout_.end(),
                       [](const SimulatedWorker* rank) { return rank->ready(); });
  }));
  EXPECT_THAT(cluster.UpdateAll(rollout_), Each(Moved()));
  for (const SimulatedWorker* rank : rollout_) EXPECT_TRUE(rank->buffer().Is("step-1"));
}

TEST_F(FreedMemoryTest, AProcessThatDiesWhileItsFillStopsIsReplaced) {
  UpdateHalf();
  for (SimulatedWorker*& rank : rollout_) {
    rank->RegisterAgain();
    rank->Kill();
    rank = cluster.JoinRank(rank->spec().name, rank->spec().ranks);
  }
  EXPECT_THAT(cluster.UpdateAll(rollout_), Each(Moved()));
}

// ---- the rule

TEST_F(FreedMemoryTest, WritesIntoMemoryThatItsCallerHasBackAreNoticed) {
  for (SimulatedWorker* rank : rollout_) rank->AnswerStopsEarlyForATest();
  UpdateHalf();
  EXPECT_THAT(cluster.TakeViolations(), IsEmpty());
  for (SimulatedWorker* rank : rollout_) rank->RegisterAgain();
  cluster.Run(kLongestStop);
  EXPECT_THAT(cluster.TakeViolations(),
              Contains(HasSubstr("a fill writes into memory of which its caller has heard")));
}

}  // namespace
}  // namespace th
