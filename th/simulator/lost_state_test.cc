// A server that comes back with less than it knew, on a virtual clock: everybody comes back by
// itself, and the rules of the checker that say so can fail.
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

using Ranks = std::vector<SimulatedWorker*>;

auto Done() { return Field(&OperationDone::status, IsOk()); }
auto Moved() { return AllOf(Done(), Field(&OperationDone::outcome, UpdateOutcome::kMoved)); }

class LostStateTest : public ::testing::TestWithParam<EpochAfterLoss> {
 protected:
  void SetUp() override {
    trainer_ = cluster.JoinGroup("trainer", 2);
    rollout_ = cluster.JoinGroup("rollout-1", 2);
    cluster.PublishAll(trainer_, "step-1");
    EXPECT_THAT(cluster.UpdateAll(rollout_), Each(Moved()));
  }
  void RunAndLook(absl::Duration duration) {
    constexpr absl::Duration kBetween = absl::Milliseconds(500);
    for (absl::Duration done; done < duration; done += kBetween) {
      cluster.Run(kBetween);
      cluster.LookAtCatalog();
    }
  }
  void ExpectThatAllGoOn() {
    for (const Ranks& ranks : {trainer_, rollout_}) {
      for (const SimulatedWorker* rank : ranks) EXPECT_FALSE(rank->ended().has_value());
    }
    EXPECT_THAT(
        cluster.UpdateAll(cluster.JoinGroup("late", 2), VersionLabel::Parse("step-1").value()),
        Each(Moved()));
    EXPECT_THAT(cluster.UnpublishAll(trainer_), Each(Done()));
    EXPECT_THAT(cluster.PublishAll(trainer_, "step-2"), Each(Done()));
    EXPECT_THAT(cluster.UpdateAll(rollout_), Each(Moved()));
    for (const SimulatedWorker* rank : rollout_) EXPECT_TRUE(rank->buffer().Is("step-2"));
  }

  ClusterHarness cluster;
  Ranks trainer_, rollout_;
};

TEST_P(LostStateTest, EverybodyComesBackToAServerThatKnowsNothing) {
  cluster.server_faults().LoseState(absl::Milliseconds(300), GetParam());
  RunAndLook(absl::Seconds(8));
  ExpectThatAllGoOn();
}

TEST_P(LostStateTest, EverybodyComesBackToAServerWhoseStateIsOlder) {
  cluster.server_faults().RestoreState(absl::Seconds(1), GetParam());
  cluster.Run(absl::Milliseconds(100));
  cluster.UnpublishAll(trainer_);
  cluster.PublishAll(trainer_, "step-1");
  RunAndLook(absl::Seconds(8));
  ExpectThatAllGoOn();
}

// A process that has stood still since before, and comes back with the claim of another state.
TEST_P(LostStateTest, AMemberThatWasStoppedMeanwhileComesBackToo) {
  rollout_[0]->Stop();
  cluster.server_faults().LoseState(absl::Milliseconds(300), GetParam());
  cluster.Run(RegistryLimits().lease + absl::Seconds(1));
  rollout_[0]->Continue();
  RunAndLook(absl::Seconds(8));
  ExpectThatAllGoOn();
}

INSTANTIATE_TEST_SUITE_P(Epochs, LostStateTest,
                         ::testing::Values(EpochAfterLoss::kHigher, EpochAfterLoss::kEqual,
                                           EpochAfterLoss::kFromTheDisk));

// ---- the rules

TEST(LostStateRulesTest, WhoIsPutOutWithoutCauseIsNoticed) {
  ClusterHarness cluster;
  SimulatedWorker* const rank = cluster.JoinGroup("rollout-1", 1)[0];
  rank->HearForATest(Refused{.status = absl::AbortedError("the membership has ended")});
  EXPECT_THAT(cluster.TakeViolations(), Each(HasSubstr("rollout-1/0 is put out")));
  EXPECT_TRUE(rank->ended().has_value());
}

// The rival was started before the rank, joined after it, and is dead when the rank hears of it.
TEST(LostStateRulesTest, WhoHasBeenReplacedByADeadProcessIsPutOutWithCause) {
  ClusterHarness cluster;
  const RankName name{"rollout-1", Rank(0)};
  SimulatedWorker* const rival = cluster.StartRank(name, 1);
  rival->Stop();
  SimulatedWorker* const rank = cluster.JoinRank(name, 1);
  rank->Stop();
  rank->BreakStream();
  rival->Continue();
  cluster.Run(absl::Seconds(2));
  ASSERT_TRUE(rival->ready());
  rival->Kill();
  rank->Continue();
  cluster.Run(absl::Seconds(2));
  EXPECT_TRUE(rank->ended().has_value());
  EXPECT_THAT(cluster.TakeViolations(), IsEmpty());
}

TEST(LostStateRulesTest, WhoIsReplacedWhileItsStreamStandsIsNoticed) {
  ClusterHarness cluster;
  SimulatedWorker* const rank = cluster.JoinGroup("rollout-1", 1)[0];
  rank->HearForATest(Refused{.status = absl::AbortedError("it was replaced by a new process")});
  EXPECT_THAT(cluster.TakeViolations(), Contains(HasSubstr("was replaced while its stream stood")));
}

TEST(LostStateRulesTest, AGroupThatIsNotListedIsNoticed) {
  ClusterHarness cluster;
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.LookAtCatalog();
  // The rank's word, of which nobody else knows, makes the server forget what it holds.
  trainer[0]->SayUnheardForATest(BufferReset{trainer[0]->buffer_id()});
  for (int look = 0; look < 10; ++look) {
    cluster.Run(absl::Milliseconds(500));
    cluster.LookAtCatalog();
  }
  EXPECT_THAT(cluster.TakeViolations(), Contains(HasSubstr("trainer serves #")));
}

// The one that was given the rank later has it, whoever comes back first.
TEST(LostStateRulesTest, AProcessThatWasReplacedWhileItWasAwayIsPutOutByItsReplacement) {
  ClusterHarness cluster;
  SimulatedWorker* const before = cluster.JoinGroup("rollout-1", 1)[0];
  before->Stop();
  cluster.KillServer();
  cluster.StartServer();
  SimulatedWorker* const after = cluster.JoinRank({"rollout-1", Rank(0)}, 1);
  after->Stop();
  cluster.KillServer();
  cluster.StartServer();
  before->Continue();
  ASSERT_TRUE(cluster.RunUntil([&] { return before->session().joined(); }));
  after->Continue();
  ASSERT_TRUE(cluster.RunUntil([&] { return before->ended().has_value(); }));
  EXPECT_FALSE(after->ended().has_value());
  EXPECT_THAT(cluster.TakeViolations(), IsEmpty());
}

}  // namespace
}  // namespace th
