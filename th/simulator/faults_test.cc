// Sessions against a real registry, on a virtual clock: bytes that arrive wrong, and a trainer
// whose server stays away for long.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/cluster_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::th::testing::IsOk;

using Ranks = std::vector<SimulatedWorker*>;

auto Moved() {
  return AllOf(Field(&OperationDone::status, IsOk()),
               Field(&OperationDone::outcome, UpdateOutcome::kMoved));
}
auto Done() { return Field(&OperationDone::status, IsOk()); }

class FaultsTest : public ::testing::Test {
 protected:
  void ExpectHold(const Ranks& ranks, const std::string& label) {
    for (const SimulatedWorker* rank : ranks) {
      EXPECT_TRUE(rank->buffer().Is(label)) << rank->Name();
    }
  }

  ClusterHarness cluster;
};

// One source is assigned; the segment that it sends wrong comes from the spare holder.
TEST_F(FaultsTest, AFlippedBitIsFetchedFromTheSpareHolderAndTheNextReaderAvoidsTheSuspect) {
  const Ranks first = cluster.JoinGroup("trainer-a", 1), second = cluster.JoinGroup("trainer-b", 1);
  cluster.PublishAll(first, "step-1");
  cluster.PublishAll(second, "step-1");
  const Ranks reader = cluster.JoinGroup("rollout-1", 1), next = cluster.JoinGroup("rollout-2", 1);
  const std::vector<CallId> update = {reader[0]->Update()};
  ASSERT_TRUE(cluster.RunUntil([&] { return reader[0]->held_fraction() >= 0.1; }));
  SimulatedWorker* const suspect =
      reader[0]->segments_from().begin()->first == "trainer-a/0" ? first[0] : second[0];
  SimulatedWorker* const spare = suspect == first[0] ? second[0] : first[0];
  ASSERT_EQ(spare->segments_sent(), 0u);
  suspect->FlipNext(SegmentIndex(7));
  EXPECT_THAT(cluster.Await(reader, update), Each(Moved()));
  EXPECT_EQ(reader[0]->corrupt_segments(), 1u);
  EXPECT_GT(reader[0]->segments_from().at(spare->Name()), 0u);
  EXPECT_EQ(reader[0]->sources_lost(), 0u);
  ExpectHold(reader, "step-1");

  const uint64_t sent = suspect->segments_sent();
  EXPECT_THAT(cluster.UpdateAll(next), Each(Moved()));
  EXPECT_EQ(suspect->segments_sent(), sent);
}

TEST_F(FaultsTest, AFlippedBitIsFetchedFromTheSameHolderWhenThereIsNoOther) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1), reader = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  trainer[0]->FlipNext(SegmentIndex(7));
  EXPECT_THAT(cluster.UpdateAll(reader), Each(Moved()));
  EXPECT_EQ(reader[0]->corrupt_segments(), 1u);
  EXPECT_EQ(trainer[0]->segments_sent(), kHarnessSegments + 1);
  ExpectHold(reader, "step-1");
}

// The next endpoint is tried where the first one answers nobody.
TEST_F(FaultsTest, AnEndpointThatIsBrokenCostsNothingWhereAnotherWorks) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1), reader = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  trainer[0]->BreakEndpoint();
  EXPECT_THAT(cluster.UpdateAll(reader), Each(Moved()));
  EXPECT_EQ(reader[0]->sources_lost(), 0u);
  ExpectHold(reader, "step-1");
}

TEST_F(FaultsTest, AnEndpointThatBreaksInMidFillIsLeftForOneThatWorksAndNothingComesTwice) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1), reader = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> update = {reader[0]->Update()};
  ASSERT_TRUE(cluster.RunUntil([&] { return reader[0]->held_fraction() >= 0.5; }));
  trainer[0]->BreakEndpoint();
  EXPECT_THAT(cluster.Await(reader, update), Each(Moved()));
  EXPECT_EQ(reader[0]->sources_lost(), 1u);
  EXPECT_EQ(reader[0]->segments_from().at("trainer/0"), kHarnessSegments);
  ExpectHold(reader, "step-1");
}

TEST_F(FaultsTest, APathThatBreaksInMidFillLosesNoSourceAndNothingComesTwice) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1), reader = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> update = {reader[0]->Update()};
  ASSERT_TRUE(cluster.RunUntil([&] { return reader[0]->held_fraction() >= 0.5; }));
  trainer[0]->BreakPath();
  EXPECT_THAT(cluster.Await(reader, update), Each(Moved()));
  EXPECT_EQ(reader[0]->sources_lost(), 0u);
  EXPECT_EQ(reader[0]->segments_from().at("trainer/0"), kHarnessSegments);
  ExpectHold(reader, "step-1");
}

// Two ranks, whose numbers have to stay alike.
TEST_F(FaultsTest, AThousandStepsWithoutAServerAreHeardOfWhenItIsBack) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2),
              rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-0");
  cluster.UnpublishAll(trainer);
  cluster.KillServer();
  cluster.Run(absl::Seconds(2));
  for (int step = 1; step <= 1'000; ++step) {
    for (SimulatedWorker* rank : trainer) cluster.Publish(rank, absl::StrCat("step-", step));
    EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  }
  cluster.StartServer();
  EXPECT_THAT(cluster.PublishAll(trainer, "step-1001"), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1001");
}

// Nothing is closed: only the question that is not answered tells that nobody is there.
TEST_F(FaultsTest, ATrainerUnpublishesWhileTheServersHostIsSilentAndIsHeardOfAfterwards) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2),
              rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.SilenceServer();
  const absl::Time silent_since = cluster.now();
  EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  EXPECT_LE(cluster.now() - silent_since, absl::Seconds(2));
  for (SimulatedWorker* rank : trainer) cluster.Publish(rank, "step-2");
  EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  cluster.EndSilence();
  EXPECT_THAT(cluster.PublishAll(trainer, "step-3"), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-3");
}

TEST_F(FaultsTest, AServerThatRestartsBehindTheSilenceFindsEverybodyAgain) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2),
              rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.SilenceServer();
  cluster.KillServer();
  cluster.StartServer();
  cluster.Run(absl::Seconds(3));
  cluster.EndSilence();
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1");
  for (const SimulatedWorker* rank : rollout) EXPECT_FALSE(rank->ended().has_value());
}

// Eight ranks, three of which are other processes when the server is back.
TEST_F(FaultsTest, RanksThatAreReplacedWhileTheServerIsAwayFillAgainAndTheirGroupMoves) {
  const Ranks trainer = cluster.JoinGroup("trainer", 8);
  Ranks rollout = cluster.JoinGroup("rollout-1", 8);
  cluster.PublishAll(trainer, "step-1");
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  cluster.KillServer();
  for (const uint32_t rank : {1u, 4u, 7u}) {
    rollout[rank]->Kill();
    rollout[rank] = cluster.StartRank({"rollout-1", Rank(rank)}, 8);
  }
  cluster.Run(absl::Seconds(1));
  cluster.StartServer();
  ASSERT_TRUE(cluster.RunUntil([&] {
    return std::all_of(rollout.begin(), rollout.end(),
                       [](const SimulatedWorker* rank) { return rank->ready(); });
  }));
  cluster.Run(absl::Seconds(2));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Done()));
  ExpectHold(rollout, "step-1");
}

}  // namespace
}  // namespace th
