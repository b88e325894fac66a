// Publish and unpublish of one rank.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");
constexpr OperationNumber kFirst(1);
constexpr OperationNumber kSecond(2);

class PublishTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    buffer = worker.RegisteredBuffer();
  }
  absl::Status Publish(CallId call = CallId(1), const std::string& label = "step-1") {
    return worker.Handle(event::Publish{call, buffer, {.label = Label(label)}}).status;
  }
  absl::Status Unpublish(CallId call = CallId(2), absl::Duration drain = absl::Seconds(5)) {
    return worker.Handle(event::Unpublish{call, buffer, {.drain_timeout = drain}}).status;
  }
  OperationDone TheDone() {
    const auto done = worker.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }
  BufferState State() { return worker.session.buffer_state(buffer); }

  SessionHarness worker;
  BufferId buffer;
};

TEST_F(PublishTest, FreezesAtOnceAndTellsTheServer) {
  ASSERT_OK(Publish());
  EXPECT_EQ(State(), BufferState::kPublished);
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].kind, OperationKind::kPublish);
  EXPECT_EQ(starts[0].key, (OperationKey{buffer, kFirst}));
  EXPECT_EQ(starts[0].label, Label("step-1"));
  EXPECT_EQ(starts[0].generation, worker.session.buffer_generation(buffer));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
}

TEST_F(PublishTest, TheNamedVersionIsServedAndSealed) {
  ASSERT_OK(Publish());
  worker.Drop();
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  const auto serving = worker.Take<ServingChanged>();
  ASSERT_THAT(serving, SizeIs(1));
  EXPECT_EQ(serving[0].version, kStep1.sequence);
  const auto sealing = worker.Take<StartSealing>();
  ASSERT_THAT(sealing, SizeIs(1));
  EXPECT_EQ(sealing[0].version, kStep1.sequence);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.call, CallId(1));
  EXPECT_EQ(done.version, kStep1);
  worker.Handle(event::Sealed{buffer, kStep1.sequence, sealing[0].generation, TestRoot(3)});
  const auto sealed = worker.TakeSent<ShardSealed>();
  ASSERT_THAT(sealed, SizeIs(1));
  EXPECT_EQ(sealed[0].root, TestRoot(3));
}

TEST_F(PublishTest, SumsOfAnEarlierPublicationAreNotReported) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  const BufferGeneration old = worker.session.buffer_generation(buffer);
  ASSERT_OK(Unpublish());
  worker.Drop();
  worker.Handle(event::Sealed{buffer, kStep1.sequence, old, TestRoot(3)});
  EXPECT_THAT(worker.TakeSent<ShardSealed>(), IsEmpty());
}

TEST_F(PublishTest, ARefusedPublishLeavesTheBufferWritable) {
  ASSERT_OK(Publish());
  worker.Finish({buffer, kFirst}, OperationKind::kPublish,
                absl::AlreadyExistsError("step-1 has other content"));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "PUBLISH_REFUSED run=r1 model=qwen3 version=step-1 rank=rollout-3/1: step-1 "
                       "has other content; buffer writable; operation 1"));
}

TEST_F(PublishTest, AnAnswerWithoutASequenceIsAnError) {
  ASSERT_OK(Publish());
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus());
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(State(), BufferState::kWritable);
}

TEST_F(PublishTest, ASilentServerDoesNotHoldThePublisherForEver) {
  ASSERT_OK(worker
                .Handle(event::Publish{
                    CallId(1), buffer, {.label = Label("step-1"), .timeout = absl::Seconds(10)}})
                .status);
  worker.Pass(absl::Milliseconds(11'999));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Drop();
  worker.Pass(absl::Milliseconds(1));
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("PUBLISH_DEADLINE")));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.TakeSentNames(), ::testing::Contains("RankFailed"));
}

TEST_F(PublishTest, ARankThatGaveUpIgnoresTheLateName) {
  ASSERT_OK(worker
                .Handle(event::Publish{
                    CallId(1), buffer, {.label = Label("step-1"), .timeout = absl::Seconds(1)}})
                .status);
  worker.Pass(absl::Seconds(3));
  worker.Drop();
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
}

struct BadPublish {
  const char* name;
  PublishRequest request;
  absl::StatusCode code;
};
class BadPublishTest : public ::testing::TestWithParam<BadPublish> {};

TEST_P(BadPublishTest, IsRefusedAndChangesNothing) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  EXPECT_THAT(worker.Handle(event::Publish{CallId(1), buffer, GetParam().request}).status,
              StatusIs(GetParam().code, HasSubstr("PUBLISH_REFUSED ")));
  EXPECT_EQ(worker.session.buffer_state(buffer), BufferState::kWritable);
  EXPECT_THAT(worker.Take<SendToServer>(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPublishTest,
    ::testing::Values(BadPublish{"NoLabel", {}, absl::StatusCode::kInvalidArgument},
                      BadPublish{"NoTime",
                                 {.label = Label("a"), .timeout = absl::ZeroDuration()},
                                 absl::StatusCode::kInvalidArgument},
                      BadPublish{"HugeAttributes",
                                 {.label = Label("a"),
                                  .attributes = {{"k", std::string(kMaxAttributesBytes + 1, 'x')}}},
                                 absl::StatusCode::kInvalidArgument}),
    [](const auto& info) { return info.param.name; });

TEST_F(PublishTest, PublishedTwiceIsRefused) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  EXPECT_THAT(Publish(CallId(2), "step-2"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unpublish it first")));
}

TEST_F(PublishTest, UnknownBuffersAreRefused) {
  EXPECT_THAT(worker.Handle(event::Publish{CallId(1), BufferId(99), {.label = Label("a")}}).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(worker.Handle(event::Unpublish{CallId(1), BufferId(99), {}}).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// ---- unpublish

TEST_F(PublishTest, UnpublishDrainsTellsTheServerAndWaitsForTheGroup) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  const BufferGeneration before = worker.session.buffer_generation(buffer);
  ASSERT_OK(Unpublish());
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "RankDone"));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_GT(worker.session.buffer_generation(buffer), before);
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_OK(TheDone().status);
}

TEST_F(PublishTest, UnpublishCutsReadersThatDoNotLetGo) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  worker.Drop();
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kDraining);
  EXPECT_THAT(worker.Take<CutReaders>(), IsEmpty());
  worker.Pass(kSilentReader);
  const auto cut = worker.Take<CutReaders>();
  ASSERT_THAT(cut, SizeIs(1));
  EXPECT_THAT(cut[0].transfers, ElementsAre(TransferId(1)));
  EXPECT_THAT(worker.TakeSent<RankDone>(), IsEmpty());
  worker.Handle(event::ReaderReleased{TransferId(1)});
  const auto done = worker.TakeSent<RankDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].readers_cut, 1u);
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_EQ(TheDone().readers_cut, 1u);
}

TEST_F(PublishTest, AReaderThatTakesBytesHasUntilTheDrainDeadline) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  ASSERT_OK(Unpublish(CallId(2), absl::Seconds(1)));
  worker.Pass(absl::Milliseconds(400));
  worker.Handle(event::ReaderBytesMoved{TransferId(1)});
  worker.Pass(absl::Milliseconds(400));
  worker.Handle(event::ReaderBytesMoved{TransferId(1)});
  EXPECT_THAT(worker.Take<CutReaders>(), IsEmpty());
  worker.Pass(absl::Milliseconds(200));
  EXPECT_THAT(worker.Take<CutReaders>(), SizeIs(1));
}

TEST_F(PublishTest, AResultBeforeTheDrainEndedWaitsForIt) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  worker.Drop();
  ASSERT_OK(Unpublish());
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish,
                absl::DeadlineExceededError("rank 0"));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("UNPUBLISH_FAILED")));
  EXPECT_EQ(State(), BufferState::kWritable);
}

TEST_F(PublishTest, UnpublishEndsWellWithoutAServer) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.BreakStream();
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kWritable);
  worker.Pass(absl::Milliseconds(999));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Pass(absl::Milliseconds(1));
  EXPECT_OK(TheDone().status);
}

TEST_F(PublishTest, AnUnpublishThatEndedWithoutTheServerIsToldToTheNext) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.BreakStream();
  ASSERT_OK(Unpublish());
  worker.Pass(absl::Seconds(2));
  worker.Drop();
  worker.BreakStream();
  worker.Pass(absl::Seconds(1));
  const JoinRequest join = worker.OpenAndHearJoin();
  ASSERT_THAT(join.buffers, SizeIs(1));
  EXPECT_FALSE(join.buffers[0].held.has_value());
  ASSERT_TRUE(join.buffers[0].last_finished.has_value());
  EXPECT_EQ(join.buffers[0].last_finished->number, kSecond);
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "RankDone"));
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Rejoin(Epoch(3));
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
}

TEST_F(PublishTest, AServerThatOnlyAnswersQuestionsDoesNotHoldUnpublishForEver) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(
      worker.Handle(event::Unpublish{CallId(2), buffer, {.timeout = absl::Seconds(10)}}).status);
  for (int i = 0; i < 23; ++i) {
    worker.Pass(absl::Milliseconds(500));
    worker.Say(Alive{});
  }
  worker.Pass(absl::Milliseconds(499));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Pass(absl::Milliseconds(1));
  EXPECT_OK(TheDone().status);
}

TEST_F(PublishTest, UnpublishBeforeTheNameIsFineAndKeepsItsNumber) {
  ASSERT_OK(Publish());
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kWritable);
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.Take<StartSealing>(), IsEmpty());
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].kind, OperationKind::kPublish);
  EXPECT_EQ(done[1].kind, OperationKind::kUnpublish);
  EXPECT_OK(done[1].status);
}

TEST_F(PublishTest, PublishAfterAnUnpublishThatIsNotAnsweredYet) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Unpublish());
  ASSERT_OK(Publish(CallId(3), "step-2"));
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  worker.Finish({buffer, OperationNumber(3)}, OperationKind::kPublish, absl::OkStatus(),
                UpdateOutcome::kNone, kStep2);
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep2);
}

TEST_F(PublishTest, UnpublishOfNothingIsRefused) {
  EXPECT_THAT(Unpublish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("UNPUBLISH_REFUSED")));
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
}

TEST_F(PublishTest, OperationsAheadAreLimited) {
  absl::Status status;
  int begun = 0;
  for (; begun < 100; ++begun) {
    status = begun % 2 == 0 ? Publish(CallId(begun)) : Unpublish(CallId(begun));
    if (!status.ok()) break;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(begun, 8);
}

class SealTest : public PublishTest {
 protected:
  void SetUp() override {
    PublishTest::SetUp();
    ASSERT_OK(Publish());
    worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                  kStep1);
    generation = worker.session.buffer_generation(buffer);
  }
  void ReadOnce() {
    worker.Admit(TransferId(1), buffer, kStep1.sequence);
    worker.Handle(event::ReaderReleased{TransferId(1)});
    worker.Drop();
  }
  void Sealed() { worker.Handle(event::Sealed{buffer, kStep1.sequence, generation, TestRoot(3)}); }
  BufferGeneration generation;
};

TEST_F(SealTest, UnpublishOfWhatWasReadWaitsForItsSums) {
  ReadOnce();
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kDraining);
  worker.Pass(absl::Milliseconds(900));
  worker.Drop();
  Sealed();
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("ShardSealed", "RankDone"));
  EXPECT_EQ(State(), BufferState::kWritable);
}

TEST_F(SealTest, SumsAreAwaitedNoLongerThanTheDrain) {
  ReadOnce();
  ASSERT_OK(Unpublish(CallId(2), absl::Seconds(1)));
  worker.Pass(absl::Milliseconds(999));
  EXPECT_EQ(State(), BufferState::kDraining);
  worker.Pass(absl::Milliseconds(1));
  EXPECT_EQ(State(), BufferState::kWritable);
  Sealed();
  EXPECT_THAT(worker.TakeSent<ShardSealed>(), IsEmpty());
}

TEST_F(SealTest, WhatNobodyReadOrWhatIsSealedWaitsForNothing) {
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kWritable);
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  worker.PublishNamed(buffer, OperationNumber(3), kStep2);
  generation = worker.session.buffer_generation(buffer);
  worker.Handle(event::Sealed{buffer, kStep2.sequence, generation, TestRoot(3)});
  worker.Admit(TransferId(2), buffer, kStep2.sequence);
  worker.Handle(event::ReaderReleased{TransferId(2)});
  ASSERT_OK(Unpublish(CallId(4)));
  EXPECT_EQ(State(), BufferState::kWritable);
}

// The fill stopped what was summing, and the publisher's readers need the checksums.
TEST_F(SealTest, SummingGoesOnAfterAnUpdateThatWroteNothing) {
  worker.UpdateToFilling(buffer, kSecond, kStep2);
  worker.Handle(event::FillFailed{buffer, absl::UnavailableError("no source")});
  worker.Handle(event::FillStopped{buffer});
  EXPECT_EQ(State(), BufferState::kPublished);
  const auto sealing = worker.Take<StartSealing>();
  ASSERT_THAT(sealing, SizeIs(1));
  EXPECT_EQ(sealing[0].version, kStep1.sequence);
  EXPECT_EQ(sealing[0].generation, worker.session.buffer_generation(buffer));
  EXPECT_GT(sealing[0].generation, generation);
}

TEST_F(SealTest, AnEndedSessionDoesNotWaitForSums) {
  ReadOnce();
  worker.Handle(event::Leave{});
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_TRUE(worker.session.ended());
}

// ---- publications that cannot stay

TEST_F(PublishTest, APublicationThatTheServerTookBackIsDrainedAndTold) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Say(PublicationRefused{buffer, kStep1.sequence, absl::AbortedError("rolled back")});
  const auto lost = worker.Take<PublicationLost>();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].version, kStep1.sequence);
  EXPECT_EQ(State(), BufferState::kWritable);
}

TEST_F(PublishTest, WhyAPublicationWasLostIsKnownUntilTheNextPublish) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  EXPECT_OK(worker.session.lost_publication(buffer));
  worker.Say(PublicationRefused{buffer, kStep1.sequence, absl::UnavailableError("was replaced")});
  EXPECT_THAT(worker.session.lost_publication(buffer),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("PUBLICATION_LOST"), HasSubstr("was replaced"))));
  ASSERT_OK(Publish(CallId(3)));
  EXPECT_OK(worker.session.lost_publication(buffer));
}

TEST_F(PublishTest, TheNextUnpublishTellsOfALostPublicationAndKeepsTheNumbersAlike) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Say(PublicationRefused{buffer, kStep1.sequence, absl::AbortedError("rolled back")});
  worker.Drop();
  ASSERT_OK(Unpublish());
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "RankDone"));
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("PUBLICATION_LOST")));
  EXPECT_THAT(Unpublish(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(PublishTest, AnUnpublishTellsOfALostPublicationWhateverTheServerSays) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Say(PublicationRefused{buffer, kStep1.sequence, absl::UnavailableError("a rank is gone")});
  ASSERT_OK(Unpublish());
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish,
                absl::FailedPreconditionError("it is not published"));
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("PUBLICATION_LOST")));
}

TEST_F(PublishTest, ARefusalOfAnotherVersionIsIgnored) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Say(PublicationRefused{buffer, kStep2.sequence, absl::AbortedError("rolled back")});
  EXPECT_THAT(worker.Take<PublicationLost>(), IsEmpty());
  EXPECT_EQ(State(), BufferState::kPublished);
}

TEST_F(PublishTest, UnpublishAfterAFailedPublishIsAGroupOperationStill) {
  ASSERT_OK(Publish());
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::DeadlineExceededError("rank 0"));
  worker.Drop();
  ASSERT_OK(Unpublish());
  worker.Finish({buffer, kSecond}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// ---- the end of the session

TEST_F(PublishTest, AnEndedSessionStopsServing) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  worker.Drop();
  worker.Say(Refused{absl::AbortedError("replaced"), absl::InfiniteDuration()});
  EXPECT_THAT(worker.Take<CutReaders>(), SizeIs(1));
  EXPECT_EQ(State(), BufferState::kDraining);
  worker.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_EQ(State(), BufferState::kWritable);
}

TEST_F(PublishTest, APendingPublishEndsWithTheSession) {
  ASSERT_OK(Publish());
  worker.Say(Refused{absl::AbortedError("replaced"), absl::InfiniteDuration()});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("MEMBERSHIP_ENDED")));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_TRUE(worker.session.ended());
}

}  // namespace
}  // namespace th
