// The buffer of a streaming reader: one update, nothing kept, nobody served.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"
#include "th/worker_session/session_state.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
constexpr OperationNumber kFirst(1);

class StreamSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    buffer = Register(worker);
    announced = worker.TakeSent<RegisterBuffer>();
    worker.Say(BufferRegistered{buffer, absl::OkStatus()});
    worker.Drop();
  }
  // The next streaming receive of `session`, as far as its buffer.
  static BufferId Register(SessionHarness& session, int layout_seed = 0) {
    const StreamTicket ticket = session.Handle(event::BeginStream{}).ticket;
    const auto registered = session.BufferOf(event::RegisterStreamBuffer{
        ticket, "hf", TestLayout(layout_seed), SegmentSet::AllOf(kTestSegments)});
    EXPECT_OK(registered.status());
    return registered.ok() ? *registered : BufferId();
  }
  std::string NameOfNext() {
    worker.Drop();
    Register(worker);
    const auto named = worker.TakeSent<RegisterBuffer>();
    EXPECT_THAT(named, SizeIs(1));
    return named.empty() ? "" : named[0].buffer.buffer_name;
  }
  void FailNext(const absl::Status& why) {
    const StreamTicket ticket = worker.Handle(event::BeginStream{}).ticket;
    worker.Handle(event::FailStream{ticket, "hf", why});
  }
  void Receive() {
    worker.UpdateToFilling(buffer, kFirst, kStep1);
    worker.Handle(event::FirstWrite{buffer});
  }
  void Move() {
    worker.Finish({buffer, kFirst}, OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved,
                  kStep1);
  }
  void ReceiveWhole() {
    Receive();
    worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
    Move();
    worker.Handle(event::EndStream{buffer, absl::CancelledError("over")});
  }
  BufferState State() { return worker.session.buffer_state(buffer); }

  SessionHarness worker;
  BufferId buffer;
  std::vector<RegisterBuffer> announced;
};

TEST_F(StreamSessionTest, TheServerHearsThatItKeepsNothing) {
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].buffer.role, BufferRole::kStreaming);
  EXPECT_FALSE(announced[0].buffer.held.has_value());
}

TEST_F(StreamSessionTest, EachHasANameOfItsOwnThatOtherRanksFindToo) {
  SessionHarness other;
  other.Join();
  Register(other, 1);
  EXPECT_EQ(other.TakeSent<RegisterBuffer>()[0].buffer.buffer_name,
            announced[0].buffer.buffer_name);
  EXPECT_NE(NameOfNext(), announced[0].buffer.buffer_name);
}

TEST_F(StreamSessionTest, AGroupThatCountsAnewNamesThemAnew) {
  worker.Rejoin(Epoch(1), GroupGeneration(2));
  EXPECT_EQ(NameOfNext(), "stream-2.1");
}

// ---- the ranks of a group stay in step

TEST_F(StreamSessionTest, OneThatFailsBeforeItHasABufferCountsAndTheServerHearsWhy) {
  FailNext(absl::NotFoundError("no tensor is named embedd"));
  const auto registered = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  EXPECT_EQ(registered[0].buffer.buffer_name, "stream-1.2");
  EXPECT_EQ(registered[0].buffer.role, BufferRole::kStreaming);
  worker.Say(BufferRegistered{registered[0].buffer.buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
  const auto failed = worker.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key, (OperationKey{registered[0].buffer.buffer, kFirst}));
  EXPECT_THAT(failed[0].status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("embedd")));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty()) << "its caller has not asked the session";
  EXPECT_EQ(NameOfNext(), "stream-1.3");
}

TEST_F(StreamSessionTest, AFailureThatTheServerHasNotHeardIsToldToTheNextOne) {
  worker.BreakStream();
  FailNext(absl::NotFoundError("no"));
  EXPECT_THAT(worker.TakeSent<RankFailed>(), IsEmpty());
  worker.Rejoin(Epoch(2));
  const auto failed = worker.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_NE(failed[0].key.buffer, buffer);
}

TEST_F(StreamSessionTest, ATicketOfAnEarlierGenerationIsWorthNothing) {
  const StreamTicket ticket = worker.Handle(event::BeginStream{}).ticket;
  worker.Rejoin(Epoch(1), GroupGeneration(2));
  EXPECT_THAT(
      worker.BufferOf(event::RegisterStreamBuffer{ticket, "hf", TestLayout(0), FirstSegments(1)})
          .status(),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("ask again")));
  EXPECT_EQ(NameOfNext(), "stream-2.1");
}

TEST_F(StreamSessionTest, OneThatMovedIsKeptForRanksThatHaveNotHeardSo) {
  ReceiveWhole();
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), IsEmpty());
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  const JoinRequest join = worker.OpenAndHearJoin();
  ASSERT_THAT(join.buffers, SizeIs(1));
  EXPECT_FALSE(join.buffers[0].held.has_value());
  ASSERT_TRUE(join.buffers[0].last_finished.has_value());
  EXPECT_EQ(join.buffers[0].last_finished->outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(join.buffers[0].last_finished->version.sequence, kStep1.sequence);
}

TEST_F(StreamSessionTest, WhenTheNextOneHasMovedEveryRankHasHeardOfThoseBefore) {
  ReceiveWhole();
  const BufferId first = buffer;
  FailNext(absl::NotFoundError("no"));
  buffer = Register(worker);
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), IsEmpty());
  ReceiveWhole();
  const auto gone = worker.TakeSent<UnregisterBuffer>();
  ASSERT_THAT(gone, SizeIs(2));
  EXPECT_EQ(gone[0].buffer, first);
}

TEST_F(StreamSessionTest, OneOfAnEarlierGenerationIsUnregisteredWhenItEnds) {
  worker.Rejoin(Epoch(1), GroupGeneration(2));
  worker.Handle(event::EndStream{buffer, absl::CancelledError("over")});
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST_F(StreamSessionTest, OneThatCouldNotBeAskedForFailsForItsGroupToo) {
  worker.Handle(event::EndStream{buffer, absl::ResourceExhaustedError("too many operations")});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
  const auto failed = worker.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key, (OperationKey{buffer, kFirst}));
  EXPECT_THAT(failed[0].status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("too many")));
}

TEST(StreamSession, WhatIsKeptMakesRoomForTheNext) {
  SessionHarness worker(TestOptions(), {.max_buffers = 1});
  worker.Join();
  for (int receive = 0; receive < 2; ++receive) {
    worker.Handle(event::FailStream{worker.Handle(event::BeginStream{}).ticket, "hf",
                                    absl::NotFoundError("no")});
    EXPECT_THAT(worker.TakeSent<RegisterBuffer>(), SizeIs(1)) << receive;
  }
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST_F(StreamSessionTest, OneThatDidNotMoveIsKeptForLateRanks) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::EndStream{buffer, absl::CancelledError("the engine is full")});
  const auto failed = worker.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("full")));
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("full")));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), IsEmpty());
}

TEST_F(StreamSessionTest, OnlyTheLastFewAreKept) {
  for (size_t i = 0; i < session::kMaxStreamsKept; ++i) FailNext(absl::NotFoundError("no"));
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), IsEmpty());
  FailNext(absl::NotFoundError("no"));
  EXPECT_THAT(worker.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST(StreamSession, AloneInItsGroupItKeepsAndTellsNothing) {
  SessionOptions options = TestOptions();
  options.ranks = 1;
  SessionHarness worker(options);
  worker.Join();
  worker.Handle(event::FailStream{worker.Handle(event::BeginStream{}).ticket, "hf",
                                  absl::NotFoundError("no")});
  EXPECT_THAT(worker.TakeSent<RegisterBuffer>(), IsEmpty());
}

class LoneStreamSessionTest : public ::testing::Test {
 protected:
  static SessionOptions Alone() {
    SessionOptions options = TestOptions();
    options.ranks = 1;
    return options;
  }
  void SetUp() override {
    worker.Join();
    worker.Drop();
    const StreamTicket ticket = worker.Handle(event::BeginStream{}).ticket;
    buffer = *worker.BufferOf(
        event::RegisterStreamBuffer{ticket, "hf", TestLayout(0), SegmentSet::AllOf(kTestSegments)});
  }
  void Update() { worker.Handle(event::Update{CallId(1), buffer, UpdateRequest{}}); }

  SessionHarness worker{Alone()};
  BufferId buffer;
};

TEST_F(LoneStreamSessionTest, TheUpdateFollowsTheRegistrationAtOnce) {
  Update();
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("RegisterBuffer", "StartOperation"));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty()) << "it was told";
}

TEST_F(LoneStreamSessionTest, ARegistrationThatIsRefusedEndsTheUpdate) {
  Update();
  worker.Say(BufferRegistered{buffer, absl::ResourceExhaustedError("full")});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

// The server may have to be sent the layout before it answers the registration.
TEST_F(LoneStreamSessionTest, WhatHappensBeforeTheRegistrationIsAnsweredIsToldThen) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("ReadyToFill", "RankDone"));
}

TEST_F(LoneStreamSessionTest, AFailureBeforeTheRegistrationIsAnsweredIsToldThen) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillFailed{buffer, absl::DataLossError("no")});
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(worker.TakeSent<RankFailed>(), IsEmpty());
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<RankFailed>(), SizeIs(1));
}

TEST_F(LoneStreamSessionTest, OneThatComesBackWaitsForItsRegistration) {
  Update();
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.Drop();
  ASSERT_THAT(worker.OpenAndHearJoin().buffers, SizeIs(1));
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Handle(event::Tick{});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), SizeIs(1));
}

TEST_F(StreamSessionTest, InAGroupTheUpdateWaitsForTheRegistration) {
  buffer = Register(worker);
  worker.Drop();
  worker.Handle(event::Update{CallId(1), buffer, UpdateRequest{}});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSent<StartOperation>(), SizeIs(1));
}

// ---- its one update

TEST_F(StreamSessionTest, WhenTheGroupIsDoneNothingIsThere) {
  Receive();
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  EXPECT_THAT(worker.TakeSent<RankDone>(), SizeIs(1));
  Move();
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_OK(done[0].status);
  EXPECT_EQ(done[0].outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_EQ(worker.session.buffer_version(buffer), VersionInfo());
}

TEST_F(StreamSessionTest, APartIsDoneWithoutARootToCompare) {
  Receive();
  worker.Say(RootKnown{kStep1.sequence, {TestLayout(0)->digest(), TestRoot(9)}});
  worker.Handle(event::FillCompleted{buffer, Digest()});
  EXPECT_THAT(worker.TakeSent<RankDone>(), SizeIs(1));
}

TEST_F(StreamSessionTest, OfAPartOnlyWhatIsWantedIsMissing) {
  worker.Drop();
  const StreamTicket ticket = worker.Handle(event::BeginStream{}).ticket;
  const auto part =
      worker.BufferOf(event::RegisterStreamBuffer{ticket, "hf", TestLayout(0), FirstSegments(3)});
  ASSERT_OK(part.status());
  worker.Say(BufferRegistered{*part, absl::OkStatus()});
  worker.UpdateToFilling(*part, kFirst, kStep1);
  worker.Drop();
  worker.Handle(event::FillProgressed{*part, {FirstSegments(1), 4096}});
  worker.Pass(absl::Seconds(2));
  const auto reported = worker.TakeSent<FillProgress>();
  ASSERT_THAT(reported, SizeIs(1));
  EXPECT_EQ(reported[0].segments.count(), kTestSegments - 2);
  EXPECT_THAT(worker.session.Describe(*part), HasSubstr("1 of 3 segments"));
  worker.Handle(event::FillFailed{*part, absl::DataLossError("no")});
  worker.Handle(event::FillStopped{*part});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4.0 of 12.0 KiB received")));
}

TEST_F(StreamSessionTest, AWholeWithAnotherRootIsRefused) {
  Receive();
  worker.Say(RootKnown{kStep1.sequence, {TestLayout(0)->digest(), TestRoot(9)}});
  worker.Handle(event::FillCompleted{buffer, TestRoot(8)});
  worker.Handle(event::FillStopped{buffer});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(StreamSessionTest, AFailureLeavesNothingUndefined) {
  Receive();
  worker.Handle(event::FillFailed{buffer, absl::DataLossError("no")});
  worker.Handle(event::FillStopped{buffer});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(done[0].buffer_undefined);
  EXPECT_EQ(State(), BufferState::kWritable);
  const auto again = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_FALSE(again[0].buffer.held.has_value());
}

TEST_F(StreamSessionTest, NobodyIsLetIn) {
  Receive();
  worker.Admit(TransferId(5), buffer, kStep1.sequence);
  const auto decided = worker.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(decided[0].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("keeps")));
}

TEST_F(StreamSessionTest, ItIsNotPublished) {
  EXPECT_THAT(worker.Handle(event::Publish{CallId(1), buffer, {.label = kStep1.label}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keeps nothing")));
}

}  // namespace
}  // namespace th
