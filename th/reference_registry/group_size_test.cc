// Members of one group that say different numbers of ranks: a process of a group that has ended
// comes back to a restarted server before the ranks that took the group's name.
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

class GroupSizeTest : public ::testing::Test {
 protected:
  // A group of four that ends with its leases, then one of two under its name, which publishes.
  GroupSizeTest() : stale_(MakeGroup(hub_, "trainer", 4)), live_(MakeGroup(hub_, "trainer", 2)) {
    JoinAndRegister(stale_);
    for (TestRank& rank : stale_) rank.Disconnect();
    hub_.Advance(RegistryLimits().lease + absl::Seconds(1));
    JoinAndRegister(live_);
    version_ = PublishWhole(live_, "step-1");
  }

  bool StaleComesBack(size_t rank) { return stale_[rank].Resume({stale_[rank].Announced()}); }
  bool LiveComesBack(size_t rank) {
    AnnouncedBuffer held = live_[rank].Holding(version_, /*publisher=*/true,
                                               "step-1" + live_[rank].layout.tensors()[0].name);
    held.last_finished = FinishedOperation{
        .number = live_[rank].number, .kind = OperationKind::kPublish, .version = version_};
    return live_[rank].Resume({held});
  }
  void ExpectLiveGoesOn() {
    PassAlive(hub_, {&live_[0], &live_[1]}, RegistryLimits().lease + absl::Seconds(1));
    EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "holding");
    for (TestRank& rank : live_) {
      EXPECT_TRUE(rank.HearsNone<GroupChanged>());
      rank.Unpublish();
    }
    for (TestRank& rank : live_) rank.Done();
    for (TestRank& rank : live_) EXPECT_OK(rank.Finished().status);
  }

  RegistryHarness hub_;
  std::vector<TestRank> stale_;
  std::vector<TestRank> live_;
  VersionInfo version_;
};

TEST_F(GroupSizeTest, LaterMembersTakeTheGroupFromStaleOnesThatComeBackFirst) {
  hub_.Restart();
  ASSERT_TRUE(StaleComesBack(0));
  ASSERT_TRUE(StaleComesBack(3));
  ASSERT_TRUE(LiveComesBack(1)) << live_[1].refused.status;
  for (const size_t rank : {0, 3}) {
    EXPECT_THAT(stale_[rank].Heard<Refused>().status,
                StatusIs(absl::StatusCode::kAborted, HasSubstr("2 ranks")));
    EXPECT_TRUE(hub_.IsClosed(stale_[rank].connection));
  }
  ASSERT_TRUE(LiveComesBack(0)) << live_[0].refused.status;
  ExpectLiveGoesOn();
}

TEST_F(GroupSizeTest, AStaleMemberThatComesBackSecondIsRefusedForGoodOnceNobodyElseCanCome) {
  hub_.Restart();
  ASSERT_TRUE(LiveComesBack(0));
  EXPECT_FALSE(StaleComesBack(3));
  EXPECT_THAT(stale_[3].refused.status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("4 ranks"), HasSubstr("trainer/0 says 2"))));
  EXPECT_LT(stale_[3].refused.retry_after, absl::Seconds(2));
  ASSERT_TRUE(LiveComesBack(1));
  ExpectLiveGoesOn();
  EXPECT_FALSE(StaleComesBack(3));
  EXPECT_THAT(stale_[3].refused.status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(stale_[3].refused.retry_after, absl::InfiniteDuration());
}

TEST_F(GroupSizeTest, TheLaterMembershipCountsAfterTheStateWasLostToo) {
  hub_.RestartEmpty(hub_.epoch());
  ASSERT_TRUE(StaleComesBack(3));
  ASSERT_TRUE(LiveComesBack(0)) << live_[0].refused.status;
  EXPECT_FALSE(StaleComesBack(2));
  EXPECT_THAT(stale_[2].refused.status, StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_TRUE(LiveComesBack(1)) << live_[1].refused.status;
  ExpectLiveGoesOn();
}

TEST_F(GroupSizeTest, AStaleMemberOfALiveRankIsRefusedForThatRank) {
  hub_.Restart();
  ASSERT_TRUE(LiveComesBack(0));
  EXPECT_FALSE(StaleComesBack(0));
  EXPECT_THAT(stale_[0].refused.status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("replaced")));
}

TEST_F(GroupSizeTest, ANewProcessOfAnotherSizeIsRefusedAtOnce) {
  hub_.Restart();
  ASSERT_TRUE(LiveComesBack(0));
  TestRank fresh(hub_, "trainer", 2, 3);
  EXPECT_FALSE(fresh.Join());
  EXPECT_THAT(fresh.refused.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("start all ranks with the same number")));
  EXPECT_EQ(fresh.refused.retry_after, absl::InfiniteDuration());
}

// The stale member is taken for the later one: it was confirmed in a later epoch. Then what the
// group says is wrong until its lease has ended.
TEST_F(GroupSizeTest, ALiveMemberThatIsAskedToWaitTakesTheGroupOnceTheOthersAreGone) {
  hub_.Restart();
  ASSERT_TRUE(StaleComesBack(3));
  hub_.RestartEmpty(hub_.epoch());
  ASSERT_TRUE(StaleComesBack(3));
  EXPECT_FALSE(LiveComesBack(0));
  EXPECT_THAT(live_[0].refused.status, StatusIs(absl::StatusCode::kUnavailable));
  stale_[3].Say(Leave{});
  ASSERT_TRUE(LiveComesBack(0)) << live_[0].refused.status;
  ASSERT_TRUE(LiveComesBack(1)) << live_[1].refused.status;
}

TEST_F(GroupSizeTest, AProcessThatIsAloneInItsGroupIsReplacedByOneOfAnotherSize) {
  TestRank alone(hub_, "rollout", 0, 1);
  alone.JoinAndRegister();
  alone.Disconnect();
  std::vector<TestRank> next = JoinedGroup(hub_, "rollout", 2);
  EXPECT_GT(next[0].generation, alone.generation);
  EXPECT_EQ(next[1].generation, next[0].generation);
}

}  // namespace
}  // namespace th
