// A rank of a publishing group is gone: the others hold parts of a version that is whole nowhere
// among them. They hear so, and all publish again.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

void HearsThatItsPublicationIsLost(TestRank& rank, const std::string& why) {
  EXPECT_THAT(rank.Heard<PublicationRefused>().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(why), HasSubstr("publish it again on all ranks"))));
}

TEST(LostPublicationTest, AReplacementEndsWhatTheOthersHavePublishedAndAllPublishItAgain) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  group[1].Disconnect();
  EXPECT_TRUE(group[0].HearsNone<PublicationRefused>());  // it may come back
  TestRank again(hub, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  const PublicationRefused refused = group[0].Heard<PublicationRefused>();
  EXPECT_EQ(refused.version, version.sequence);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("trainer/1"), HasSubstr("step-1"))));
  EXPECT_THAT(hub.Log(),
              HasSubstr("step-1 (#1.1): rank trainer/1 is gone: it was replaced by a new process"));

  ASSERT_OK(again.Register());
  group[0].number = OperationNumber();
  group[0].Publish("step-1");
  again.Publish("step-1");
  EXPECT_EQ(group[0].Finished().version.sequence, version.sequence);
  EXPECT_EQ(again.Finished().version.sequence, version.sequence);
  EXPECT_TRUE(group[0].HearsNone<PublicationRefused>());
  std::vector<TestRank> readers = JoinedGroup(hub, "rollout", 2);
  UpdateWhole(readers);
}

TEST(LostPublicationTest, ARankThatIsGoneForGoodEndsWhatTheOthersHavePublished) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  PublishWhole(group, "step-1");
  group[1].Disconnect();
  PassAlive(hub, {&group[0]}, RegistryLimits().lease);
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 is gone: its lease has ended");
  EXPECT_THAT(hub.Log(), HasSubstr("publication lost: step-1"));
}

TEST(LostPublicationTest, ARankThatLeavesAloneEndsWhatTheOthersHavePublished) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  PublishWhole(group, "step-1");
  group[1].Say(Leave{});
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 is gone: it left");
}

TEST(LostPublicationTest, ARankThatFreesItsBufferEndsWhatTheOthersHavePublished) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  PublishWhole(group, "step-1");
  group[1].Say(UnregisterBuffer{group[1].buffer});
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 unregistered buffer weights");
}

TEST(LostPublicationTest,
     ARankThatDoesNotComeBackToARestartedServerEndsWhatTheOthersHavePublished) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  hub.Restart();
  ASSERT_TRUE(group[0].Resume({group[0].Holding(version, /*publisher=*/true, "step-1w0")}));
  EXPECT_TRUE(group[0].HearsNone<PublicationRefused>()) << "the other may come back";
  PassAlive(hub, {&group[0]}, absl::Seconds(30));
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 has not come back since");
}

TEST(LostPublicationTest, ARankThatComesBackTooLateHearsThatItsGroupPublishesAgain) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  const auto held = [&](const TestRank& rank) {
    return rank.Holding(version, /*publisher=*/true,
                        absl::StrCat("step-1", rank.layout.tensors()[0].name));
  };
  hub.Restart();
  ASSERT_TRUE(group[0].Resume({held(group[0])}));
  PassAlive(hub, {&group[0]}, absl::Seconds(30));
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 has not come back since");
  group[0].Publish("step-1");
  ASSERT_TRUE(group[1].Resume({held(group[1])}));
  HearsThatItsPublicationIsLost(group[1], "another rank of its group was gone");
  group[1].Publish("step-1");
  for (TestRank& rank : group) EXPECT_EQ(rank.Finished().version.sequence, version.sequence);
  std::vector<TestRank> readers = JoinedGroup(hub, "rollout", 2);
  UpdateWhole(readers);
}

// Its stream was broken when another rank was gone.
TEST(LostPublicationTest, WhoWasAwayWhenItsPublicationWasLostHearsOfItOnItsReturn) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  group[0].Disconnect();
  group[1].Say(Leave{});
  ASSERT_TRUE(group[0].Resume({group[0].Holding(version, /*publisher=*/true, "step-1w0")}));
  HearsThatItsPublicationIsLost(group[0], "another rank of its group was gone");
}

TEST(LostPublicationTest, ARankThatIsGoneLeavesWhatWasReceivedToTheOthers) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  std::vector<TestRank> readers = JoinedGroup(hub, "rollout", 2);
  UpdateWhole(readers);
  readers[1].Say(Leave{});
  EXPECT_TRUE(readers[0].HearsNone<PublicationRefused>());
}

TEST(LostPublicationTest, AReplacementLeavesWhatWasReceivedToTheOthers) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  std::vector<TestRank> readers = JoinedGroup(hub, "rollout", 2);
  UpdateWhole(readers);
  readers[1].Disconnect();
  TestRank again(hub, "rollout", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  EXPECT_TRUE(readers[0].HearsNone<PublicationRefused>());
}

TEST(LostPublicationTest, WhoWasAwayDuringTheReplacementHearsOfItOnItsReturn) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  hub.Restart();
  TestRank again(hub, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  ASSERT_OK(again.Register());
  ASSERT_TRUE(group[0].Resume({group[0].Holding(version, true, "step-1")}));
  EXPECT_EQ(group[0].Heard<PublicationRefused>().status.code(), absl::StatusCode::kUnavailable);
  group[0].number = OperationNumber();
  group[0].Publish("step-1");
  again.number = OperationNumber();
  again.Publish("step-1");
  hub.Advance(absl::Seconds(30));
  EXPECT_OK(group[0].Finished().status);
}

TEST(LostPublicationTest, ARankThatGaveItUpEndsWhatTheOthersHavePublished) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  PublishWhole(group, "step-1");
  group[1].Fail(absl::DeadlineExceededError("no answer in time"));
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 gave up its publish");
}

}  // namespace
}  // namespace th
