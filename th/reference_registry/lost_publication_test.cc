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

// A group of two ranks that has published "step-1".
class LostPublicationTest : public ::testing::Test {
 protected:
  // Another group, which has received it.
  std::vector<TestRank> Readers() {
    std::vector<TestRank> readers = JoinedGroup(hub_, "rollout", 2);
    UpdateWhole(readers);
    return readers;
  }

  RegistryHarness hub_;
  std::vector<TestRank> group_ = JoinedGroup(hub_, "trainer", 2);
  const VersionInfo version_ = PublishWhole(group_, "step-1");
};

TEST_F(LostPublicationTest, AReplacementEndsWhatTheOthersHavePublishedAndAllPublishItAgain) {
  group_[1].Disconnect();
  EXPECT_TRUE(group_[0].HearsNone<PublicationRefused>());  // it may come back
  TestRank again(hub_, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  const PublicationRefused refused = group_[0].Heard<PublicationRefused>();
  EXPECT_EQ(refused.version, version_.sequence);
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("trainer/1"), HasSubstr("step-1"))));
  EXPECT_THAT(hub_.Log(),
              HasSubstr("step-1 (#1.1): rank trainer/1 is gone: it was replaced by a new process"));

  ASSERT_OK(again.Register());
  group_[0].number = OperationNumber();
  group_[0].Publish("step-1");
  again.Publish("step-1");
  EXPECT_EQ(group_[0].Finished().version.sequence, version_.sequence);
  EXPECT_EQ(again.Finished().version.sequence, version_.sequence);
  EXPECT_TRUE(group_[0].HearsNone<PublicationRefused>());
  Readers();
}

TEST_F(LostPublicationTest, ARankThatIsGoneForGoodEndsWhatTheOthersHavePublished) {
  group_[1].Disconnect();
  PassAlive(hub_, {&group_[0]}, RegistryLimits().lease);
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 is gone: its lease has ended");
  EXPECT_THAT(hub_.Log(), HasSubstr("publication lost: step-1"));
}

TEST_F(LostPublicationTest, ARankThatLeavesAloneEndsWhatTheOthersHavePublished) {
  group_[1].Say(Leave{});
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 is gone: it left");
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("publication lost"))) << "it meant to";
}

TEST_F(LostPublicationTest, ARankThatFreesItsBufferEndsWhatTheOthersHavePublished) {
  group_[1].Say(UnregisterBuffer{group_[1].buffer});
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 unregistered buffer weights");
}

TEST_F(LostPublicationTest,
       ARankThatDoesNotComeBackToARestartedServerEndsWhatTheOthersHavePublished) {
  hub_.Restart();
  ASSERT_TRUE(group_[0].Resume({group_[0].Holding(version_, /*publisher=*/true, "step-1w0")}));
  EXPECT_TRUE(group_[0].HearsNone<PublicationRefused>()) << "the other may come back";
  PassAlive(hub_, {&group_[0]}, absl::Seconds(30));
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 has not come back since");
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

TEST_F(LostPublicationTest, ARankThatComesBackTooLateHearsThatItsGroupPublishesAgain) {
  const std::vector<AnnouncedBuffer> held = {HoldingFirst(group_[0], version_),
                                             HoldingFirst(group_[1], version_)};
  hub_.Restart();
  ASSERT_TRUE(group_[0].Resume({held[0]}));
  PassAlive(hub_, {&group_[0]}, absl::Seconds(30));
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 has not come back since");
  group_[0].Publish("step-1");
  ASSERT_TRUE(group_[1].Resume({held[1]}));
  HearsThatItsPublicationIsLost(group_[1], "another rank of the group has lost its part");
  group_[1].Publish("step-1");
  for (TestRank& rank : group_) EXPECT_EQ(rank.Finished().version.sequence, version_.sequence);
  Readers();
}

// The replaced process of the rank comes first, and gives way to the one that took its place.
TEST(GroupPublicationTest, AMemberThatTakesItsRankBackBringsItsPart) {
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
TEST_F(LostPublicationTest, WhoComesBackToItAfterAFailedUpdateHearsOfIt) {
  std::vector<TestRank> others = JoinedGroup(hub_, "others", 2);
  PublishWhole(others, "step-2");
  for (TestRank& rank : group_) rank.Update();
  group_[0].Ready();
  group_[1].Say(Leave{});
  EXPECT_FALSE(group_[0].Finished().status.ok());
  group_[0].Say(RegisterBuffer{group_[0].Holding(version_, /*publisher=*/true, "step-1w0")});
  HearsThatItsPublicationIsLost(group_[0], "another rank of the group has lost its part");
}

TEST(GroupPublicationTest, WhoHearsOfThePublishAfterItsLossHearsOfThatToo) {
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

TEST_F(LostPublicationTest, ARankThatGaveItUpWhileTheServerWasAwayEndsItForTheOthers) {
  const AnnouncedBuffer held = HoldingFirst(group_[0], version_);
  hub_.Restart();
  ASSERT_TRUE(group_[0].Resume({held}));
  ASSERT_TRUE(group_[1].Resume({group_[1].Announced()}));  // it has not heard the result
  group_[1].Fail(absl::DeadlineExceededError("no answer in time"));
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 gave up its publish");
}

TEST(GroupPublicationTest, ARolledBackPublicationIsNotLostAgain) {
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

TEST_F(LostPublicationTest, AnUnpublishOfItWaitsForNobody) {
  group_[1].Say(Leave{});
  group_[0].Unpublish();
  EXPECT_THAT(group_[0].Finished().status, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Its stream was broken when another rank was gone.
TEST_F(LostPublicationTest, WhoWasAwayWhenItsPublicationWasLostHearsOfItOnItsReturn) {
  group_[0].Disconnect();
  group_[1].Say(Leave{});
  ASSERT_TRUE(group_[0].Resume({group_[0].Holding(version_, /*publisher=*/true, "step-1w0")}));
  HearsThatItsPublicationIsLost(group_[0], "another rank of the group has lost its part");
}

TEST_F(LostPublicationTest, ARankThatIsGoneLeavesWhatWasReceivedToTheOthers) {
  std::vector<TestRank> readers = Readers();
  readers[1].Say(Leave{});
  EXPECT_TRUE(readers[0].HearsNone<PublicationRefused>());
}

TEST_F(LostPublicationTest, AReplacementLeavesWhatWasReceivedToTheOthers) {
  std::vector<TestRank> readers = Readers();
  readers[1].Disconnect();
  TestRank again(hub_, "rollout", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  EXPECT_TRUE(readers[0].HearsNone<PublicationRefused>());
}

TEST_F(LostPublicationTest, WhoWasAwayDuringTheReplacementHearsOfItOnItsReturn) {
  hub_.Restart();
  TestRank again(hub_, "trainer", 1, 2, LayoutNamed("w1"));
  ASSERT_TRUE(again.Join());
  ASSERT_OK(again.Register());
  ASSERT_TRUE(group_[0].Resume({group_[0].Holding(version_, true, "step-1")}));
  EXPECT_EQ(group_[0].Heard<PublicationRefused>().status.code(), absl::StatusCode::kUnavailable);
  group_[0].number = OperationNumber();
  group_[0].Publish("step-1");
  again.number = OperationNumber();
  again.Publish("step-1");
  hub_.Advance(absl::Seconds(30));
  EXPECT_OK(group_[0].Finished().status);
}

TEST_F(LostPublicationTest, ARankThatGaveItUpEndsWhatTheOthersHavePublished) {
  group_[1].Fail(absl::DeadlineExceededError("no answer in time"));
  HearsThatItsPublicationIsLost(group_[0], "rank trainer/1 gave up its publish");
}

}  // namespace
}  // namespace th
