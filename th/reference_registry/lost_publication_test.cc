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
using ::testing::Not;
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
  EXPECT_THAT(hub.Log(), Not(HasSubstr("publication lost"))) << "it meant to";
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

// The rank as a session announces it that has heard the result of its first publish, and the root.
AnnouncedBuffer HoldingFirst(TestRank& rank, const VersionInfo& version) {
  AnnouncedBuffer announced =
      rank.Holding(version, /*publisher=*/true,
                   absl::StrCat(version.label.text(), rank.layout.tensors()[0].name));
  announced.held->receipt = rank.Heard<RootKnown>().receipt;
  announced.last_finished = FinishedOperation{
      .number = OperationNumber(1), .kind = OperationKind::kPublish, .version = version};
  return announced;
}

TEST(LostPublicationTest, ARankThatComesBackTooLateHearsThatItsGroupPublishesAgain) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  const std::vector<AnnouncedBuffer> held = {HoldingFirst(group[0], version),
                                             HoldingFirst(group[1], version)};
  hub.Restart();
  ASSERT_TRUE(group[0].Resume({held[0]}));
  PassAlive(hub, {&group[0]}, absl::Seconds(30));
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 has not come back since");
  group[0].Publish("step-1");
  ASSERT_TRUE(group[1].Resume({held[1]}));
  HearsThatItsPublicationIsLost(group[1], "another rank of the group has lost its part");
  group[1].Publish("step-1");
  for (TestRank& rank : group) EXPECT_EQ(rank.Finished().version.sequence, version.sequence);
  std::vector<TestRank> readers = JoinedGroup(hub, "rollout", 2);
  UpdateWhole(readers);
}

// The replaced process of the rank comes first, and gives way to the one that took its place.
TEST(LostPublicationTest, AMemberThatTakesItsRankBackBringsItsPart) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  TestRank old = group[1];
  old.Disconnect();
  group[1] = TestRank(hub, "trainer", 1, 2, LayoutNamed("w1"));
  group[1].JoinAndRegister();
  group[0].number = OperationNumber();
  const VersionInfo version = PublishWhole(group, "step-1");
  const std::vector<AnnouncedBuffer> held = {HoldingFirst(group[0], version),
                                             HoldingFirst(group[1], version)};
  hub.Restart();
  ASSERT_TRUE(old.Resume({old.Announced()}));
  ASSERT_TRUE(group[0].Resume({held[0]}));
  ASSERT_TRUE(group[1].Resume({held[1]}));
  for (TestRank& rank : group) EXPECT_TRUE(rank.HearsNone<PublicationRefused>());
  PassAlive(hub, {&group[0], &group[1]}, absl::Seconds(30));
  EXPECT_EQ(hub.registry().ReplicaPhaseName(TestModel(), "trainer", "weights"), "holding");
}

// Nobody knows the checksums, so the same label is another version.
class UnsealedLossTest : public ::testing::TestWithParam<ChecksumAlgorithm> {};

TEST_P(UnsealedLossTest, WhatWasNotSealedIsPublishedAgainToo) {
  RegistryHarness hub;
  std::vector<TestRank> group;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    group.emplace_back(hub, "trainer", rank, 2, LayoutNamed("w", 4, GetParam()));
  }
  JoinAndRegister(group);
  for (TestRank& rank : group) rank.Publish("step-1");
  for (TestRank& rank : group) ASSERT_OK(rank.Finished().status);
  group[1].Disconnect();
  group[1] = TestRank(hub, "trainer", 1, 2, group[0].layout);
  group[1].JoinAndRegister();
  HearsThatItsPublicationIsLost(group[0], "it was replaced by a new process");
  group[0].Say(RegisterBuffer{group[0].Announced()});  // the group counts anew
  group[0].number = OperationNumber();
  for (TestRank& rank : group) rank.Publish("step-1");
  for (TestRank& rank : group) EXPECT_OK(rank.Finished().status);
}

INSTANTIATE_TEST_SUITE_P(Checksums, UnsealedLossTest,
                         ::testing::Values(ChecksumAlgorithm::kXxh3Leaves,
                                           ChecksumAlgorithm::kNone),
                         [](const auto& param) {
                           return param.param == ChecksumAlgorithm::kNone ? "None" : "Leaves";
                         });

// It had drained what it published, for an update of the group, and had written nothing yet.
TEST(LostPublicationTest, WhoComesBackToItAfterAFailedUpdateHearsOfIt) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  std::vector<TestRank> others = JoinedGroup(hub, "others", 2);
  PublishWhole(others, "step-2");
  for (TestRank& rank : group) rank.Update();
  group[0].Ready();
  group[1].Say(Leave{});
  EXPECT_FALSE(group[0].Finished().status.ok());
  group[0].Say(RegisterBuffer{group[0].Holding(version, /*publisher=*/true, "step-1w0")});
  HearsThatItsPublicationIsLost(group[0], "another rank of the group has lost its part");
}

TEST(LostPublicationTest, WhoHearsOfThePublishAfterItsLossHearsOfThatToo) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  for (TestRank& rank : group) rank.Publish("step-1");
  group[0].Disconnect();
  group[1].Say(Leave{});
  ASSERT_TRUE(group[0].Resume({group[0].Announced()}));
  StartOperation again = group[0].PublishRequest("step-1");
  again.key.number = group[0].number = OperationNumber(1);
  group[0].Start(again);
  EXPECT_OK(group[0].Finished().status);
  HearsThatItsPublicationIsLost(group[0], "another rank of the group has lost its part");
}

TEST(LostPublicationTest, ARankThatGaveItUpWhileTheServerWasAwayEndsItForTheOthers) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  const AnnouncedBuffer held = HoldingFirst(group[0], version);
  hub.Restart();
  ASSERT_TRUE(group[0].Resume({held}));
  ASSERT_TRUE(group[1].Resume({group[1].Announced()}));  // it has not heard the result
  group[1].Fail(absl::DeadlineExceededError("no answer in time"));
  HearsThatItsPublicationIsLost(group[0], "rank trainer/1 gave up its publish");
}

TEST(LostPublicationTest, ARolledBackPublicationIsNotLostAgain) {
  RegistryHarness hub;
  TestRank first = Trainer(hub, "step-1");
  const VersionInfo one = hub.List().models.at(0).versions.at(0).info;
  std::vector<TestRank> group = JoinedGroup(hub, "pair", 2);
  PublishWhole(group, "step-2");
  ASSERT_OK(hub.Command({"back", RollBack{one.sequence}}).status);
  EXPECT_THAT(group[0].Heard<PublicationRefused>().status, StatusIs(absl::StatusCode::kAborted));
  group[1].Disconnect();
  PassAlive(hub, {&first, &group[0]}, absl::Seconds(30));
  EXPECT_TRUE(group[0].HearsNone<PublicationRefused>());
  EXPECT_THAT(hub.Log(), Not(HasSubstr("publication lost")));
}

TEST(LostPublicationTest, AnUnpublishOfItWaitsForNobody) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  PublishWhole(group, "step-1");
  group[1].Say(Leave{});
  group[0].Unpublish();
  EXPECT_THAT(group[0].Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Its stream was broken when another rank was gone.
TEST(LostPublicationTest, WhoWasAwayWhenItsPublicationWasLostHearsOfItOnItsReturn) {
  RegistryHarness hub;
  std::vector<TestRank> group = JoinedGroup(hub, "trainer", 2);
  const VersionInfo version = PublishWhole(group, "step-1");
  group[0].Disconnect();
  group[1].Say(Leave{});
  ASSERT_TRUE(group[0].Resume({group[0].Holding(version, /*publisher=*/true, "step-1w0")}));
  HearsThatItsPublicationIsLost(group[0], "another rank of the group has lost its part");
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
