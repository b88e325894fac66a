// Readers that hand on what they receive: they fill, and are never a source, a copy or a replica.
#include <string>

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

class StreamingTest : public ::testing::Test {
 protected:
  // A rank of a group with one streaming reader.
  TestRank Streamer(const std::string& group, uint32_t rank = 0, uint32_t ranks = 1) {
    TestRank streamer(hub_, group, rank, ranks);
    streamer.buffer_name = "stream-1.1";
    streamer.role = BufferRole::kStreaming;
    streamer.JoinAndRegister();
    return streamer;
  }
  static void Progress(TestRank& rank, const VersionInfo& version) {
    FillProgress progress{rank.key(), version.sequence, {}};
    progress.segments.Add(SegmentIndex(0));
    rank.Say(progress);
  }

  RegistryHarness hub_;
};

TEST_F(StreamingTest, ItIsAssignedASourceAndEndsAsItBegan) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  EXPECT_EQ(streamer.Fill().buffer, trainer.address());
  streamer.Done();
  EXPECT_EQ(streamer.Finished().outcome, UpdateOutcome::kMoved);
  const Catalog catalog = hub_.List();
  ASSERT_EQ(catalog.models.size(), 1u);
  ASSERT_EQ(catalog.models[0].versions.size(), 1u);
  ASSERT_EQ(catalog.models[0].versions[0].replicas.size(), 1u);
  EXPECT_EQ(catalog.models[0].versions[0].replicas[0].group, "trainer");
}

TEST_F(StreamingTest, ItsSourceComesWithTheVersion) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  const AssignSources assigned = streamer.Heard<AssignSources>();
  ASSERT_EQ(assigned.sources.size(), 1u);
  EXPECT_EQ(assigned.sources.front().buffer, trainer.address());
  streamer.Ready();
  EXPECT_TRUE(streamer.HearsNone<AssignSources>()) << "it has it already";
  streamer.Done();
  EXPECT_EQ(streamer.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(StreamingTest, OneThatComesBackInMidFillHearsItsSourceAgain) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  const VersionInfo version = streamer.Heard<OperationResolved>().version;
  streamer.Heard<AssignSources>();  // and its stream breaks before it has said that it is ready
  ASSERT_TRUE(streamer.Resume({streamer.Filling(version, {})}));
  StartOperation again = streamer.UpdateRequest();
  again.key.number = streamer.number;
  again.resolved = version;
  streamer.Start(again);
  EXPECT_EQ(streamer.Fill().buffer, trainer.address());
}

TEST_F(StreamingTest, WhileItFillsItIsNobodysSource) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  streamer.Fill();
  Progress(streamer, streamer.Heard<OperationResolved>().version);
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer.address());
}

TEST_F(StreamingTest, OneThatIsDoneAndWaitsForItsGroupIsNobodysSource) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank first = Streamer("engine", 0, 2);
  TestRank second = Streamer("engine", 1, 2);
  first.Update();
  second.Update();
  first.FillWhole();
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer.address());
  EXPECT_TRUE(first.HearsNone<OperationFinished>());
  second.FillWhole();
  EXPECT_EQ(first.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(StreamingTest, NobodyWaitsForWhatItHasWhenTheLastHolderGoes) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  streamer.Fill();
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  rollout.Fill();
  trainer.Unpublish();
  trainer.Done();
  ASSERT_OK(trainer.Finished().status);
  hub_.Advance(absl::Seconds(2));  // the grace of a reader whose last source was whole
  EXPECT_THAT(rollout.Finished().status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(streamer.Finished().status, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(StreamingTest, ItsCopyDoesNotCountAsRetained) {
  ASSERT_OK(hub_.Command({"keep", SetRetention{1, ""}}).status);
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  streamer.FillWhole();
  StartOperation unpublish = trainer.UnpublishRequest();
  unpublish.keep_retained = true;
  trainer.Start(unpublish);
  const OperationFinished finished = trainer.Finished();
  EXPECT_TRUE(finished.must_offload) << finished.status;
}

TEST_F(StreamingTest, ItCannotPublish) {
  TestRank streamer = Streamer("engine");
  streamer.Publish("one");
  EXPECT_THAT(streamer.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keeps nothing")));
}

TEST_F(StreamingTest, OneRankCannotKeepWhatAnotherHandsOn) {
  Streamer("engine", 0, 2);
  TestRank keeper(hub_, "engine", 1, 2);
  keeper.buffer_name = "stream-1.1";
  ASSERT_TRUE(keeper.Join());
  EXPECT_THAT(keeper.Register(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("is the caller's buffer at rank ")));
}

TEST_F(StreamingTest, OneThatCannotStartEndsItForThoseThatWait) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank first = Streamer("engine", 0, 2);
  TestRank second = Streamer("engine", 1, 2);
  first.Update();
  second.Say(RankFailed{{second.buffer, OperationNumber(1)}, absl::NotFoundError("no embedd")});
  EXPECT_THAT(first.Finished().status,
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("rank engine/1"), HasSubstr("no embedd"))));
  EXPECT_FALSE(second.HearsNone<OperationFinished>());
}

TEST_F(StreamingTest, OneThatComesAfterAFailureHearsItAndTheNextIsInCommonAgain) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank first = Streamer("engine", 0, 2);
  first.Say(RankFailed{{first.buffer, OperationNumber(1)}, absl::NotFoundError("no embedd")});
  TestRank second = Streamer("engine", 1, 2);
  second.Update();
  EXPECT_THAT(second.Finished().status,
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("rank engine/0"), HasSubstr("no embedd"))));
  for (TestRank* rank : {&first, &second}) {
    rank->buffer = BufferId(2);
    rank->buffer_name = "stream-1.2";
    rank->number = OperationNumber();
    ASSERT_OK(rank->Register());
    rank->Update();
  }
  first.FillWhole();
  second.FillWhole();
  EXPECT_EQ(first.Finished().outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(second.Finished().outcome, UpdateOutcome::kMoved);
}

// Ranks that call one receive with two forms: the first to register has its buffer.
class StreamFormsTest : public StreamingTest {
 protected:
  StreamFormsTest() : second_(hub_, "engine", 1, 2) {
    second_.buffer_name = "stream-1.1";
    second_.role = BufferRole::kStreaming;
    second_.form = "fp8";
    EXPECT_TRUE(second_.Join());
  }
  void ExpectRefused() {
    EXPECT_THAT(second_.Register(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("has form fp8 at rank engine/1 and form hf at rank "
                                   "engine/0; all ranks must register it in one form")));
  }

  TestRank trainer_ = Trainer(hub_, "one");
  TestRank first_ = Streamer("engine", 0, 2);
  TestRank second_;
};

TEST_F(StreamFormsTest, WhoWaitsForARankThatIsRefusedHearsSo) {
  first_.Update();
  ExpectRefused();
  EXPECT_THAT(first_.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank engine/1: "), HasSubstr("form fp8"))));
}

TEST_F(StreamFormsTest, WhoStartsAfterARankWasRefusedHearsSo) {
  ExpectRefused();
  first_.Update();
  EXPECT_THAT(first_.Finished().status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank engine/1: "), HasSubstr("form fp8"))));
  ExpectRefused();  // who is refused again changes nothing
  EXPECT_TRUE(first_.HearsNone<OperationFinished>());
}

TEST_F(StreamingTest, WhatARankHasStartedItFailsAsAnyOther) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  streamer.Fail(absl::DataLossError("no"));
  EXPECT_THAT(streamer.Finished().status, StatusIs(absl::StatusCode::kDataLoss));
  streamer.Fail(absl::DataLossError("again"));
  EXPECT_TRUE(streamer.HearsNone<OperationFinished>());
}

TEST_F(StreamingTest, OneThatWaitsForNothingIsNotListed) {
  TestRank trainer = Trainer(hub_, "one");
  Streamer("engine");
  EXPECT_TRUE(hub_.List().models.at(0).idle.empty());
}

TEST_F(StreamingTest, AfterARestartItGoesOnFromTheSameSourceAndFeedsNobody) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer = Streamer("engine");
  streamer.Update();
  streamer.Fill();
  const VersionInfo version = streamer.Heard<OperationResolved>().version;
  hub_.Restart();
  ASSERT_TRUE(trainer.Resume({trainer.Holding(version, /*publisher=*/true, "one")}));
  ASSERT_TRUE(streamer.Resume({streamer.Filling(version, {trainer.address()})}));
  hub_.Advance(RegistryLimits().recovery_window);
  TestRank rollout = Rollout(hub_, "rollout");
  rollout.Update();
  EXPECT_EQ(rollout.Fill().buffer, trainer.address());
}

// A group of two of which one rank has heard that they have moved, and the other has not when the
// server dies.
class StreamingRestartTest : public StreamingTest {
 protected:
  void SetUp() override {
    for (TestRank* rank : {&knows_, &waits_}) rank->Update();
    for (TestRank* rank : {&knows_, &waits_}) rank->FillWhole();
    moved_ = knows_.Finished();
    ASSERT_EQ(moved_.outcome, UpdateOutcome::kMoved);
    hub_.TakeAll<OperationFinished>(waits_.connection);  // never heard
    hub_.Restart();
    ASSERT_TRUE(trainer_.Resume({trainer_.Holding(moved_.version, /*publisher=*/true, "one")}));
  }
  void ComeBackKnowing() {
    AnnouncedBuffer ended = knows_.Announced();
    ended.last_finished = FinishedOperation{.number = knows_.number,
                                            .kind = OperationKind::kUpdate,
                                            .outcome = UpdateOutcome::kMoved,
                                            .version = moved_.version};
    ASSERT_TRUE(knows_.Resume({ended}));
  }
  void ComeBackWaiting() {
    AnnouncedBuffer done = waits_.Holding(moved_.version, /*publisher=*/false, "one");
    done.held->group_committed = false;
    ASSERT_TRUE(waits_.Resume({done}));
    StartOperation again = waits_.UpdateRequest();
    again.key.number = waits_.number;
    again.resolved = moved_.version;
    waits_.Start(again);
    EXPECT_TRUE(waits_.HearsNone<AssignSources>()) << "it has all of it";
    waits_.FillWhole();
  }
  void ExpectMoved() {
    const OperationFinished heard = waits_.Finished();
    EXPECT_OK(heard.status);
    EXPECT_EQ(heard.outcome, UpdateOutcome::kMoved);
    EXPECT_EQ(heard.version.sequence, moved_.version.sequence);
    EXPECT_EQ(hub_.registry().ReplicaPhaseName(TestModel(), "engine", "stream-1.1"), "idle");
  }

  TestRank trainer_ = Trainer(hub_, "one");
  TestRank knows_ = Streamer("engine", 0, 2);
  TestRank waits_ = Streamer("engine", 1, 2);
  OperationFinished moved_;
};

TEST_F(StreamingRestartTest, WhoHasNotHeardThatTheyMovedHearsItFromWhoHas) {
  ComeBackKnowing();
  ComeBackWaiting();
  ExpectMoved();
}

TEST_F(StreamingRestartTest, AlsoWhoComesBackFirst) {
  ComeBackWaiting();
  ComeBackKnowing();
  ExpectMoved();
}

}  // namespace
}  // namespace th
