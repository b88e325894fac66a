// A buffer whose update failed after its first write, and the verbs that an update in progress
// refuses.
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

class UndefinedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    buffer = worker.RegisteredBuffer();
    worker.UpdateToFilling(buffer, kFirst, kStep1);
    worker.Handle(event::FirstWrite{buffer});
    worker.Handle(event::FillProgressed{buffer, {FirstSegments(4), 4}});
    FailFillNow(absl::UnavailableError("no source left"));
    worker.Finish({buffer, kFirst}, OperationKind::kUpdate,
                  absl::UnavailableError("rank rollout-3/1: no source left"));
    worker.Drop();
    ASSERT_EQ(State(), BufferState::kUndefined);
  }
  absl::Status Update(CallId call = CallId(1)) {
    return worker.Handle(event::Update{call, buffer, {.timeout = absl::Seconds(60)}}).status;
  }
  void Resolve(OperationNumber number, const VersionInfo& version) {
    worker.Say(OperationResolved{{buffer, number}, version, std::nullopt});
  }
  void FailFillNow(const absl::Status& why) {
    worker.Handle(event::FillFailed{buffer, why});
    worker.Handle(event::FillStopped{buffer});
  }
  BufferState State() { return worker.session.buffer_state(buffer); }

  SessionHarness worker;
  BufferId buffer;
};

TEST_F(UndefinedTest, RefusesToBePublished) {
  EXPECT_THAT(worker.Handle(event::Publish{CallId(2), buffer, {.label = Label("x")}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::AllOf(HasSubstr("PUBLISH_REFUSED"), HasSubstr("undefined"),
                                        HasSubstr("reset it"))));
}

TEST_F(UndefinedTest, TheSameVersionIsResumed) {
  ASSERT_OK(Update());
  Resolve(kSecond, kStep1);
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_EQ(fills[0].resume, FirstSegments(4));
}

TEST_F(UndefinedTest, AnotherVersionStartsFromNothing) {
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2);
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_TRUE(fills[0].resume.empty());
}

// A server whose state was lost may give a number that another one has given.
TEST_F(UndefinedTest, AnotherVersionOfTheSameNumberStartsFromNothing) {
  ASSERT_OK(Update());
  Resolve(kSecond, Version(7, "step-2"));
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_TRUE(fills[0].resume.empty());
}

TEST_F(UndefinedTest, AFillDoesNotGoOnForAnotherVersionOfTheSameNumber) {
  ASSERT_OK(Update());
  Resolve(kSecond, kStep1);
  ASSERT_THAT(worker.Take<StartFill>(), SizeIs(1));
  Resolve(kSecond, Version(7, "step-2"));
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
}

TEST_F(UndefinedTest, AGoodUpdateLeavesIt) {
  worker.UpdateTo(buffer, kSecond, kStep2);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep2);
}

TEST_F(UndefinedTest, AnotherVersionThatWroteNothingKeepsWhatWasChecked) {
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2);
  FailFillNow(absl::UnavailableError("no source left"));
  EXPECT_EQ(State(), BufferState::kUndefined);
  ASSERT_OK(Update(CallId(3)));
  worker.Drop();
  Resolve(OperationNumber(3), kStep1);
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_EQ(fills[0].resume, FirstSegments(4));
}

TEST_F(UndefinedTest, ResetLeavesItAndTellsTheServer) {
  ASSERT_OK(worker.Handle(event::Reset{buffer}).status);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("BufferReset"));
  EXPECT_OK(worker.Handle(event::Publish{CallId(2), buffer, {.label = Label("x")}}).status);
}

TEST_F(UndefinedTest, WhatWasCheckedIsServed) {
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  const auto decided = worker.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_OK(decided[0].status);
}

TEST_F(UndefinedTest, IsAnnouncedAsPartial) {
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_TRUE(joins[0].buffers[0].held.has_value());
  EXPECT_FALSE(joins[0].buffers[0].held->complete);
  EXPECT_EQ(joins[0].buffers[0].held->segments, FirstSegments(4));
  EXPECT_THAT(joins[0].buffers[0].held->sources, IsEmpty());
}

// ---- verbs during an update

struct VerbDuringUpdate {
  const char* name;
  absl::Status (*call)(SessionHarness&, BufferId);
};
class VerbDuringUpdateTest : public ::testing::TestWithParam<VerbDuringUpdate> {};

TEST_P(VerbDuringUpdateTest, IsRefusedInEveryPhase) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.PublishNamed(buffer, kFirst, kStep1);
  const auto refused = [&](const char* phase) {
    EXPECT_THAT(GetParam().call(worker, buffer), StatusIs(absl::StatusCode::kFailedPrecondition))
        << phase;
  };
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  refused("asked");
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  worker.Say(OperationResolved{{buffer, kSecond}, kStep2, std::nullopt});
  refused("draining");
  worker.Handle(event::ReaderReleased{TransferId(1)});
  refused("filling");
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  refused("shard done");
  worker.Finish({buffer, kSecond}, OperationKind::kUpdate, absl::AbortedError("no"));
  refused("stopping");
}

INSTANTIATE_TEST_SUITE_P(
    All, VerbDuringUpdateTest,
    ::testing::Values(
        VerbDuringUpdate{
            "Publish",
            [](SessionHarness& worker, BufferId buffer) {
              return worker.Handle(event::Publish{CallId(9), buffer, {.label = Label("x")}}).status;
            }},
        VerbDuringUpdate{"Unpublish",
                         [](SessionHarness& worker, BufferId buffer) {
                           return worker.Handle(event::Unpublish{CallId(9), buffer, {}}).status;
                         }},
        VerbDuringUpdate{"Update",
                         [](SessionHarness& worker, BufferId buffer) {
                           return worker.Handle(event::Update{CallId(9), buffer, {}}).status;
                         }},
        VerbDuringUpdate{"Reset",
                         [](SessionHarness& worker, BufferId buffer) {
                           return worker.Handle(event::Reset{buffer}).status;
                         }},
        VerbDuringUpdate{"Rebind",
                         [](SessionHarness& worker, BufferId buffer) {
                           return worker.session.CanRebind(buffer);
                         }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace th
