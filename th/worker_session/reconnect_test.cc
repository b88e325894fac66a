// A worker announces itself after a break to the same server, or to one without memory.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");
constexpr OperationNumber kFirst(1);
constexpr OperationNumber kSecond(2);

class ReconnectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    buffer = worker.RegisteredBuffer();
  }
  // The announcement of the buffer in the next join.
  AnnouncedBuffer Announced() {
    worker.BreakStream();
    worker.Pass(absl::Milliseconds(50));
    worker.Handle(event::StreamOpened{});
    const auto joins = worker.TakeSent<JoinRequest>();
    EXPECT_THAT(joins, SizeIs(1));
    EXPECT_THAT(joins[0].buffers, SizeIs(1));
    return joins[0].buffers[0];
  }

  SessionHarness worker;
  BufferId buffer;
};

TEST_F(ReconnectTest, AnnouncesAPublishedVersionWithItsRoot) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Handle(event::Sealed{buffer, kStep1.sequence, worker.session.buffer_generation(buffer),
                              TestRoot(3)});
  const AnnouncedBuffer announced = Announced();
  EXPECT_EQ(announced.buffer_name, "weights");
  EXPECT_EQ(announced.layout, TestLayout()->digest());
  EXPECT_EQ(announced.segment_count, kTestSegments);
  EXPECT_EQ(announced.generation, worker.session.buffer_generation(buffer));
  ASSERT_TRUE(announced.held.has_value());
  EXPECT_EQ(announced.held->version, kStep1);
  EXPECT_TRUE(announced.held->complete);
  EXPECT_TRUE(announced.held->publisher);
  EXPECT_TRUE(announced.held->group_committed);
  EXPECT_EQ(announced.held->root, TestRoot(3));
  ASSERT_TRUE(announced.last_finished.has_value());
  EXPECT_EQ(announced.last_finished->number, kFirst);
  EXPECT_EQ(announced.last_finished->version, kStep1);
}

RootReceipt ReceiptFor(uint8_t seed) { return {.root = TestRoot(seed), .code = {seed}}; }

TEST_F(ReconnectTest, APublisherAnnouncesTheReceiptThoughItHasSummedSomethingElse) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Handle(event::Sealed{buffer, kStep1.sequence, worker.session.buffer_generation(buffer),
                              TestRoot(3)});
  worker.Say(RootKnown{kStep1.sequence, {TestLayout()->digest(), TestRoot(9)}, ReceiptFor(9)});
  const AnnouncedBuffer announced = Announced();
  EXPECT_EQ(announced.held->root, TestRoot(3));
  EXPECT_TRUE(announced.held->receipt == ReceiptFor(9));
}

TEST_F(ReconnectTest, ARankThatFillsAnnouncesTheReceiptOfWhatItMovesTo) {
  worker.UpdateTo(buffer, kFirst, kStep1);
  worker.Say(RootKnown{kStep1.sequence, {TestLayout()->digest(), TestRoot(9)}, ReceiptFor(9)});
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {.timeout = absl::Seconds(60)}}).status);
  worker.Say(OperationResolved{
      .key = {buffer, kSecond}, .version = kStep2, .root = TestRoot(4), .receipt = ReceiptFor(4)});
  const AnnouncedBuffer filling = Announced();
  EXPECT_EQ(filling.held->version, kStep2);
  EXPECT_TRUE(filling.held->receipt == ReceiptFor(4));
}

TEST_F(ReconnectTest, AnUpdateThatEndsBeforeItBeginsLeavesTheReceipt) {
  worker.UpdateTo(buffer, kFirst, kStep1);
  worker.Say(RootKnown{kStep1.sequence, {TestLayout()->digest(), TestRoot(9)}, ReceiptFor(9)});
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {.timeout = absl::Seconds(60)}}).status);
  worker.Say(OperationResolved{
      .key = {buffer, kSecond}, .version = kStep2, .root = TestRoot(4), .receipt = ReceiptFor(4)});
  worker.Finish({buffer, kSecond}, OperationKind::kUpdate, absl::AbortedError("another rank"));
  worker.Handle(event::FillStopped{buffer});
  const AnnouncedBuffer announced = Announced();
  EXPECT_EQ(announced.held->version, kStep1);
  EXPECT_TRUE(announced.held->receipt == ReceiptFor(9));
}

TEST_F(ReconnectTest, APublicationWithoutANameIsNotHeldButAskedAgain) {
  ASSERT_OK(worker
                .Handle(event::Publish{
                    CallId(1), buffer, {.label = Label("step-1"), .timeout = absl::Seconds(10)}})
                .status);
  EXPECT_FALSE(Announced().held.has_value());
  worker.Drop();
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty()) << "before the buffer is known";
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key.number, kFirst);
  EXPECT_EQ(starts[0].timeout, absl::Milliseconds(9950));
}

TEST_F(ReconnectTest, APublicationThatAnEarlierServerEndedIsAnnouncedOnceItHasItsName) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  worker.Rejoin(Epoch(2));
  worker.Drop();
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  const auto announced = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(announced, SizeIs(1)) << "this server knows of it from other ranks";
  ASSERT_TRUE(announced[0].buffer.held.has_value());
  EXPECT_EQ(announced[0].buffer.held->version, kStep1);
  EXPECT_TRUE(announced[0].buffer.held->complete);
  EXPECT_TRUE(announced[0].buffer.held->publisher);
  EXPECT_TRUE(announced[0].buffer.held->group_committed);
}

TEST_F(ReconnectTest, APublicationThatTheServerBeforeTheBreakEndsIsNotAnnouncedAgain) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  worker.Rejoin(Epoch(1));
  worker.Drop();
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_THAT(worker.TakeSent<RegisterBuffer>(), IsEmpty());
}

TEST_F(ReconnectTest, APublicationThatIsGivenUpIsNotAnnounced) {
  ASSERT_OK(worker
                .Handle(event::Publish{
                    CallId(1), buffer, {.label = Label("step-1"), .timeout = absl::Seconds(1)}})
                .status);
  worker.BreakStream();
  worker.Pass(absl::Minutes(1));
  worker.OpenAndHearJoin();
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  worker.Drop();
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("BufferReset"));
}

TEST_F(ReconnectTest, AFillGoesOnAndItsEdgesAreAnnounced) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(4), 4}});
  worker.Drop();
  const AnnouncedBuffer announced = Announced();
  ASSERT_TRUE(announced.held.has_value());
  EXPECT_FALSE(announced.held->complete);
  EXPECT_FALSE(announced.held->group_committed);
  EXPECT_EQ(announced.held->segments, FirstSegments(4));
  EXPECT_THAT(announced.held->sources, ElementsAre(BufferAddress{WorkerId(7), BufferId(1)}));
  worker.epoch = Epoch(2);
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  ASSERT_TRUE(starts[0].resolved.has_value());
  EXPECT_EQ(*starts[0].resolved, kStep1);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("ReadyToFill"));
  EXPECT_THAT(worker.Take<StopFill>(), IsEmpty());
  EXPECT_THAT(worker.Take<StartFill>(), IsEmpty());
  EXPECT_THAT(worker.Take<SetSources>(), IsEmpty());
  EXPECT_EQ(worker.session.buffer_state(buffer), BufferState::kFilling);
}

TEST_F(ReconnectTest, AssignmentsOfTheNewServerCountFromTheirBeginning) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 50, kStep1.sequence, {8}));
  worker.Rejoin(Epoch(2));
  worker.Drop();
  worker.Say(worker.Assignment({buffer, kFirst}, 1, kStep1.sequence, {9}));
  EXPECT_THAT(worker.Take<SetSources>(), SizeIs(1));
}

TEST_F(ReconnectTest, AfterABreakOldAssignmentsOfTheSameServerStayOld) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 50, kStep1.sequence, {8}));
  worker.Rejoin(Epoch(1));
  worker.Drop();
  worker.Say(worker.Assignment({buffer, kFirst}, 49, kStep1.sequence, {9}));
  EXPECT_THAT(worker.Take<SetSources>(), IsEmpty());
}

TEST_F(ReconnectTest, AShardThatIsDoneSaysSoAgain) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  worker.Drop();
  worker.Rejoin(Epoch(2));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "ReadyToFill", "RankDone"));
}

TEST_F(ReconnectTest, AShardDoneWhileAwayIsToldAfterTheJoin) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.BreakStream();
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  EXPECT_TRUE(joins[0].buffers[0].held->complete);
  EXPECT_THAT(joins[0].buffers[0].held->sources, IsEmpty());
  EXPECT_EQ(joins[0].buffers[0].held->root, TestRoot(9));
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "ReadyToFill", "RankDone"));
}

TEST_F(ReconnectTest, ARankThatHasTheVersionSaysSoAgain) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Say(OperationResolved{{buffer, kSecond}, kStep1, std::nullopt});
  worker.Drop();
  worker.Rejoin(Epoch(2));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "ReadyToFill", "RankDone"));
}

TEST_F(ReconnectTest, ADrainedUnpublishSaysSoAgain) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(worker.Handle(event::Unpublish{CallId(2), buffer, {}}).status);
  worker.Drop();
  worker.Rejoin(Epoch(1));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "RankDone"));
}

TEST_F(ReconnectTest, AFailureWhileAwayIsToldAfterTheJoin) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.BreakStream();
  worker.Handle(event::FillFailed{buffer, absl::UnavailableError("no source left")});
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(worker.Take<OperationDone>(), SizeIs(1));
  worker.BreakStream();
  worker.Drop();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Drop();
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "RankFailed"));
  worker.Finish({buffer, kFirst}, OperationKind::kUpdate, absl::UnavailableError("heard"));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Rejoin(Epoch(3));
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
}

TEST_F(ReconnectTest, AResultIsAnnouncedBeforeWhatItEndsHasComeToRest) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Finish({buffer, kFirst}, OperationKind::kUpdate, absl::AbortedError("it was rolled back"));
  worker.BreakStream();
  worker.Drop();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_TRUE(joins[0].buffers[0].last_finished.has_value());
  EXPECT_EQ(joins[0].buffers[0].last_finished->number, kFirst);
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(worker.Take<OperationDone>(), SizeIs(1));
  worker.Say(worker.JoinedAnswer(Epoch(2)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  worker.Drop();
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key.number, kSecond);
}

TEST_F(ReconnectTest, ASourceThatFailedWhileAwayIsToldAfterTheJoin) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.BreakStream();
  worker.Handle(event::SourceFailed{
      buffer, AssignmentId(1), {WorkerId(7), BufferId(1)}, SourceFailure::kClosed, ""});
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  EXPECT_THAT(joins[0].buffers[0].held->sources, IsEmpty());
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation", "ReadyToFill", "SourceFailed"));
}

TEST_F(ReconnectTest, CommandsAreSentAgainUnderTheirKeys) {
  ASSERT_OK(worker.Handle(event::Command{CallId(3), {"key-1", SetRetention{4}}}).status);
  worker.Drop();
  worker.Rejoin(Epoch(2));
  const auto commands = worker.TakeSent<RunCommand>();
  ASSERT_THAT(commands, SizeIs(1));
  EXPECT_EQ(commands[0].idempotency_key, "key-1");
}

TEST_F(ReconnectTest, ABufferRegisteredWhileAwayIsAnnouncedByTheJoinAlone) {
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  ASSERT_OK(worker.BufferOf(event::RegisterBuffer{"other", "hf", TestLayout(1)}));
  const JoinRequest join = worker.OpenAndHearJoin();
  ASSERT_THAT(join.buffers, SizeIs(2));
  EXPECT_EQ(join.buffers[1].buffer_name, "other");
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
}

TEST_F(ReconnectTest, ABufferRegisteredDuringTheJoinIsRegisteredAfterIt) {
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  ASSERT_OK(worker.BufferOf(event::RegisterBuffer{"other", "hf", TestLayout(1)}));
  worker.Drop();
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  const auto registered = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  EXPECT_EQ(registered[0].buffer.buffer_name, "other");
}

TEST_F(ReconnectTest, ABufferUnregisteredDuringTheJoinIsUnregisteredAfterIt) {
  Announced();
  ASSERT_OK(worker.Handle(event::UnregisterBuffer{buffer}).status);
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  const auto gone = worker.TakeSent<UnregisterBuffer>();
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].buffer, buffer);
}

TEST_F(ReconnectTest, ANameUnregisteredDuringTheJoinIsFreeBeforeItIsRegisteredAgain) {
  Announced();
  ASSERT_OK(worker.Handle(event::UnregisterBuffer{buffer}).status);
  ASSERT_OK(worker.BufferOf(event::RegisterBuffer{"weights", "hf", TestLayout()}));
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("UnregisterBuffer", "RegisterBuffer"));
}

TEST_F(ReconnectTest, AJoinThatDoesNotNameABufferNeedsNoWordOfItsEnd) {
  Announced();
  ASSERT_OK(worker.Handle(event::UnregisterBuffer{buffer}).status);
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(100));
  EXPECT_THAT(worker.OpenAndHearJoin().buffers, IsEmpty());
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
}

TEST_F(ReconnectTest, TheDriverHearsOfTheNewEpoch) {
  worker.Rejoin(Epoch(2));
  const auto joined = worker.Take<SessionJoined>();
  ASSERT_THAT(joined, SizeIs(1));
  EXPECT_FALSE(joined[0].first);
  EXPECT_EQ(joined[0].epoch, Epoch(2));
}

TEST_F(ReconnectTest, ABufferThatChangedBeforeItWasKnownAgainIsAnnouncedOnceMore) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Say(OperationResolved{{buffer, kSecond}, kStep2, std::nullopt});
  Announced();
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  worker.Handle(event::FillFailed{buffer, absl::UnavailableError("x")});
  worker.Handle(event::FillStopped{buffer});
  worker.Drop();
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto again = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].buffer.held->version, kStep1);
}

TEST_F(ReconnectTest, SumsThatWereDoneBeforeTheBufferWasKnownAgainAreAnnouncedOnceMore) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  Announced();
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  worker.Handle(event::Sealed{buffer, kStep1.sequence, worker.session.buffer_generation(buffer),
                              TestRoot(3)});
  worker.Drop();
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto again = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].buffer.held->root, TestRoot(3));
}

TEST_F(ReconnectTest, AResetBeforeTheBufferWasKnownAgainIsAnnouncedOnceMore) {
  ASSERT_OK(worker.Handle(event::Update{CallId(1), buffer, {}}).status);
  worker.Say(OperationResolved{{buffer, kFirst}, kStep1, std::nullopt});
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillFailed{buffer, absl::UnavailableError("x")});
  worker.Handle(event::FillStopped{buffer});
  ASSERT_EQ(worker.session.buffer_state(buffer), BufferState::kUndefined);
  Announced();
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  ASSERT_OK(worker.Handle(event::Reset{buffer}).status);
  worker.Drop();
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto again = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_FALSE(again[0].buffer.held.has_value());
}

TEST_F(ReconnectTest, TheErrorOfAnUpdateWithoutAServerSaysSo) {
  ASSERT_OK(worker.Handle(event::Update{CallId(1), buffer, {.timeout = absl::Seconds(5)}}).status);
  worker.BreakStream();
  worker.Pass(absl::Seconds(7));
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                       ::testing::AllOf(HasSubstr("version=latest"),
                                                        HasSubstr("the server is away"))));
}

}  // namespace
}  // namespace th
