// Buffers, admissions of readers, commands.
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
constexpr OperationNumber kFirst(1);

TEST(BuffersTest, ARegistrationIsReadyWhenTheServerSaysSo) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK_AND_ASSIGN(const BufferId buffer,
                       worker.BufferOf(event::RegisterBuffer{"w", "hf", TestLayout()}));
  EXPECT_EQ(buffer, BufferId(1));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("RegisterBuffer"));
  EXPECT_THAT(worker.Take<BufferReady>(), IsEmpty());
  worker.Say(LayoutWanted{TestLayout()->digest()});
  const auto layouts = worker.TakeSent<LayoutUpload>();
  ASSERT_THAT(layouts, SizeIs(1));
  EXPECT_EQ(layouts[0].layout.digest(), TestLayout()->digest());
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  const auto ready = worker.Take<BufferReady>();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_OK(ready[0].status);
}

TEST(BuffersTest, RegistrationsBeforeTheJoinFollowIt) {
  SessionHarness worker;
  ASSERT_OK(worker.BufferOf(event::RegisterBuffer{"w", "hf", TestLayout()}));
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("JoinRequest", "RegisterBuffer"));
}

TEST(BuffersTest, OperationsWaitForTheRegistration) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK_AND_ASSIGN(const BufferId buffer,
                       worker.BufferOf(event::RegisterBuffer{"w", "hf", TestLayout()}));
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("a")}}).status);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("RegisterBuffer"));
  worker.Say(BufferRegistered{buffer, absl::OkStatus()});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("StartOperation"));
}

TEST(BuffersTest, ARefusedBufferEndsItsOperationsAndRefusesMore) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK_AND_ASSIGN(const BufferId buffer,
                       worker.BufferOf(event::RegisterBuffer{"w", "hf", TestLayout()}));
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("a")}}).status);
  worker.Say(BufferRegistered{buffer, absl::InvalidArgumentError("other ranks have form fp8")});
  const auto ready = worker.Take<BufferReady>();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_THAT(ready[0].status, StatusIs(absl::StatusCode::kInvalidArgument));
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(worker.session.buffer_state(buffer), BufferState::kWritable);
  EXPECT_THAT(worker.Handle(event::Update{CallId(2), buffer, {}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("form fp8")));
}

TEST(BuffersTest, BadRegistrationsAreRefused) {
  SessionLimits limits;
  limits.max_buffers = 2;
  SessionHarness worker(TestOptions(), limits);
  worker.Join();
  const auto add = [&](const char* name, const char* form,
                       std::shared_ptr<const ShardLayout> layout) {
    return worker.BufferOf(event::RegisterBuffer{name, form, std::move(layout)}).status();
  };
  EXPECT_THAT(add("", "hf", TestLayout()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(add("a b", "hf", TestLayout()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(add("w", "", TestLayout()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(add("w", "hf", nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(add("w", "hf", TestLayout()));
  EXPECT_THAT(add("w", "hf", TestLayout()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(add("w", "fp8", TestLayout()));
  EXPECT_THAT(add("x", "hf", TestLayout()), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(BuffersTest, ABufferIsUnregisteredInTheMiddleOfAnything) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  worker.Drop();
  EXPECT_OK(worker.Handle(event::UnregisterBuffer{buffer}).status);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("UnregisterBuffer"));
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kCancelled));
  worker.Handle(event::ReaderReleased{TransferId(1)});
  worker.Handle(event::FillStopped{buffer});
  worker.Handle(event::FirstWrite{buffer});
  worker.Finish({buffer, kFirst}, OperationKind::kUpdate, absl::OkStatus());
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  EXPECT_THAT(worker.Handle(event::UnregisterBuffer{buffer}).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A caller that hears of the end may free the memory: by then the driver knows that nothing may be
// written.
TEST(BuffersTest, TheFillOfABufferThatIsUnregisteredIsStoppedBeforeItsCallEnds) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Drop();
  EXPECT_OK(worker.Handle(event::UnregisterBuffer{buffer}).status);
  std::vector<std::string> outputs;
  while (const auto output = worker.session.PollOutput()) {
    if (const auto* stop = std::get_if<StopFill>(&*output)) {
      EXPECT_EQ(stop->operation, (OperationKey{buffer, kFirst}));
      outputs.push_back("stop");
    }
    if (std::holds_alternative<OperationDone>(*output)) outputs.push_back("done");
  }
  EXPECT_THAT(outputs, ElementsAre("stop", "done"));
}

TEST(BuffersTest, BuffersHaveTheirOwnNumbers) {
  SessionHarness worker;
  worker.Join();
  const BufferId first = worker.RegisteredBuffer("first");
  const BufferId second = worker.RegisteredBuffer("second");
  worker.PublishNamed(first, kFirst, kStep1);
  ASSERT_OK(worker.Handle(event::Publish{CallId(2), second, {.label = Label("a")}}).status);
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key, (OperationKey{second, kFirst}));
}

TEST(BuffersTest, ResetOfAPublishedBufferIsRefused) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.PublishNamed(buffer, kFirst, kStep1);
  EXPECT_THAT(worker.Handle(event::Reset{buffer}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("RESET_REFUSED")));
  EXPECT_THAT(worker.session.CanRebind(buffer), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// ---- admissions

class AdmissionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.epoch = Epoch(5);
    worker.Join();
    buffer = worker.RegisteredBuffer();
  }
  // The decision on the capability, if there is one by now.
  std::optional<absl::Status> Ask(const Capability& capability, uint64_t transfer = 1) {
    worker.Handle(event::AdmissionAsked{TransferId(transfer), buffer, capability,
                                        worker.session.buffer_generation(buffer)});
    return Decided();
  }
  std::optional<absl::Status> Decided() {
    const auto decided = worker.Take<AdmissionDecided>();
    EXPECT_LE(decided.size(), 1u);
    return decided.empty() ? std::nullopt : std::optional(decided[0].status);
  }

  SessionHarness worker;
  BufferId buffer;
};

TEST_F(AdmissionTest, AGoodCapabilityIsAdmitted) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), absl::OkStatus());
}

struct BadCapability {
  const char* name;
  void (*spoil)(CapabilityClaims&);
  absl::StatusCode code;
};
class BadCapabilityTest : public ::testing::TestWithParam<BadCapability> {};

TEST_P(BadCapabilityTest, IsRefused) {
  SessionHarness worker;
  worker.epoch = Epoch(5);
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.PublishNamed(buffer, kFirst, kStep1);
  CapabilityClaims claims = worker.CapabilityFor(buffer, kStep1.sequence).claims;
  GetParam().spoil(claims);
  worker.Handle(event::AdmissionAsked{TransferId(1), buffer, MintCapability(TestKey(5), claims),
                                      worker.session.buffer_generation(buffer)});
  const auto decided = worker.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(decided[0].status, StatusIs(GetParam().code));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadCapabilityTest,
    ::testing::Values(
        BadCapability{"OlderEpoch", [](CapabilityClaims& c) { c.epoch = Epoch(4); },
                      absl::StatusCode::kFailedPrecondition},
        BadCapability{"NewerEpoch", [](CapabilityClaims& c) { c.epoch = Epoch(6); },
                      absl::StatusCode::kUnavailable},
        BadCapability{"OtherWorker", [](CapabilityClaims& c) { c.source.worker = WorkerId(1); },
                      absl::StatusCode::kPermissionDenied},
        BadCapability{"OtherBuffer", [](CapabilityClaims& c) { c.source.buffer = BufferId(9); },
                      absl::StatusCode::kPermissionDenied},
        BadCapability{"OtherVersion", [](CapabilityClaims& c) { c.version = VersionSequence(99); },
                      absl::StatusCode::kAborted}),
    [](const auto& info) { return info.param.name; });

TEST_F(AdmissionTest, AForgedOrAlteredCapabilityIsRefused) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  Capability altered = worker.CapabilityFor(buffer, kStep1.sequence);
  altered.claims.reader = WorkerId(56);
  EXPECT_THAT(*Ask(altered), StatusIs(absl::StatusCode::kPermissionDenied));
  Capability forged = worker.CapabilityFor(buffer, kStep1.sequence);
  forged.mac[0] ^= 1;
  EXPECT_THAT(*Ask(forged), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(AdmissionTest, AnotherGenerationIsRefused) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Handle(event::AdmissionAsked{
      TransferId(1), buffer, worker.CapabilityFor(buffer, kStep1.sequence), BufferGeneration(99)});
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(AdmissionTest, AnUnknownBufferIsRefused) {
  worker.Handle(event::AdmissionAsked{TransferId(1), BufferId(9),
                                      worker.CapabilityFor(BufferId(9), kStep1.sequence),
                                      BufferGeneration(1)});
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AdmissionTest, AReaderThatComesBeforeTheNameIsHeldUntilIt) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), std::nullopt);
  worker.Pass(absl::Milliseconds(500));
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_EQ(Decided(), absl::OkStatus());
}

TEST_F(AdmissionTest, AReaderOfAnotherVersionThanTheNamedOneIsRefusedThen) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, VersionSequence(3))), std::nullopt);
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(AdmissionTest, AReaderIsNotHeldForEver) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), std::nullopt);
  worker.Pass(absl::Milliseconds(999));
  EXPECT_EQ(Decided(), std::nullopt);
  worker.Pass(absl::Milliseconds(1));
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AdmissionTest, HeldReadersAreLimited) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  const Capability capability = worker.CapabilityFor(buffer, kStep1.sequence);
  for (uint64_t i = 1; i <= 256; ++i) EXPECT_EQ(Ask(capability, i), std::nullopt);
  EXPECT_THAT(*Ask(capability, 257), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AdmissionTest, AHeldReaderThatLeavesIsForgotten) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), std::nullopt);
  worker.Handle(event::ReaderReleased{TransferId(1)});
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_EQ(Decided(), std::nullopt);
}

TEST_F(AdmissionTest, AHeldReaderIsRefusedWhenThePublicationFails) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), std::nullopt);
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::AbortedError("no"));
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AdmissionTest, AHeldReaderIsRefusedWhenItsEpochEnds) {
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), std::nullopt);
  worker.Rejoin(Epoch(6));
  EXPECT_THAT(*Decided(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("epoch")));
}

TEST_F(AdmissionTest, WhatWasAdmittedOutlivesTheServer) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  const Capability old = worker.CapabilityFor(buffer, kStep1.sequence);
  EXPECT_EQ(Ask(old), absl::OkStatus());
  worker.Rejoin(Epoch(6));
  EXPECT_THAT(worker.Take<CutReaders>(), IsEmpty());
  EXPECT_THAT(*Ask(old, 2), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence), 3), absl::OkStatus());
}

TEST_F(AdmissionTest, ReadersAreAdmittedWhileTheServerIsAway) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.BreakStream();
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), absl::OkStatus());
}

TEST_F(AdmissionTest, AFillingBufferAdmitsReadersOfWhatItFills) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  EXPECT_EQ(Ask(worker.CapabilityFor(buffer, kStep1.sequence)), absl::OkStatus());
}

TEST_F(AdmissionTest, NobodyIsAdmittedBeforeTheJoin) {
  SessionHarness outsider;
  ASSERT_OK(outsider.BufferOf(event::RegisterBuffer{"w", "hf", TestLayout()}));
  outsider.Handle(event::AdmissionAsked{TransferId(1), BufferId(1),
                                        outsider.CapabilityFor(BufferId(1), kStep1.sequence),
                                        BufferGeneration(1)});
  const auto decided = outsider.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(decided[0].status, StatusIs(absl::StatusCode::kUnavailable));
}

// ---- commands

TEST(CommandsTest, TheAnswerReachesEveryCallWithTheKey) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK(worker.Handle(event::Command{CallId(1), {"k", RollBack{Label("a")}}}).status);
  ASSERT_OK(worker.Handle(event::Command{CallId(2), {"k", RollBack{Label("a")}}}).status);
  ASSERT_OK(worker.Handle(event::Command{CallId(3), {"other", SetRetention{2}}}).status);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("RunCommand", "RunCommand", "RunCommand"));
  worker.Say(CommandFinished{"k", absl::OkStatus(), kStep1, Lineage(4)});
  const auto done = worker.Take<CommandDone>();
  ASSERT_THAT(done, SizeIs(2));
  EXPECT_EQ(done[0].call, CallId(1));
  EXPECT_EQ(done[1].call, CallId(2));
  EXPECT_EQ(done[0].finished.version, kStep1);
}

TEST(CommandsTest, TheLineageOfARollBackIsClaimedAtTheNextJoin) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK(worker.Handle(event::Command{CallId(1), {"k", RollBack{Label("a")}}}).status);
  worker.Say(CommandFinished{"k", absl::OkStatus(), kStep1, Lineage(4)});
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  EXPECT_EQ(joins[0].resume->lineage, Lineage(4));
}

TEST(CommandsTest, AnUnansweredCommandEnds) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK(worker.Handle(event::Command{CallId(1), {"k", SetRetention{2}}}).status);
  worker.Pass(absl::Seconds(60));
  const auto done = worker.Take<CommandDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].finished.status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("COMMAND_DEADLINE")));
}

TEST(CommandsTest, BadCommandsAreRefused) {
  SessionHarness worker;
  worker.Join();
  EXPECT_THAT(worker.Handle(event::Command{CallId(1), {"", SetRetention{2}}}).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      worker.Handle(event::Command{CallId(1), {std::string(129, 'k'), SetRetention{2}}}).status,
      StatusIs(absl::StatusCode::kInvalidArgument));
  for (int i = 0; i < 64; ++i) {
    ASSERT_OK(
        worker.Handle(event::Command{CallId(i), {std::to_string(i), SetRetention{2}}}).status);
  }
  EXPECT_THAT(worker.Handle(event::Command{CallId(64), {"k", SetRetention{2}}}).status,
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(CommandsTest, CommandsEndWithTheSession) {
  SessionHarness worker;
  worker.Join();
  ASSERT_OK(worker.Handle(event::Command{CallId(1), {"k", SetRetention{2}}}).status);
  worker.Handle(event::Leave{});
  const auto done = worker.Take<CommandDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].finished.status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(worker.Handle(event::Command{CallId(2), {"k2", SetRetention{2}}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace th
