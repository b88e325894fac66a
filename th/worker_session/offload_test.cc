// Unpublish and update of what may be the last replica of a retained version: the server's leave to
// drain, the copy that it wants first, and the end of that copy.
#include "th/worker_session/offload.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");

class OffloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.PublishNamed(buffer_, OperationNumber(1), kStep1);
  }
  absl::Status Unpublish() {
    return worker_
        .Handle(event::Unpublish{CallId(2), buffer_, {.on_retention = OnRetention::kOffload}})
        .status;
  }
  absl::Status Update() {
    return worker_
        .Handle(event::Update{CallId(2), buffer_, {.on_retention = OnRetention::kOffload}})
        .status;
  }
  // The server's word on operation `number` of the buffer.
  void MustOffload(uint64_t number, OperationKind kind, absl::Status status = absl::OkStatus()) {
    worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(number)},
                                  .kind = kind,
                                  .status = std::move(status),
                                  .version = kStep1,
                                  .must_offload = true});
  }
  void MayDrain(uint64_t number) {
    worker_.Say(OperationResolved{{buffer_, OperationNumber(number)}, kStep1, std::nullopt});
  }
  void Finish(uint64_t number, OperationKind kind) {
    worker_.Finish({buffer_, OperationNumber(number)}, kind, absl::OkStatus());
  }
  // The copy that the session asks for, with memory and known to the server.
  BufferId AllocatedCopy() {
    const auto asked = worker_.Take<AllocateOffload>();
    EXPECT_THAT(asked, SizeIs(1));
    if (asked.empty()) return BufferId();
    const BufferId copy = asked.front().copy;
    worker_.Say(BufferRegistered{copy, absl::OkStatus()});
    worker_.Handle(event::OffloadAllocated{copy, absl::OkStatus()});
    return copy;
  }
  void Receive(BufferId copy) {
    worker_.Handle(event::FirstWrite{copy});
    worker_.Handle(event::FillCompleted{copy, TestRoot(1)});
  }
  void FillCopy(BufferId copy, absl::Status status = absl::OkStatus()) {
    const OperationKey key{copy, OperationNumber(1)};
    worker_.Say(OperationResolved{key, kStep1, std::nullopt});
    worker_.Say(worker_.Assignment(key, 1, kStep1.sequence, {7}));
    Receive(copy);
    worker_.Finish(key, OperationKind::kUpdate, std::move(status), UpdateOutcome::kMoved, kStep1);
  }
  // The buffer is unpublished, and its copy is held.
  BufferId OffloadedCopy() {
    EXPECT_OK(Unpublish());
    MustOffload(2, OperationKind::kUnpublish);
    const BufferId copy = AllocatedCopy();
    FillCopy(copy);
    MayDrain(3);
    Finish(3, OperationKind::kUnpublish);
    EXPECT_EQ(State(), BufferState::kWritable);
    worker_.Drop();
    return copy;
  }
  OperationDone TheDone() {
    const auto done = worker_.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }
  std::vector<StartOperation> StartsOf(BufferId buffer) {
    std::vector<StartOperation> starts = worker_.TakeSent<StartOperation>();
    std::erase_if(starts, [&](const StartOperation& start) { return start.key.buffer != buffer; });
    return starts;
  }
  BufferState State() { return worker_.session.buffer_state(buffer_); }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(OffloadTest, AnUnpublishServesOnUntilTheServerLetsItDrain) {
  ASSERT_OK(Unpublish());
  const auto starts = StartsOf(buffer_);
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_TRUE(starts[0].keep_retained);
  EXPECT_EQ(State(), BufferState::kPublished);
  MayDrain(2);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker_.TakeSent<RankDone>(), SizeIs(1));
  Finish(2, OperationKind::kUnpublish);
  EXPECT_OK(TheDone().status);
}

TEST_F(OffloadTest, WithoutRetentionItDrainsAtOnce) {
  ASSERT_OK(worker_.Handle(event::Unpublish{CallId(2), buffer_, {}}).status);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_FALSE(StartsOf(buffer_).at(0).keep_retained);
}

TEST_F(OffloadTest, NothingElseMayBeginMeanwhile) {
  ASSERT_OK(Unpublish());
  EXPECT_THAT(Unpublish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("an unpublish of the buffer is in progress")));
  EXPECT_THAT(Update(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("an unpublish of the buffer is in progress")));
  EXPECT_THAT(worker_.Handle(event::Reset{buffer_}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
  // Not even when the publication was lost meanwhile: the leave would take the next one away.
  worker_.Say(PublicationRefused{buffer_, kStep1.sequence, absl::AbortedError("rolled back")});
  EXPECT_THAT(worker_.Handle(event::Publish{CallId(3), buffer_, {.label = Label("step-2")}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("an unpublish of the buffer is in progress")));
}

TEST_F(OffloadTest, WithoutAServerAndWithoutRoomItDrainsAndLosesTheVersion) {
  worker_.BreakStream();
  ASSERT_OK(Unpublish());
  EXPECT_EQ(State(), BufferState::kPublished);
  worker_.Pass(absl::Seconds(2));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_OK(TheDone().status);
}

TEST_F(OffloadTest, OnceItDrainsTheNextServerIsNotAskedToKeepAnything) {
  worker_.Admit(TransferId(1), buffer_, kStep1.sequence);
  ASSERT_OK(Unpublish());
  MayDrain(2);
  worker_.Drop();
  worker_.Rejoin(Epoch(2));
  EXPECT_FALSE(StartsOf(buffer_).at(0).keep_retained);
}

TEST_F(OffloadTest, TheCopyIsFilledByAnUpdateOfItsOwnThenItAsksAgain) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  EXPECT_EQ(State(), BufferState::kPublished);
  const auto registered = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  EXPECT_EQ(registered[0].buffer.role, BufferRole::kOffload);
  EXPECT_EQ(registered[0].buffer.buffer_name, "weights.offload-7.1.2");
  const BufferId copy = AllocatedCopy();
  const auto update = StartsOf(copy);
  ASSERT_THAT(update, SizeIs(1));
  EXPECT_EQ(update[0].kind, OperationKind::kUpdate);
  EXPECT_EQ(update[0].selector, VersionSelector(kStep1.sequence));
  FillCopy(copy);
  EXPECT_EQ(worker_.session.buffer_state(copy), BufferState::kPublished);
  const auto again = StartsOf(buffer_);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].key.number, OperationNumber(3));
  EXPECT_TRUE(again[0].keep_retained);
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty()) << "the caller hears of one end only";
  MayDrain(3);
  Finish(3, OperationKind::kUnpublish);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.call, CallId(2));
}

TEST_F(OffloadTest, AnUpdateWaitsForItsCopyToo) {
  ASSERT_OK(Update());
  MustOffload(2, OperationKind::kUpdate);
  EXPECT_EQ(State(), BufferState::kPublished);
  FillCopy(AllocatedCopy());
  worker_.Say(OperationResolved{{buffer_, OperationNumber(3)}, kStep2, std::nullopt});
  EXPECT_EQ(State(), BufferState::kFilling);
}

TEST_F(OffloadTest, ACancelledUpdateEndsWithItsCopyWhichIsMade) {
  ASSERT_OK(Update());
  MustOffload(2, OperationKind::kUpdate);
  const BufferId copy = AllocatedCopy();
  worker_.Handle(event::CancelUpdate{buffer_});
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());
  FillCopy(copy);
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(worker_.session.buffer_state(copy), BufferState::kPublished);
  EXPECT_EQ(State(), BufferState::kPublished);
  const auto failed = worker_.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1)) << "the other ranks do not wait for this one";
  EXPECT_EQ(failed[0].key, (OperationKey{buffer_, OperationNumber(3)}));
}

TEST_F(OffloadTest, ACancelledUpdateEndsCancelledWhenItsCopyFails) {
  ASSERT_OK(Update());
  MustOffload(2, OperationKind::kUpdate);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  worker_.Handle(event::CancelUpdate{buffer_});
  worker_.Handle(event::OffloadAllocated{copy, absl::ResourceExhaustedError("no memory")});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(OffloadTest, WithoutRoomTheBufferStaysPublished) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish,
              absl::FailedPreconditionError("rank trainer/0 has no room"));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("rank trainer/0 has no room")));
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_OK(Unpublish()) << "it may be tried again";
}

TEST_F(OffloadTest, WithoutMemoryTheBufferStaysPublished) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  worker_.Handle(event::OffloadAllocated{copy, absl::ResourceExhaustedError("no memory")});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST_F(OffloadTest, ACopyThatIsNotFilledInTimeLeavesTheBufferPublished) {
  ASSERT_OK(worker_
                .Handle(event::Unpublish{
                    CallId(2),
                    buffer_,
                    {.on_retention = OnRetention::kOffload, .offload_timeout = absl::Seconds(3)}})
                .status);
  MustOffload(2, OperationKind::kUnpublish);
  AllocatedCopy();
  for (int second = 0; second < 6; ++second) worker_.Pass(absl::Seconds(1));
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the offload failed")));
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

TEST_F(OffloadTest, AReleasedCopyLetsItsReadersGoFirst) {
  const BufferId copy = OffloadedCopy();
  worker_.Admit(TransferId(5), copy, kStep1.sequence);
  worker_.Drop();
  worker_.Say(OffloadReleased{copy});
  EXPECT_EQ(worker_.session.buffer_state(copy), BufferState::kDraining);
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
  worker_.Handle(event::ReaderReleased{TransferId(5)});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST_F(OffloadTest, AReleaseThatComesBeforeTheEndOfTheUpdateIsNotForgotten) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = AllocatedCopy();
  worker_.Say(OffloadReleased{copy});
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
  FillCopy(copy);
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

TEST_F(OffloadTest, ACopyThatIsRefusedIsFreed) {
  const BufferId copy = OffloadedCopy();
  worker_.Say(PublicationRefused{copy, kStep1.sequence, absl::AbortedError("rolled back")});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), SizeIs(1));
}

TEST_F(OffloadTest, TheOtherRanksHearThatThereIsNoMemory) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  worker_.Handle(event::OffloadAllocated{copy, absl::ResourceExhaustedError("no memory")});
  const auto failed = worker_.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key.buffer, copy);
}

// The driver may refuse at once, before the server has answered.
TEST_F(OffloadTest, TheOtherRanksHearThatThereIsNoMemoryOnceTheCopyIsRegistered) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Handle(event::OffloadAllocated{copy, absl::ResourceExhaustedError("no memory")});
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), IsEmpty());
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  EXPECT_THAT(worker_.TakeSent<RankFailed>(), SizeIs(1));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(OffloadTest, WithoutMemoryTheWaitForTheRegistrationEndsWithTheTimeoutOfTheCopy) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Handle(event::OffloadAllocated{copy, absl::ResourceExhaustedError("no memory")});
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());
  worker_.Pass(absl::Hours(1));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(OffloadTest, MemoryThatComesAfterTheGroupHasChangedIsGivenBack) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Say(GroupChanged{GroupGeneration(2), {"trainer", Rank(1)}});
  worker_.Drop();
  worker_.Handle(event::OffloadAllocated{copy, absl::OkStatus()});
  EXPECT_THAT(StartsOf(copy), IsEmpty());
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

TEST_F(OffloadTest, AfterADrainThatTheServerDidNotBeginItHearsWhatIsHeld) {
  ASSERT_OK(Unpublish());
  worker_.Drop();
  worker_.Finish({buffer_, OperationNumber(2)}, OperationKind::kUnpublish,
                 absl::DeadlineExceededError("a rank is missing"));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(State(), BufferState::kWritable);
  const auto reported = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(reported, SizeIs(1));
  EXPECT_FALSE(reported[0].buffer.held.has_value());
}

TEST_F(OffloadTest, AnUpdateWaitsForItsCopyHoweverLongTheMemoryTakes) {
  ASSERT_OK(worker_
                .Handle(event::Update{CallId(2),
                                      buffer_,
                                      {.timeout = absl::Seconds(1),
                                       .on_retention = OnRetention::kOffload,
                                       .offload_timeout = absl::Seconds(1)}})
                .status);
  MustOffload(2, OperationKind::kUpdate);
  const BufferId copy = worker_.Take<AllocateOffload>().at(0).copy;
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  worker_.Drop();
  for (int second = 0; second < 20; ++second) worker_.Pass(absl::Seconds(1));
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());
  worker_.Handle(event::OffloadAllocated{copy, absl::OkStatus()});
  FillCopy(copy);
  EXPECT_THAT(StartsOf(buffer_), SizeIs(1));
}

TEST_F(OffloadTest, ACopyIsAnnouncedToTheNextServer) {
  const BufferId copy = OffloadedCopy();
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.Handle(event::StreamOpened{});
  const auto joins = worker_.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_THAT(joins[0].buffers, SizeIs(2));
  EXPECT_EQ(joins[0].buffers[1].buffer, copy);
  EXPECT_EQ(joins[0].buffers[1].role, BufferRole::kOffload);
  EXPECT_TRUE(joins[0].buffers[1].held.has_value());
}

TEST_F(OffloadTest, AStrangeReleaseIsIgnored) {
  worker_.Say(OffloadReleased{buffer_});
  worker_.Say(OffloadReleased{BufferId(77)});
  EXPECT_EQ(State(), BufferState::kPublished);
}

TEST_F(OffloadTest, AGroupThatChangesEndsTheWait) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  AllocatedCopy();
  worker_.Say(GroupChanged{GroupGeneration(2), {"trainer", Rank(1)}});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

// A rank that had not heard of the copy has drained without the server, and told the next one.
TEST_F(OffloadTest, AGroupThatEndsItWithoutTheCopyEndsTheWaitOnceThisRankHasItsOwn) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = AllocatedCopy();
  worker_.Rejoin(Epoch(2));
  Finish(2, OperationKind::kUnpublish);
  EXPECT_EQ(State(), BufferState::kPublished);
  Receive(copy);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_OK(TheDone().status);
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  const JoinRequest join = worker_.OpenAndHearJoin();
  ASSERT_FALSE(join.buffers.empty());
  ASSERT_TRUE(join.buffers[0].last_finished.has_value());
  EXPECT_EQ(join.buffers[0].last_finished->number, OperationNumber(2));
  EXPECT_FALSE(join.buffers[0].last_finished->must_offload);
}

TEST_F(OffloadTest, TheCopyOfAnEndedWaitMakesNothingBeAskedAgain) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = AllocatedCopy();
  Finish(2, OperationKind::kUnpublish);
  worker_.Drop();
  FillCopy(copy);
  EXPECT_THAT(StartsOf(buffer_), IsEmpty());
  EXPECT_EQ(State(), BufferState::kWritable);
}

// It may say so again, or that it does not know: the wait goes on.
TEST_F(OffloadTest, NothingElseThatIsSaidOfItEndsTheWait) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = AllocatedCopy();
  MustOffload(2, OperationKind::kUnpublish);
  worker_.Finish({buffer_, OperationNumber(2)}, OperationKind::kUnpublish,
                 absl::AbortedError("forgotten"));
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());
  EXPECT_EQ(State(), BufferState::kPublished);
  worker_.Drop();
  FillCopy(copy);
  EXPECT_THAT(StartsOf(buffer_), SizeIs(1));
}

TEST_F(OffloadTest, LeavingEndsTheWait) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  AllocatedCopy();
  worker_.Handle(event::Leave{});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(worker_.Take<SessionEnded>(), SizeIs(1));
}

TEST_F(OffloadTest, UnregisteringTheBufferEndsTheWaitAndLeavesTheCopy) {
  ASSERT_OK(Unpublish());
  MustOffload(2, OperationKind::kUnpublish);
  const BufferId copy = AllocatedCopy();
  ASSERT_OK(worker_.Handle(event::UnregisterBuffer{buffer_}).status);
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kCancelled));
  FillCopy(copy);
  EXPECT_EQ(worker_.session.buffer_state(copy), BufferState::kPublished);
}

}  // namespace
}  // namespace th
