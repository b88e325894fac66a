// An unpublish that nobody answers: what others may need is copied from the buffer itself before it
// drains, and the server hears of the copy when it is back.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const VersionInfo kStep1 = Version(7, "step-1");

SessionOptions WithRoom() {
  SessionOptions options = TestOptions();
  options.offload_limit_bytes = uint64_t{1} << 30;
  return options;
}

class OffloadAloneTest : public ::testing::Test {
 protected:
  explicit OffloadAloneTest(SessionOptions options = WithRoom()) : worker_(std::move(options)) {}

  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.PublishNamed(buffer_, OperationNumber(1), kStep1);
    worker_.Drop();
  }
  void Unpublish() {
    ASSERT_OK(
        worker_
            .Handle(event::Unpublish{CallId(2), buffer_, {.on_retention = OnRetention::kOffload}})
            .status);
  }
  void UnpublishWithoutServer() {
    worker_.BreakStream();
    Unpublish();
    worker_.Pass(absl::Seconds(2));
  }
  // The copy that the session asks for; 0: none.
  BufferId Copy() {
    const auto asked = worker_.Take<AllocateOffload>();
    return asked.empty() ? BufferId() : asked.front().copy;
  }
  void Allocated(BufferId copy, absl::Status status = absl::OkStatus()) {
    worker_.Handle(event::OffloadAllocated{copy, status});
  }
  void Received(BufferId copy) {
    worker_.Handle(event::FirstWrite{copy});
    worker_.Handle(event::FillCompleted{copy, TestRoot(1)});
  }
  BufferId CopyThatIsReceived() {
    const BufferId copy = Copy();
    Allocated(copy);
    Received(copy);
    return copy;
  }
  JoinRequest AServerComesBack() {
    worker_.epoch = Epoch(2);
    const JoinRequest join = worker_.OpenAndHearJoin();
    worker_.Say(worker_.JoinedAnswer(worker_.epoch));
    for (const AnnouncedBuffer& buffer : join.buffers) {
      worker_.Say(BufferRegistered{buffer.buffer, absl::OkStatus()});
    }
    return join;
  }
  void TheServerWantsACopyFirst() {
    worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(2)},
                                  .kind = OperationKind::kUnpublish,
                                  .version = kStep1,
                                  .must_offload = true});
  }
  void TheGroupHolds(BufferId copy) {
    worker_.Finish({copy, OperationNumber(1)}, OperationKind::kUpdate, absl::OkStatus(),
                   UpdateOutcome::kMoved, kStep1);
  }
  void ExpectAsksAgain() {
    const auto again = worker_.TakeSent<StartOperation>();
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].key.number, OperationNumber(3));
  }
  void ExpectUnpublished() {
    const auto done = worker_.Take<OperationDone>();
    ASSERT_THAT(done, SizeIs(1));
    EXPECT_OK(done[0].status);
  }
  BufferState State(BufferId buffer) { return worker_.session.buffer_state(buffer); }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(OffloadAloneTest, TheCopyIsFilledFromTheBufferItself) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  ASSERT_NE(copy, BufferId());
  Allocated(copy);
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
  ASSERT_THAT(worker_.Take<StartFill>(), SizeIs(1));
  const auto assigned = worker_.Take<SetSources>();
  ASSERT_THAT(assigned, SizeIs(1));
  ASSERT_THAT(assigned[0].sources, SizeIs(1));
  const AssignedSource& source = assigned[0].sources[0];
  EXPECT_EQ(source.buffer, (BufferAddress{worker_.worker, buffer_}));
  worker_.Handle(
      event::AdmissionAsked{TransferId(1), buffer_, source.capability, source.generation});
  const auto admitted = worker_.Take<AdmissionDecided>();
  ASSERT_THAT(admitted, SizeIs(1));
  EXPECT_OK(admitted[0].status);
}

TEST_F(OffloadAloneTest, ItDrainsOnceTheCopyIsReceived) {
  UnpublishWithoutServer();
  const BufferId copy = CopyThatIsReceived();
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
  ExpectUnpublished();
  EXPECT_EQ(State(copy), BufferState::kFilling) << "for the group a server has to say";
}

TEST_F(OffloadAloneTest, TheCopyWaitsForAServerHoweverLongItIsAway) {
  UnpublishWithoutServer();
  const BufferId copy = CopyThatIsReceived();
  worker_.Pass(absl::Hours(1));
  EXPECT_EQ(State(copy), BufferState::kFilling);
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty());
}

TEST_F(OffloadAloneTest, AServerThatIsBackEndsTheCopysUpdateAndReleasesIt) {
  UnpublishWithoutServer();
  const BufferId copy = CopyThatIsReceived();
  worker_.Drop();
  AServerComesBack();
  std::vector<StartOperation> starts = worker_.TakeSent<StartOperation>();
  std::erase_if(starts, [&](const StartOperation& start) { return start.key.buffer != copy; });
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].resolved, kStep1);
  EXPECT_LE(starts[0].timeout, UnpublishRequest().offload_timeout);
  TheGroupHolds(copy);
  EXPECT_EQ(State(copy), BufferState::kPublished);
  worker_.Say(OffloadReleased{copy});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

// The server promised its memory to the site copy when it knew of no other.
TEST_F(OffloadAloneTest, ItsMemoryIsNotTakenForASeedsCopyToo) {
  UnpublishWithoutServer();
  const BufferId copy = CopyThatIsReceived();
  ASSERT_OK(worker_.Handle(event::Update{CallId(3), buffer_, {.when_seeding = WhenSeeding::kCopy}})
                .status);
  AServerComesBack();
  worker_.Drop();
  worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(3)},
                                .kind = OperationKind::kUpdate,
                                .outcome = UpdateOutcome::kNotAvailable,
                                .not_available = NotAvailableReason::kSeeding,
                                .version = Version(8, "step-2"),
                                .site_copy = true});
  EXPECT_EQ(Copy(), BufferId());
  const auto registered = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  const BufferId seed = registered[0].buffer.buffer;
  EXPECT_NE(seed, copy);
  worker_.Say(BufferRegistered{seed, absl::OkStatus()});
  const auto failed = worker_.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1)) << "the other ranks hear of it";
  EXPECT_EQ(failed[0].key.buffer, seed);
}

TEST_F(OffloadAloneTest, ItDrainsWhereThereIsNoRoom) {
  UnpublishWithoutServer();
  Allocated(Copy(), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
  ExpectUnpublished();
}

TEST_F(OffloadAloneTest, WhatIsLetGoIsNamedToTheServerThatComes) {
  UnpublishWithoutServer();
  Allocated(Copy(), absl::ResourceExhaustedError("full"));
  const JoinRequest join = AServerComesBack();
  ASSERT_THAT(join.buffers, SizeIs(1));
  ASSERT_TRUE(join.buffers[0].last_finished.has_value());
  EXPECT_EQ(join.buffers[0].last_finished->kind, OperationKind::kUnpublish);
  EXPECT_EQ(join.buffers[0].last_finished->version, kStep1);
}

// To that server nobody holds the version: another rank has told it that the unpublish is over.
TEST_F(OffloadAloneTest, ACopyThatAServerTakesItsSourceFromPullsFromTheBufferAgain) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  Allocated(copy);
  AServerComesBack();
  worker_.Drop();
  worker_.Say(AssignSources{.key = {copy, OperationNumber(1)},
                            .assignment = AssignmentId(1),
                            .version = kStep1.sequence,
                            .why_empty = "nobody holds it"});
  const auto assigned = worker_.Take<SetSources>();
  ASSERT_FALSE(assigned.empty());
  ASSERT_THAT(assigned.back().sources, SizeIs(1));
  EXPECT_EQ(assigned.back().sources[0].buffer, (BufferAddress{worker_.worker, buffer_}));
}

TEST_F(OffloadAloneTest, WhatNoServerHasNamedIsNotKept) {
  UnpublishWithoutServer();
  CopyThatIsReceived();
  worker_.Drop();
  ASSERT_OK(worker_.Handle(event::Publish{CallId(3), buffer_, {.label = Label("step-2")}}).status);
  Unpublish();
  EXPECT_EQ(Copy(), BufferId());
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
}

// Another rank has ended it without the server, and made its copy.
TEST_F(OffloadAloneTest, ARankThatHearsOfTheEndBeforeItHasDrainedCopiesFirst) {
  Unpublish();
  worker_.Finish({buffer_, OperationNumber(2)}, OperationKind::kUnpublish, absl::OkStatus());
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
  CopyThatIsReceived();
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
  EXPECT_THAT(worker_.Take<OperationDone>(), SizeIs(1));
}

TEST_F(OffloadAloneTest, AServerThatIsBackAndWantsACopyTakesThisOne) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  Allocated(copy);
  AServerComesBack();
  TheServerWantsACopyFirst();
  EXPECT_EQ(Copy(), BufferId()) << "no other one";
  Received(copy);
  EXPECT_EQ(State(buffer_), BufferState::kPublished) << "until the whole group has it";
  worker_.Drop();
  TheGroupHolds(copy);
  ExpectAsksAgain();
}

TEST_F(OffloadAloneTest, LeaveToDrainThatComesMeanwhileEndsTheCopy) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  Allocated(copy);
  AServerComesBack();
  worker_.Say(OperationResolved{{buffer_, OperationNumber(2)}, kStep1, std::nullopt});
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
  const auto stopped = worker_.Take<StopFill>();
  ASSERT_THAT(stopped, SizeIs(1));
  EXPECT_EQ(stopped[0].buffer, copy);
  worker_.Handle(event::FillStopped{copy});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

// The other ranks still copy when the server answers.
TEST_F(OffloadAloneTest, ACopyThatIsDoneBeforeTheServerHasAnsweredWaitsForItsWord) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  Allocated(copy);
  AServerComesBack();
  Received(copy);
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
  TheServerWantsACopyFirst();
  worker_.Drop();
  TheGroupHolds(copy);
  ExpectAsksAgain();
}

TEST_F(OffloadAloneTest, AServerThatIsBackAndGoesAgainWithoutAWordIsNotWaitedFor) {
  UnpublishWithoutServer();
  const BufferId copy = Copy();
  Allocated(copy);
  AServerComesBack();
  Received(copy);
  ASSERT_EQ(State(buffer_), BufferState::kPublished);
  worker_.BreakStream();
  worker_.Pass(absl::Seconds(2));
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
}

TEST_F(OffloadAloneTest, ACopyThatAServerHasAskedForIsEndedAloneWhenItGoes) {
  Unpublish();
  TheServerWantsACopyFirst();
  const BufferId copy = Copy();
  worker_.Say(BufferRegistered{copy, absl::OkStatus()});
  Allocated(copy);
  worker_.BreakStream();
  worker_.Pass(absl::Seconds(2));
  Received(copy);
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
  ExpectUnpublished();
}

TEST_F(OffloadAloneTest, WhoseServerHasBeenAwayForLongCopiesAtOnce) {
  worker_.BreakStream();
  worker_.Pass(absl::Seconds(2));
  Unpublish();
  EXPECT_NE(Copy(), BufferId());
}

class SpotOffloadAloneTest : public OffloadAloneTest {
 protected:
  static SessionOptions Spot() {
    SessionOptions options = WithRoom();
    options.spot = true;
    return options;
  }
  SpotOffloadAloneTest() : OffloadAloneTest(Spot()) {}
};

TEST_F(SpotOffloadAloneTest, ASpotWorkerKeepsNothing) {
  UnpublishWithoutServer();
  EXPECT_EQ(Copy(), BufferId());
  EXPECT_EQ(State(buffer_), BufferState::kWritable);
}

}  // namespace
}  // namespace th
