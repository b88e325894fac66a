#include "th/reference_registry/retention.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"
#include "th/reference_registry/retention_fixture.h"
#include "th/text/byte_size.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST_F(RetentionTest, NothingIsRetainedWithoutAPolicy) {
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  AskToUnpublish(trainer);
  EXPECT_OK(FinishUnpublish(trainer));
}

TEST_F(RetentionTest, TheLastReplicaIsOffloadedFirst) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  AskToUnpublish(trainer);
  const OperationFinished asked = trainer.Finished();
  EXPECT_OK(asked.status);
  EXPECT_TRUE(asked.must_offload);
  EXPECT_EQ(asked.version, one);
  EXPECT_TRUE(trainer.HearsNone<OperationResolved>());

  TestRank copy = Offloaded(trainer, one);
  AskToUnpublish(trainer);
  EXPECT_OK(FinishUnpublish(trainer));
  EXPECT_FALSE(IsReleased(copy));
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, copy.address());
}

TEST_F(RetentionTest, ALateRankHearsWhatToOffloadWhateverItHasAskedFor) {
  KeepLatest(2);
  std::vector<TestRank> pair;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    pair.emplace_back(hub_, "pair", rank, 2);
    JoinRequest request = pair.back().Request();
    request.offload_limit_bytes = kRoom;
    ASSERT_TRUE(pair.back().Join(request));
    ASSERT_OK(pair.back().Register());
  }
  const VersionInfo one = PublishWhole(pair, "one");
  TestRank next = Roomy("next");
  const VersionInfo two = Publish(next, "two");
  for (TestRank& rank : pair) AskToUpdate(rank);
  ASSERT_TRUE(pair[0].Finished().must_offload);
  pair[1].Finished();
  StartOperation late = pair[1].UpdateRequest(two.sequence);
  late.key.number = pair[1].number;
  late.keep_retained = true;
  pair[1].Say(late);
  const OperationFinished finished = pair[1].Finished();
  EXPECT_OK(finished.status);
  EXPECT_TRUE(finished.must_offload);
  EXPECT_EQ(finished.version, one);
}

TEST_F(RetentionTest, RanksThatDisagreeOnWhatIsRetainedEndTheirUpdateAndNothingIsTouched) {
  KeepLatest(1);
  std::vector<TestRank> trainer = JoinedGroup(hub_, "trainer", 2);
  PublishWhole(trainer, "one");
  std::vector<TestRank> pair = JoinedGroup(hub_, "pair", 2);
  StartOperation keeps = pair[0].UpdateRequest();
  keeps.keep_retained = true;
  pair[0].Start(keeps);
  pair[1].Update();
  for (TestRank& rank : pair) {
    EXPECT_THAT(rank.Finished().status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("pair/0"), HasSubstr("pair/1"), HasSubstr("retained"))));
  }
}

TEST_F(RetentionTest, ACopyIsListedAsTemporary) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  AskToUnpublish(trainer);
  ASSERT_TRUE(trainer.Finished().must_offload);
  const TestRank copy = Offloaded(trainer, one);
  std::vector<std::string> temporary;
  const Catalog catalog = hub_.List();
  for (const CatalogReplica& replica : catalog.models[0].versions[0].replicas) {
    if (IsTemporary(replica.role)) temporary.push_back(replica.buffer_name);
  }
  EXPECT_EQ(temporary, std::vector<std::string>{copy.buffer_name});
}

TEST_F(RetentionTest, AnUpdateInPlaceOffloadsFirstToo) {
  KeepLatest(2);
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  TestRank rollout = Roomy("rollout");
  rollout.Update();
  rollout.FillWhole();
  ASSERT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  AskToUnpublish(trainer);
  ASSERT_OK(FinishUnpublish(trainer));
  Publish(trainer, "two");

  AskToUpdate(rollout);
  const OperationFinished asked = rollout.Finished();
  EXPECT_TRUE(asked.must_offload);
  EXPECT_EQ(asked.version, one);
  Offloaded(rollout, one);
  AskToUpdate(rollout);
  rollout.FillWhole();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(RetentionTest, AnotherReplicaThatStaysIsEnough) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.FillWhole();
  ASSERT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  AskToUnpublish(trainer);
  EXPECT_OK(FinishUnpublish(trainer));
}

TEST_F(RetentionTest, AReplicaThatLeavesCountsAsGone) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  TestRank rollout = Roomy("rollout");
  rollout.Update();
  rollout.FillWhole();
  ASSERT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  AskToUnpublish(trainer);
  trainer.Heard<OperationResolved>();  // drains from here on
  AskToUnpublish(rollout);
  EXPECT_TRUE(rollout.Finished().must_offload);
}

TEST_F(RetentionTest, ASpotReplicaNeverCounts) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  TestRank spot(hub_, "spot", 0, 1);
  JoinRequest request = spot.Request();
  request.spot = true;
  request.offload_limit_bytes = kRoom;
  ASSERT_TRUE(spot.Join(request));
  ASSERT_OK(spot.Register());
  spot.Update();
  spot.FillWhole();
  ASSERT_EQ(spot.Finished().outcome, UpdateOutcome::kMoved);
  AskToUnpublish(spot);
  EXPECT_OK(FinishUnpublish(spot));
  AskToUnpublish(trainer);
  EXPECT_TRUE(trainer.Finished().must_offload);
}

TEST_F(RetentionTest, AReplicaThatFillsDoesNotCount) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  AskToUnpublish(trainer);
  EXPECT_TRUE(trainer.Finished().must_offload);
}

// Begun while there was no server.
TEST_F(RetentionTest, ACopyThatIsBegunTakesNoRoomFromItself) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer", LayoutNamed("w").bytes());
  const VersionInfo one = Publish(trainer, "one");
  TestRank copy = RegisteredCopy(trainer, one, trainer.number.Next());
  AskToUnpublish(trainer);
  const OperationFinished finished = trainer.Finished();
  EXPECT_OK(finished.status);
  EXPECT_TRUE(finished.must_offload);
}

TEST_F(RetentionTest, WithoutRoomItFailsAndStaysASource) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer", /*room=*/10);
  Publish(trainer, "one");
  AskToUnpublish(trainer);
  const OperationFinished finished = trainer.Finished();
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("rank trainer/0 has no room to offload its ")));
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("its offload limit is 10B")));
  EXPECT_TRUE(finished.must_offload);
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer.address());
}

TEST_F(RetentionTest, CopiesOfEarlierOffloadsTakeRoom) {
  KeepLatest(2);
  TestRank trainer = Roomy("trainer");
  const uint64_t bytes = trainer.layout.bytes();
  trainer = Roomy("other", bytes + bytes / 2);
  const VersionInfo one = Publish(trainer, "one");
  AskToUnpublish(trainer);
  ASSERT_TRUE(trainer.Finished().must_offload);
  Offloaded(trainer, one);
  AskToUnpublish(trainer);
  ASSERT_OK(FinishUnpublish(trainer));
  Publish(trainer, "two");
  AskToUnpublish(trainer);
  EXPECT_THAT(trainer.Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("of which ", ByteSizeText(bytes), " are taken"))));
}

TEST_F(RetentionTest, WhoeverDropsItTakesTheLastReplicaAway) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  trainer.Unpublish();
  trainer.Done();
  EXPECT_OK(trainer.Finished().status);
}

TEST_F(RetentionTest, APinnedVersionIsRetained) {
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  ASSERT_OK(hub_.Command({"pin", PinVersion{one.sequence, "me"}}).status);
  AskToUnpublish(trainer);
  EXPECT_TRUE(trainer.Finished().must_offload);
}

TEST_F(RetentionTest, APinOfAnotherFormIsNone) {
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  ASSERT_OK(hub_.Command({"pin", PinVersion{one.sequence, "me", absl::Hours(1), "fp8"}}).status);
  AskToUnpublish(trainer);
  EXPECT_OK(FinishUnpublish(trainer));
}

TEST_F(RetentionTest, AFormsOwnPolicyCountsForIt) {
  KeepLatest(1);
  KeepLatest(3, "fp8");
  TestRank trainer = Roomy("trainer");
  const VersionInfo one = Publish(trainer, "one");
  AskToUnpublish(trainer);
  ASSERT_TRUE(trainer.Finished().must_offload);
  TestRank copy = Offloaded(trainer, one);
  AskToUnpublish(trainer);
  ASSERT_OK(FinishUnpublish(trainer));
  Publish(trainer, "two");
  EXPECT_TRUE(IsReleased(copy)) << "only the newest is kept in the default form";
}

TEST_F(RetentionTest, ACopyWaitsForAllRanksOfTheGroup) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  EXPECT_TRUE(group[0].HearsNone<OperationFinished>());
  AskToUnpublish(group[1]);
  for (TestRank& rank : group) EXPECT_TRUE(rank.Finished().must_offload);
}

TEST_F(RetentionTest, ARankWithoutMemoryForItsCopyEndsThoseOfItsGroupWhichStaysPublished) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  for (TestRank& rank : group) AskToUnpublish(rank);
  std::vector<TestRank> copies;
  for (TestRank& rank : group) {
    ASSERT_TRUE(rank.Finished().must_offload);
    copies.push_back(RegisteredCopy(rank, one, rank.number));
  }
  for (TestRank& copy : copies) copy.Update(one.sequence);
  copies[0].FillWhole();
  copies[1].Fail(absl::ResourceExhaustedError("no memory"));
  for (TestRank& copy : copies) {
    EXPECT_THAT(copy.Finished().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                                 HasSubstr("rank trainer/1: no memory")));
    copy.Say(UnregisterBuffer{copy.buffer});
  }
  std::vector<TestRank> rollout = JoinedGroup(hub_, "rollout", 2);
  for (TestRank& rank : rollout) rank.Update();
  EXPECT_EQ(rollout[0].Fill().buffer, group[0].address());
  for (TestRank& rank : rollout) rank.Fail(absl::CancelledError("enough"));
  // Half a copy counts for nothing.
  for (TestRank& rank : group) AskToUnpublish(rank);
  for (TestRank& rank : group) EXPECT_TRUE(rank.Finished().must_offload);
}

TEST_F(RetentionTest, AnUnpublishThatFailsBeforeAllRanksHaveAskedStaysPublished) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  group[1].Publish("two");  // the ranks disagree
  const OperationFinished finished = group[0].Finished();
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(finished.must_offload);
  std::vector<TestRank> rollout = MakeGroup(hub_, "rollout", 2);
  JoinAndRegister(rollout);
  for (TestRank& rank : rollout) rank.Update();
  EXPECT_EQ(rollout[0].Fill().buffer, group[0].address());
}

// The operations of the two ranks never meet; each would wait for the other's copy.
TEST_F(RetentionTest, ARankThatLagsIsFoundThoughACopyComesFirst) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  for (int behind = 0; behind < 2; ++behind) {
    StartOperation request = group[0].UnpublishRequest();
    request.keep_retained = true;
    request.timeout = absl::Seconds(1);
    group[0].Start(request);
    if (behind > 0) AskToUnpublish(group[1]);
    hub_.Advance(absl::Seconds(1));
    const OperationFinished finished = group[0].Finished();
    EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                          HasSubstr("trainer/1 had not started it")));
    EXPECT_TRUE(finished.must_offload) << "the buffers stay published";
  }
  EXPECT_EQ(group[0].Heard<GroupChanged>().rank, group[1].name);
}

// A refused rank does not have the version's bytes: no copy of it could be made.
TEST_F(RetentionTest, AReplicaOfWhichARankWasRefusedIsNotKept) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  for (TestRank& rank : group) rank.Publish("one");
  const VersionInfo one = group[0].Finished().version;
  group[0].Seal(one.sequence, "one");
  group[1].Seal(one.sequence, "one");
  group[1].Seal(one.sequence, "something else");
  ASSERT_EQ(group[1].Heard<PublicationRefused>().version, one.sequence);
  for (TestRank& rank : group) AskToUnpublish(rank);
  for (TestRank& rank : group) rank.Heard<OperationResolved>();
}

}  // namespace
}  // namespace th
