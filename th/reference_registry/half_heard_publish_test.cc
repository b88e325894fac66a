// A publish whose OK only some ranks heard before the server restarted: the others ask for it
// again, hear its result, and announce what they hold by then.
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

class HalfHeardPublishTest : public ::testing::Test {
 protected:
  HalfHeardPublishTest() : group_(JoinedGroup(hub_, "trainer", 2)) {
    for (TestRank& rank : group_) rank.Publish("step-1");
    version_ = group_[0].Finished().version;
    hub_.Restart();
  }

  void FirstComesBack() {
    AnnouncedBuffer held = group_[0].Holding(version_, /*publisher=*/true, "w0");
    held.last_finished = FinishedOperation{
        .number = group_[0].number, .kind = OperationKind::kPublish, .version = version_};
    ASSERT_TRUE(group_[0].Resume({held}));
  }
  // The second rank has not heard the result: its publication has no name.
  void SecondComesBack() {
    TestRank& second = group_[1];
    ASSERT_TRUE(second.Resume({second.Announced()}));
    StartOperation again = second.PublishRequest("step-1");
    again.key.number = second.number;
    second.Start(again);
  }
  void SecondHearsTheResult() {
    const OperationFinished finished = group_[1].Finished();
    EXPECT_OK(finished.status);
    EXPECT_EQ(finished.version, version_);
  }
  void SecondAnnounces() {
    TestRank& second = group_[1];
    AnnouncedBuffer held = second.Holding(version_, /*publisher=*/true, "w1");
    held.held->root.reset();
    second.Say(RegisterBuffer{held});
    second.Seal(version_.sequence, "w1");
    EXPECT_TRUE(second.HearsNone<PublicationRefused>());
  }
  void PassTheAdoption() {
    PassAlive(hub_, {&group_[0], &group_[1]}, RegistryLimits().lease + absl::Seconds(1));
  }
  void ExpectHeldByBoth() {
    EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "holding");
    std::vector<TestRank> readers = JoinedGroup(hub_, "rollout", 2);
    for (TestRank& reader : readers) reader.Update();
    EXPECT_EQ(readers[0].Fill().buffer, group_[0].address());
    EXPECT_EQ(readers[1].Fill().buffer, group_[1].address());
  }

  RegistryHarness hub_;
  std::vector<TestRank> group_;
  VersionInfo version_;
};

TEST_F(HalfHeardPublishTest, ARankThatHearsTheResultFromAnotherRankHoldsWhatItAnnouncesThen) {
  FirstComesBack();
  SecondComesBack();
  SecondHearsTheResult();
  SecondAnnounces();
  PassTheAdoption();
  ExpectHeldByBoth();
}

TEST_F(HalfHeardPublishTest, ARankThatAsksBeforeTheResultIsKnownDoesSoToo) {
  SecondComesBack();
  FirstComesBack();
  SecondHearsTheResult();
  SecondAnnounces();
  PassTheAdoption();
  ExpectHeldByBoth();
}

TEST_F(HalfHeardPublishTest, WhatIsAnnouncedAfterTheAdoptionCompletesTheReplicaAgain) {
  FirstComesBack();
  SecondComesBack();
  SecondHearsTheResult();
  PassTheAdoption();
  EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "idle");
  SecondAnnounces();
  ExpectHeldByBoth();
}

}  // namespace
}  // namespace th
