#include "th/reference_registry/retention.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/copy_name.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::th::testing::StatusIs;

constexpr uint64_t kRoom = uint64_t{1} << 40;

class RetentionTest : public ::testing::Test {
 protected:
  void KeepLatest(uint32_t versions, const std::string& form = "") {
    ASSERT_OK(
        hub_.Command({absl::StrCat("keep-", ++commands_), SetRetention{versions, form}}).status);
  }
  // A rank that has memory for offloads, joined and registered.
  TestRank Roomy(const std::string& group, uint64_t room = kRoom) {
    TestRank rank(hub_, group, 0, 1);
    JoinRequest request = rank.Request();
    request.offload_limit_bytes = room;
    EXPECT_TRUE(rank.Join(request)) << rank.refused.status;
    EXPECT_OK(rank.Register());
    return rank;
  }
  VersionInfo Publish(TestRank& rank, const std::string& label) {
    rank.Publish(label);
    const VersionInfo version = rank.Finished().version;
    rank.Seal(version.sequence, label);
    return version;
  }
  static void AskToUnpublish(TestRank& rank) {
    StartOperation request = rank.UnpublishRequest();
    request.keep_retained = true;
    rank.Start(request);
  }
  static void AskToUpdate(TestRank& rank) {
    StartOperation request = rank.UpdateRequest();
    request.keep_retained = true;
    rank.Start(request);
  }
  // The offload buffer of `rank` for its operation `number`, as a rank of its own on the same
  // stream.
  TestRank RegisteredCopy(const TestRank& rank, const VersionInfo& version,
                          OperationNumber number) {
    TestRank copy = rank;
    copy.buffer = BufferId(rank.buffer.value + 100);
    copy.buffer_name =
        CopyName(rank.buffer_name, CopyFor::kRetention, version.sequence, rank.generation, number);
    copy.number = OperationNumber();
    AnnouncedBuffer announced = copy.Announced();
    announced.role = BufferRole::kOffload;
    copy.Say(RegisterBuffer{announced});
    EXPECT_OK(copy.Heard<BufferRegistered>().status);
    return copy;
  }
  // Holding `version`, after the operation that was answered so.
  TestRank Offloaded(const TestRank& rank, const VersionInfo& version) {
    TestRank copy = RegisteredCopy(rank, version, rank.number);
    copy.Update(version.sequence);
    copy.FillWhole();
    EXPECT_EQ(copy.Finished().outcome, UpdateOutcome::kMoved);
    return copy;
  }
  bool IsReleased(const TestRank& copy) {
    for (const OffloadReleased& released : hub_.TakeAll<OffloadReleased>(copy.connection)) {
      if (released.buffer == copy.buffer) return true;
    }
    return false;
  }
  // Drains and ends it.
  static absl::Status FinishUnpublish(TestRank& rank) {
    rank.Heard<OperationResolved>();
    rank.Done();
    return rank.Finished().status;
  }

  RegistryHarness hub_;
  int commands_ = 0;
};

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
  EXPECT_TRUE(asked.offload_first);
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

TEST_F(RetentionTest, ALateRankHearsWhatToOffloadFirstWhateverItHasAskedFor) {
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
  AskToUpdate(pair[0]);
  ASSERT_TRUE(pair[0].Finished().offload_first);
  StartOperation late = pair[1].UpdateRequest(two.sequence);
  late.keep_retained = true;
  pair[1].Start(late);
  const OperationFinished finished = pair[1].Finished();
  EXPECT_OK(finished.status);
  EXPECT_TRUE(finished.offload_first);
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
  ASSERT_TRUE(trainer.Finished().offload_first);
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
  EXPECT_TRUE(asked.offload_first);
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
  EXPECT_TRUE(rollout.Finished().offload_first);
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
  EXPECT_TRUE(trainer.Finished().offload_first);
}

TEST_F(RetentionTest, AReplicaThatFillsDoesNotCount) {
  KeepLatest(1);
  TestRank trainer = Roomy("trainer");
  Publish(trainer, "one");
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  AskToUnpublish(trainer);
  EXPECT_TRUE(trainer.Finished().offload_first);
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
  EXPECT_TRUE(finished.offload_first);
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
                                        HasSubstr("its offload limit is 10 bytes")));
  EXPECT_TRUE(finished.offload_first);
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
  ASSERT_TRUE(trainer.Finished().offload_first);
  Offloaded(trainer, one);
  AskToUnpublish(trainer);
  ASSERT_OK(FinishUnpublish(trainer));
  Publish(trainer, "two");
  AskToUnpublish(trainer);
  EXPECT_THAT(trainer.Finished().status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("of which ", bytes, " are taken"))));
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
  EXPECT_TRUE(trainer.Finished().offload_first);
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
  ASSERT_TRUE(trainer.Finished().offload_first);
  TestRank copy = Offloaded(trainer, one);
  AskToUnpublish(trainer);
  ASSERT_OK(FinishUnpublish(trainer));
  Publish(trainer, "two");
  EXPECT_TRUE(IsReleased(copy)) << "only the newest is kept in the default form";
}

// ---- with a server that restarts

class RetentionRestartTest : public RetentionTest {
 protected:
  std::vector<TestRank> RoomyGroup() {
    std::vector<TestRank> group = MakeGroup(hub_, "trainer", 2);
    for (TestRank& rank : group) {
      JoinRequest request = rank.Request();
      request.offload_limit_bytes = kRoom;
      EXPECT_TRUE(rank.Join(request));
      EXPECT_OK(rank.Register());
    }
    return group;
  }
  // What the rank hears of an unpublish whose second is over.
  OperationFinished UnpublishWithinASecond(TestRank& rank, bool keep_retained) {
    StartOperation request = rank.UnpublishRequest();
    request.keep_retained = keep_retained;
    request.timeout = absl::Seconds(1);
    rank.Start(request);
    hub_.Advance(absl::Seconds(1));
    return rank.Finished();
  }
  static AnnouncedBuffer HoldingStill(const TestRank& rank, const VersionInfo& version) {
    return rank.Holding(version, /*publisher=*/true, version.label.text());
  }
  // It has heard that its unpublish waits for a copy.
  static AnnouncedBuffer WaitingForCopy(const TestRank& rank, const VersionInfo& version) {
    AnnouncedBuffer waits = HoldingStill(rank, version);
    waits.last_finished = FinishedOperation{.number = rank.number,
                                            .kind = OperationKind::kUnpublish,
                                            .version = version,
                                            .offload_first = true};
    return waits;
  }
  // It has drained while no server was there.
  static AnnouncedBuffer DrainedAlone(const TestRank& rank, const VersionInfo& version) {
    AnnouncedBuffer drained = rank.Announced();
    drained.last_finished = FinishedOperation{
        .number = rank.number, .kind = OperationKind::kUnpublish, .version = version};
    return drained;
  }
};

TEST_F(RetentionRestartTest, WhatARankHasHeardIsNotDecidedAnew) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  ASSERT_TRUE(group[0].Finished().offload_first);
  hub_.Restart();
  // The other rank is back first, and nothing is retained any more.
  AnnouncedBuffer unaware = HoldingStill(group[1], one);
  unaware.last_finished =
      FinishedOperation{.number = group[1].number, .kind = OperationKind::kPublish, .version = one};
  ASSERT_TRUE(group[1].Resume({unaware}));
  KeepLatest(0);
  AskToUnpublish(group[1]);
  hub_.Advance(absl::Seconds(2));  // beyond the recovery window
  EXPECT_TRUE(group[1].HearsNone<OperationResolved>());
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  EXPECT_TRUE(group[1].Finished().offload_first);
}

// Back first, it brings the end of the operation along; who waits for a copy hears that end.
TEST_F(RetentionRestartTest, ARankThatDrainedAloneAndIsBackFirstEndsItForItsGroup) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  AskToUnpublish(group[1]);
  ASSERT_TRUE(group[0].Finished().offload_first);
  hub_.Restart();
  ASSERT_TRUE(group[1].Resume({DrainedAlone(group[1], one)}));
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  StartOperation again = group[0].UnpublishRequest();
  again.key.number = group[0].number;
  again.keep_retained = true;
  group[0].Start(again);
  const OperationFinished finished = group[0].Finished();
  EXPECT_OK(finished.status);
  EXPECT_FALSE(finished.offload_first);
}

// A server before this one has heard its end: it does not ask again.
TEST_F(RetentionRestartTest, ARankThatDrainedAloneAndIsBackLastEndsItForItsGroup) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  for (TestRank& rank : group) AskToUnpublish(rank);
  ASSERT_TRUE(group[0].Finished().offload_first);
  hub_.Restart();
  ASSERT_TRUE(group[0].Resume({WaitingForCopy(group[0], one)}));
  ASSERT_TRUE(group[1].Resume({DrainedAlone(group[1], one)}));
  const OperationFinished finished = group[0].Finished();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.key.number, group[0].number);
  EXPECT_FALSE(finished.offload_first);
}

TEST_F(RetentionRestartTest, ARankThatDrainedAloneEndsItForThoseThatWaitForACopy) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  ASSERT_TRUE(group[0].Finished().offload_first);
  group[1].Unpublish();
  for (TestRank& rank : group) {
    const OperationFinished finished = rank.Finished();
    EXPECT_OK(finished.status);
    EXPECT_FALSE(finished.offload_first);
    EXPECT_TRUE(rank.HearsNone<GroupChanged>());
  }
  EXPECT_THAT(hub_.Log(), HasSubstr("retained version lost"));
  group[0].Update();
  EXPECT_TRUE(group[0].HearsNone<GroupChanged>()) << "the numbers go on";
}

TEST_F(RetentionRestartTest, WhoDrainsAloneLosesNothingThatAnotherGroupHolds) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  ASSERT_TRUE(group[0].Finished().offload_first);
  std::vector<TestRank> other = MakeGroup(hub_, "rollout", 2);
  JoinAndRegister(other);
  UpdateWhole(other);
  group[1].Unpublish();
  EXPECT_OK(group[1].Finished().status);
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("retained version lost")));
}

TEST_F(RetentionRestartTest, ARankThatDrainedAloneMakesAGroupThatHasGoneOnCountAnew) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  PublishWhole(group, "one");
  AskToUnpublish(group[0]);
  ASSERT_TRUE(group[0].Finished().offload_first);
  group[0].Update();
  group[1].Unpublish();
  const GroupChanged changed = group[0].Heard<GroupChanged>();
  EXPECT_EQ(changed.rank, group[1].name);
  EXPECT_GT(changed.group_generation, group[0].generation);
  EXPECT_FALSE(group[1].HearsNone<GroupChanged>());
}

// ---- what runs out of time before it was looked at takes nothing away

TEST_F(RetentionRestartTest, AnUnpublishThatRunsOutOfTimeBehindAnotherOperationStaysPublished) {
  std::vector<TestRank> group = RoomyGroup();
  group[0].Publish("one");
  const OperationFinished finished = UnpublishWithinASecond(group[0], /*keep_retained=*/true);
  EXPECT_THAT(finished.status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waited for operation 1")));
  EXPECT_TRUE(finished.offload_first);
}

TEST_F(RetentionRestartTest, AnUnpublishThatRunsOutOfTimeWhileTheServerRecoversStaysPublished) {
  KeepLatest(1);
  std::vector<TestRank> group = RoomyGroup();
  const VersionInfo one = PublishWhole(group, "one");
  hub_.Restart();
  AnnouncedBuffer still = HoldingStill(group[0], one);
  still.last_finished =
      FinishedOperation{.number = group[0].number, .kind = OperationKind::kPublish, .version = one};
  ASSERT_TRUE(group[0].Resume({still}));
  const OperationFinished finished = UnpublishWithinASecond(group[0], /*keep_retained=*/true);
  EXPECT_THAT(finished.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(finished.offload_first);
}

TEST_F(RetentionRestartTest, OneThatDoesNotAskToKeepItDrainsAsItSaid) {
  std::vector<TestRank> group = RoomyGroup();
  group[0].Publish("one");
  EXPECT_FALSE(UnpublishWithinASecond(group[0], /*keep_retained=*/false).offload_first);
}

// ---- the end of a copy

class ReleaseTest : public RetentionTest {
 protected:
  // A trainer that has unpublished "one", and its copy.
  void Offload() {
    trainer_.emplace(Roomy("trainer"));
    one_ = Publish(*trainer_, "one");
    AskToUnpublish(*trainer_);
    ASSERT_TRUE(trainer_->Finished().offload_first);
    copy_.emplace(Offloaded(*trainer_, one_));
    ASSERT_FALSE(IsReleased(*copy_));  // the trainer still counts, and may leave
    AskToUnpublish(*trainer_);
    ASSERT_OK(FinishUnpublish(*trainer_));
    ASSERT_FALSE(IsReleased(*copy_));
  }

  std::optional<TestRank> trainer_;
  std::optional<TestRank> copy_;
  VersionInfo one_;
};

TEST_F(ReleaseTest, AnotherReplicaTakesOver) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  EXPECT_FALSE(IsReleased(*copy_));
  rollout.Done();
  EXPECT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  EXPECT_TRUE(IsReleased(*copy_));
  copy_->Say(UnregisterBuffer{copy_->buffer});
  EXPECT_EQ(hub_.List().models[0].versions[0].replicas.size(), 1u);
}

TEST_F(ReleaseTest, ANewerCompleteVersionTakesItsPlace) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  Publish(*trainer_, "two");
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePolicyIsTakenBack) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  KeepLatest(0);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePinIsReleased) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"pin", PinVersion{one_.sequence, "me"}}).status);
  KeepLatest(0);
  EXPECT_FALSE(IsReleased(*copy_));
  ASSERT_OK(hub_.Command({"release", ReleasePin{one_.sequence, "me"}}).status);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ThePinExpires) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"pin", PinVersion{one_.sequence, "me", absl::Seconds(3)}}).status);
  KeepLatest(0);
  hub_.Advance(absl::Seconds(2));
  EXPECT_FALSE(IsReleased(*copy_));
  hub_.Advance(absl::Seconds(2));
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, AVersionThatIsRolledBackNeedsNoCopy) {
  KeepLatest(2);
  TestRank base = Roomy("base");
  Publish(base, "zero");
  ASSERT_NO_FATAL_FAILURE(Offload());
  ASSERT_OK(hub_.Command({"back", RollBack{*VersionLabel::Parse("zero")}}).status);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, ABrokenStreamReleasesNothing) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  copy_->Disconnect();
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_FALSE(IsReleased(*copy_));
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer.buffer, copy_->buffer);
}

TEST_F(ReleaseTest, ARankThatWasAwayHearsItWhenItIsBack) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  copy_->Disconnect();
  KeepLatest(0);
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, AReleasedCopyThatComesBackIsNoReplicaThatStays) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank rollout = Roomy("rollout");
  rollout.Update();
  rollout.Fill();
  copy_->Disconnect();
  rollout.Done();
  ASSERT_EQ(rollout.Finished().outcome, UpdateOutcome::kMoved);
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  EXPECT_TRUE(IsReleased(*copy_));
  AskToUnpublish(rollout);
  EXPECT_TRUE(rollout.Finished().offload_first);
}

TEST_F(ReleaseTest, ACopyOutlivesTheServer) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  hub_.Restart();
  AnnouncedBuffer held = copy_->Holding(one_, /*publisher=*/false, "one");
  held.role = BufferRole::kOffload;
  ASSERT_TRUE(copy_->Resume({trainer_->Announced(), held}));
  for (int second = 0; second < 10; ++second) {  // longer than a lease: nobody else comes back
    hub_.Advance(absl::Seconds(1));
    copy_->Say(Heartbeat{});
  }
  EXPECT_FALSE(IsReleased(*copy_));
  KeepLatest(0);
  EXPECT_TRUE(IsReleased(*copy_));
}

TEST_F(ReleaseTest, OfTwoCopiesOneStays) {
  KeepLatest(1);
  ASSERT_NO_FATAL_FAILURE(Offload());
  TestRank other = Roomy("other");
  TestRank second = Offloaded(other, one_);
  EXPECT_TRUE(IsReleased(*copy_));
  EXPECT_FALSE(IsReleased(second));
}

}  // namespace
}  // namespace th
