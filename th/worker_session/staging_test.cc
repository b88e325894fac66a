// Versions that are received beside what is held, and moved in later: the copy's life, and what
// leaves the buffer as it was.
#include "th/worker_session/staging.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");

class StagedCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.UpdateTo(buffer_, OperationNumber(1), kStep1);
    worker_.Drop();
  }
  // A Stage whose copy the server knows.
  BufferId BegunStage(uint64_t call = 2) {
    const absl::StatusOr<BufferId> copy = worker_.BufferOf(event::Stage{CallId(call), buffer_, {}});
    EXPECT_OK(copy.status());
    if (!copy.ok()) return BufferId();
    worker_.Say(BufferRegistered{*copy, absl::OkStatus()});
    return *copy;
  }
  void Resolve(BufferId copy) {
    worker_.Say(OperationResolved{{copy, OperationNumber(1)}, kStep2, std::nullopt});
  }
  void Allocate(BufferId copy, absl::Status status = absl::OkStatus()) {
    const auto asked = worker_.Take<AllocateOffload>();
    ASSERT_THAT(asked, SizeIs(1));
    EXPECT_EQ(asked[0].copy, copy);
    EXPECT_TRUE(asked[0].staged);
    worker_.Handle(event::OffloadAllocated{copy, std::move(status)});
  }
  void Fill(BufferId copy, absl::Status status = absl::OkStatus()) {
    const OperationKey key{copy, OperationNumber(1)};
    worker_.Say(worker_.Assignment(key, 1, kStep2.sequence, {7}));
    worker_.Handle(event::FirstWrite{copy});
    worker_.Handle(event::FillCompleted{copy, TestRoot(1)});
    worker_.Finish(key, OperationKind::kUpdate, std::move(status), UpdateOutcome::kMoved, kStep2);
  }
  BufferId StagedCopy() {
    const BufferId copy = BegunStage();
    Resolve(copy);
    Allocate(copy);
    Fill(copy);
    EXPECT_EQ(TheDone().outcome, UpdateOutcome::kMoved);
    EXPECT_EQ(Staged(), kStep2.sequence);
    worker_.Drop();
    return copy;
  }
  absl::Status Apply() { return worker_.Handle(event::Apply{CallId(3), buffer_, {}}).status; }
  OperationDone TheDone() {
    const auto done = worker_.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }
  VersionSequence Staged() const { return worker_.session.staged_version(buffer_).sequence; }
  VersionSequence Held() const { return worker_.session.buffer_version(buffer_).sequence; }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(StagedCopyTest, ACopyIsAnnouncedForItsOriginal) {
  ASSERT_OK(worker_.BufferOf(event::Stage{CallId(2), buffer_, {}}).status());
  const auto registered = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  EXPECT_EQ(registered[0].buffer.staged_for, "weights");
  EXPECT_EQ(registered[0].buffer.buffer_name, "weights.staged");
  EXPECT_EQ(registered[0].buffer.role, BufferRole::kStaged);
}

TEST_F(StagedCopyTest, MemoryIsAskedForWhenThereIsSomethingToPutIntoIt) {
  const BufferId copy = BegunStage();
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty());
  Resolve(copy);
  EXPECT_THAT(worker_.Take<StartFill>(), IsEmpty());
  Allocate(copy);
  EXPECT_THAT(worker_.Take<StartFill>(), SizeIs(1));
}

TEST_F(StagedCopyTest, WhatIsThereAlreadyTakesNoMemory) {
  const BufferId copy = BegunStage();
  worker_.Finish({copy, OperationNumber(1)}, OperationKind::kUpdate, absl::OkStatus(),
                 UpdateOutcome::kAlreadyThere, kStep1);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.outcome, UpdateOutcome::kAlreadyThere);
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty());
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), IsEmpty()) << "a late rank asks for the result";
  EXPECT_EQ(BegunStage(4), copy);
}

TEST_F(StagedCopyTest, WhatTheBufferDoesNotHoldIsNotThereAlready) {
  const BufferId copy = BegunStage();
  worker_.Finish({copy, OperationNumber(1)}, OperationKind::kUpdate, absl::OkStatus(),
                 UpdateOutcome::kAlreadyThere, kStep2);
  EXPECT_FALSE(TheDone().status.ok());
}

TEST_F(StagedCopyTest, TheBufferIsServedWhileTheNextVersionIsStaged) {
  StagedCopy();
  EXPECT_EQ(worker_.session.buffer_state(buffer_), BufferState::kPublished);
  EXPECT_EQ(Held(), kStep1.sequence);
}

TEST_F(StagedCopyTest, WithoutRoomTheOthersHearOfIt) {
  const BufferId copy = BegunStage();
  Resolve(copy);
  worker_.TakeSent<RankFailed>();
  Allocate(copy, absl::ResourceExhaustedError("the limit is 0 bytes"));
  EXPECT_THAT(worker_.TakeSent<RankFailed>(), SizeIs(1));
  const OperationDone done = TheDone();
  EXPECT_THAT(done.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the limit is 0 bytes"),
                             HasSubstr("nothing is staged, buffer unchanged, still step-1"))));
  EXPECT_FALSE(done.buffer_undefined);
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), IsEmpty()) << "a late rank asks for the result";
}

TEST_F(StagedCopyTest, AFailureHalfWayLeavesTheBufferAndFreesTheMemory) {
  const BufferId copy = BegunStage();
  Resolve(copy);
  Allocate(copy);
  worker_.Say(worker_.Assignment({copy, OperationNumber(1)}, 1, kStep2.sequence, {7}));
  worker_.Handle(event::FirstWrite{copy});
  worker_.Finish({copy, OperationNumber(1)}, OperationKind::kUpdate,
                 absl::UnavailableError("rank rollout/1 is gone"));
  worker_.Handle(event::FillStopped{copy});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank rollout/1 is gone")));
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  EXPECT_EQ(Held(), kStep1.sequence);
  EXPECT_EQ(Staged(), VersionSequence());
}

TEST_F(StagedCopyTest, ApplyAsksForExactlyWhatIsStagedAndFreesTheCopy) {
  const BufferId copy = StagedCopy();
  ASSERT_OK(Apply());
  const auto starts = worker_.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key.buffer, buffer_);
  EXPECT_EQ(starts[0].selector, VersionSelector(kStep2.sequence));
  EXPECT_EQ(Held(), kStep1.sequence) << "untouched until the server has resolved it";
  const OperationKey key{buffer_, OperationNumber(2)};
  worker_.Say(OperationResolved{key, kStep2, std::nullopt});
  worker_.Say(worker_.Assignment(key, 1, kStep2.sequence, {worker_.worker.value}));
  worker_.Handle(event::FirstWrite{buffer_});
  EXPECT_EQ(Staged(), kStep2.sequence) << "it is read now";
  worker_.Handle(event::FillCompleted{buffer_, TestRoot(1)});
  worker_.Finish(key, OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved, kStep2);
  EXPECT_EQ(Held(), kStep2.sequence);
  EXPECT_EQ(Staged(), VersionSequence());
  const auto freed = worker_.Take<FreeOffload>();
  ASSERT_THAT(freed, SizeIs(1));
  EXPECT_EQ(freed[0].copy, copy);
}

TEST_F(StagedCopyTest, ReadersOfTheCopyLetGoBeforeItsMemoryDoes) {
  const BufferId copy = StagedCopy();
  worker_.Admit(TransferId(1), copy, kStep2.sequence);
  worker_.Handle(event::DiscardStaged{buffer_});
  EXPECT_THAT(worker_.TakeSent<BufferReset>(), SizeIs(1));
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
  worker_.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

TEST_F(StagedCopyTest, WithNothingStagedApplyIsRefused) {
  EXPECT_THAT(Apply(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("nothing is staged; stage a version first")));
}

TEST_F(StagedCopyTest, AVersionThatWasWithdrawnSinceIsAnError) {
  StagedCopy();
  ASSERT_OK(Apply());
  worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(2)},
                                .kind = OperationKind::kUpdate,
                                .outcome = UpdateOutcome::kNotAvailable,
                                .not_available = NotAvailableReason::kWithdrawn});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("step-2"), HasSubstr("withdrawn by a roll-back"),
                             HasSubstr("buffer unchanged, still step-1"))));
}

TEST_F(StagedCopyTest, AnotherStageWritesOverTheCopyWhenItsReadersHaveLetGo) {
  const BufferId copy = StagedCopy();
  worker_.Admit(TransferId(1), copy, kStep2.sequence);
  ASSERT_EQ(BegunStage(4), copy);
  EXPECT_EQ(Staged(), VersionSequence());
  const VersionInfo step3 = Version(9, "step-3");
  worker_.Say(OperationResolved{{copy, OperationNumber(2)}, step3, std::nullopt});
  EXPECT_THAT(worker_.Take<StartFill>(), IsEmpty()) << "it has readers still";
  worker_.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_THAT(worker_.Take<StartFill>(), SizeIs(1));
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty()) << "it has its memory";
}

TEST_F(StagedCopyTest, WhatTheServerTakesBackIsFreedAndApplySaysWhy) {
  const BufferId copy = StagedCopy();
  worker_.Say(PublicationRefused{copy, kStep2.sequence, absl::AbortedError("it was rolled back")});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  EXPECT_THAT(Apply(), StatusIs(absl::StatusCode::kAborted,
                                AllOf(HasSubstr("step-2"), HasSubstr("it was rolled back"))));
  EXPECT_EQ(Held(), kStep1.sequence);
}

TEST_F(StagedCopyTest, WhatTheServerTakesBackIsAnnouncedToNoOtherServer) {
  const BufferId copy = StagedCopy();
  worker_.Admit(TransferId(1), copy, kStep2.sequence);  // it is still read
  worker_.Say(PublicationRefused{copy, kStep2.sequence, absl::AbortedError("it was rolled back")});
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.Handle(event::StreamOpened{});
  const auto joins = worker_.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_THAT(joins[0].buffers, SizeIs(2));
  EXPECT_TRUE(joins[0].buffers[0].held.has_value());
  EXPECT_EQ(joins[0].buffers[1].buffer, copy);
  EXPECT_FALSE(joins[0].buffers[1].held.has_value());
}

TEST_F(StagedCopyTest, WhatIsTakenBackWhileTheNextStageIsAskedForIsFreedTillThatIsResolved) {
  const BufferId copy = StagedCopy();
  ASSERT_EQ(BegunStage(4), copy);
  worker_.Say(PublicationRefused{copy, kStep2.sequence, absl::AbortedError("it was rolled back")});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  worker_.Say(OperationResolved{{copy, OperationNumber(2)}, Version(9, "step-3"), std::nullopt});
  Allocate(copy);
  EXPECT_THAT(worker_.Take<StartFill>(), SizeIs(1));
}

TEST_F(StagedCopyTest, WhatIsStagedAlreadyIsStaged) {
  const BufferId copy = StagedCopy();
  ASSERT_EQ(BegunStage(4), copy);
  worker_.Finish({copy, OperationNumber(2)}, OperationKind::kUpdate, absl::OkStatus(),
                 UpdateOutcome::kAlreadyThere, kStep2);
  EXPECT_EQ(TheDone().outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(Staged(), kStep2.sequence);
}

TEST_F(StagedCopyTest, ACopyThatWasFreedIsStagedIntoAnew) {
  const BufferId copy = StagedCopy();
  worker_.Handle(event::DiscardStaged{buffer_});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  ASSERT_EQ(BegunStage(4), copy);
  worker_.Say(OperationResolved{{copy, OperationNumber(2)}, kStep2, std::nullopt});
  Allocate(copy);
  EXPECT_THAT(worker_.Take<StartFill>(), SizeIs(1));
}

TEST_F(StagedCopyTest, OneStageAtATime) {
  BegunStage();
  EXPECT_THAT(worker_.BufferOf(event::Stage{CallId(4), buffer_, {}}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("a version is being staged already")));
}

TEST_F(StagedCopyTest, ABufferThatIsUnregisteredTakesItsCopyAlong) {
  StagedCopy();
  ASSERT_OK(worker_.Handle(event::UnregisterBuffer{buffer_}).status);
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
  EXPECT_THAT(worker_.TakeSent<UnregisterBuffer>(), SizeIs(2));
}

TEST_F(StagedCopyTest, AStageThatIsDiscardedWaitsForTheMemoryThatItAskedFor) {
  const BufferId copy = BegunStage();
  Resolve(copy);
  worker_.Handle(event::DiscardStaged{buffer_});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
  Allocate(copy);
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

TEST_F(StagedCopyTest, WhatIsStagedSurvivesTheServer) {
  const BufferId copy = StagedCopy();
  worker_.Rejoin(Epoch(2));
  EXPECT_EQ(Staged(), kStep2.sequence);
  EXPECT_EQ(worker_.session.buffer_state(copy), BufferState::kPublished);
}

}  // namespace
}  // namespace th
