#include <memory>
#include <string>
#include <vector>

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

// Joins, loses the server, and opens the next stream once the first interval has passed.
void LoseServer(SessionHarness& worker) {
  worker.Join();
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.Handle(event::StreamOpened{});
}

TEST(MembershipTest, TheFirstThingSentIsTheJoin) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1));
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
  worker.Handle(event::StreamOpened{});
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  EXPECT_EQ(joins[0].key, TestOptions().key);
  EXPECT_EQ(joins[0].name, TestOptions().name);
  EXPECT_EQ(joins[0].ranks, 2u);
  EXPECT_EQ(joins[0].hello.max_version, kProtocolVersion);
  EXPECT_FALSE(joins[0].resume.has_value());
  EXPECT_FALSE(worker.session.joined());
}

TEST(MembershipTest, JoinedTellsTheDriver) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  worker.Say(worker.JoinedAnswer(Epoch(4)));
  EXPECT_TRUE(worker.session.joined());
  EXPECT_EQ(worker.session.epoch(), Epoch(4));
  EXPECT_EQ(worker.session.worker(), worker.worker);
  const auto joined = worker.Take<SessionJoined>();
  ASSERT_THAT(joined, SizeIs(1));
  EXPECT_TRUE(joined[0].first);
  EXPECT_EQ(joined[0].epoch, Epoch(4));
}

TEST(MembershipTest, NothingButAnAnswerToTheJoinCountsBeforeIt) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Say(worker.JoinedAnswer(Epoch(4)));  // the stream is not open yet
  EXPECT_FALSE(worker.session.joined());
  worker.Handle(event::StreamOpened{});
  worker.Drop();
  worker.Say(GroupChanged{GroupGeneration(9), {}});
  worker.Say(CommandFinished{"k", absl::OkStatus(), {}, Lineage(3)});
  EXPECT_FALSE(worker.session.joined());
  EXPECT_THAT(worker.Take<SendToServer>(), IsEmpty());
}

TEST(MembershipTest, SpeaksThriceInALease) {
  SessionHarness worker;  // with a lease of 3 s
  worker.Join();
  worker.Pass(absl::Seconds(1));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("Heartbeat"));
  worker.Pass(absl::Seconds(2));
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("Heartbeat", "Heartbeat"));
}

TEST(MembershipTest, WhatIsSentAnywayPutsNoHeartbeatOff) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.Pass(worker.session.NextDeadline() - worker.now);
  ASSERT_THAT(worker.TakeSentNames(), ElementsAre("Heartbeat"));
  worker.Pass(absl::Milliseconds(700));
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("a")}}).status);
  worker.Drop();
  worker.Pass(absl::Milliseconds(300));  // an interval after the heartbeat before
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("Heartbeat"));
}

// Workers that act together do not speak together.
TEST(MembershipTest, WorkersThatJoinTogetherSpeakOneAfterTheOther) {
  constexpr int kWorkers = 100;
  constexpr absl::Duration kPart = absl::Milliseconds(100);  // a tenth of the interval
  std::vector<std::unique_ptr<SessionHarness>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<SessionHarness>());
    workers.back()->worker = WorkerId((uint64_t{4} << 32) + 1 + i);
    workers.back()->Join();
    workers.back()->Drop();
  }
  for (int part = 0; part < 10; ++part) {
    size_t spoke = 0;
    for (const auto& worker : workers) {
      worker->Pass(kPart);
      spoke += worker->TakeSentNames().size();
    }
    EXPECT_GE(spoke, 7u) << "in part " << part;
    EXPECT_LE(spoke, 13u) << "in part " << part;
  }
}

TEST(MembershipTest, ALeaseThatIsNoneDoesNotSpin) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  Joined joined = worker.JoinedAnswer(Epoch(1));
  joined.lease = absl::Seconds(-1);
  joined.progress_interval = -absl::InfiniteDuration();
  worker.Say(joined);
  worker.Drop();
  worker.Pass(absl::Seconds(1));
  EXPECT_THAT(worker.TakeSentNames(), SizeIs(::testing::Le(100)));
}

TEST(MembershipTest, ReconnectsAtExponentialIntervalsUpToTheLargest) {
  SessionHarness worker;
  worker.Join();
  worker.BreakStream();
  EXPECT_FALSE(worker.session.joined());
  for (int wait_ms : {50, 100, 200, 400, 800, 1000, 1000}) {
    worker.Pass(absl::Milliseconds(wait_ms - 1));
    EXPECT_THAT(worker.Take<OpenStream>(), IsEmpty()) << wait_ms;
    worker.Pass(absl::Milliseconds(1));
    EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1)) << wait_ms;
    worker.BreakStream();
  }
  EXPECT_FALSE(worker.session.ended());
}

TEST(MembershipTest, AJoinStartsTheIntervalsOver) {
  SessionHarness worker;
  worker.Join();
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(100));
  worker.Handle(event::StreamOpened{});
  worker.Say(worker.JoinedAnswer(Epoch(1)));
  worker.Drop();
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1));
}

TEST(MembershipTest, NoServerInTimeEndsTheFirstJoin) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  for (int i = 0; i < 40 && !worker.session.ended(); ++i) {
    worker.Handle(event::StreamClosed{absl::UnavailableError("connection refused")});
    worker.Pass(absl::Seconds(1));
  }
  EXPECT_TRUE(worker.session.ended());
  const auto ended = worker.Take<SessionEnded>();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_THAT(ended[0].status,
              StatusIs(absl::StatusCode::kUnavailable,
                       ::testing::AllOf(HasSubstr("SERVER_UNREACHABLE run=r1 model=qwen3"),
                                        HasSubstr("connection refused"))));
}

TEST(MembershipTest, ALostServerIsAwaitedForEver) {
  SessionHarness worker;
  worker.Join();
  for (int i = 0; i < 100; ++i) {
    worker.BreakStream();
    worker.Pass(absl::Seconds(1));
  }
  EXPECT_FALSE(worker.session.ended());
}

TEST(MembershipTest, AServerThatDoesNotAnswerIsLeftForAnotherTry) {
  SessionHarness worker;
  LoseServer(worker);
  worker.Drop();
  worker.Pass(absl::Seconds(5));
  EXPECT_THAT(worker.Take<CloseStream>(), SizeIs(1));
  worker.Pass(absl::Seconds(1));
  EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1));
}

TEST(MembershipTest, ARefusedJoinEndsTheSessionAndSaysWhy) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  worker.Say(Refused{absl::AlreadyExistsError("rollout-3/1 is held by 10.0.0.9"),
                     absl::InfiniteDuration()});
  EXPECT_TRUE(worker.session.ended());
  EXPECT_THAT(worker.session.end_status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "JOIN_REFUSED run=r1 model=qwen3 rank=rollout-3/1: rollout-3/1 is held by "
                       "10.0.0.9"));
  EXPECT_THAT(worker.Take<SessionEnded>(), SizeIs(1));
  EXPECT_EQ(worker.session.NextDeadline(), absl::InfiniteFuture());
}

TEST(MembershipTest, AJoinRefusedForNowIsTriedAgainAfterTheTimeNamed) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  worker.Drop();
  worker.Say(Refused{absl::UnavailableError("recovering"), absl::Milliseconds(700)});
  EXPECT_FALSE(worker.session.ended());
  worker.Pass(absl::Milliseconds(699));
  EXPECT_THAT(worker.Take<OpenStream>(), IsEmpty());
  worker.Pass(absl::Milliseconds(1));
  EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1));
}

TEST(MembershipTest, AReplacedWorkerIsToldToJoinAgain) {
  SessionHarness worker;
  worker.Join();
  worker.Say(Refused{absl::AbortedError("another worker holds rollout-3/1 now"),
                     absl::InfiniteDuration()});
  EXPECT_TRUE(worker.session.ended());
  EXPECT_THAT(
      worker.session.end_status(),
      StatusIs(absl::StatusCode::kAborted,
               ::testing::AllOf(HasSubstr("MEMBERSHIP_ENDED run=r1"), HasSubstr("join again"))));
}

TEST(MembershipTest, TheRemedyIsSaidOnce) {
  for (const std::string& why : std::vector<std::string>{"it was replaced; join again", "gone"}) {
    SessionHarness worker;
    worker.Join();
    worker.Say(Refused{absl::AbortedError(why), absl::InfiniteDuration()});
    const std::string said(worker.session.end_status().message());
    EXPECT_EQ(said.find("join again"), said.rfind("join again")) << said;
    EXPECT_THAT(said, HasSubstr("join again"));
  }
}

TEST(MembershipTest, VerbsOfAnEndedSessionAreRefused) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.Handle(event::Leave{});
  EXPECT_THAT(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("a")}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(worker.Handle(event::Update{CallId(1), buffer, {}}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(worker.BufferOf(event::RegisterBuffer{"b", "hf", TestLayout()}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MembershipTest, LeaveTellsTheServerAndEndsOnce) {
  SessionHarness worker;
  worker.Join();
  worker.Handle(event::Leave{});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("Leave"));
  EXPECT_THAT(worker.Take<CloseStream>(), SizeIs(1));
  const auto ended = worker.Take<SessionEnded>();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_OK(ended[0].status);
  worker.Handle(event::Leave{});
  worker.Pass(absl::Seconds(10));
  EXPECT_THAT(worker.Take<SessionEnded>(), IsEmpty());
  EXPECT_THAT(worker.Take<SendToServer>(), IsEmpty());
}

TEST(MembershipTest, PendingCallsOfALeavingWorkerEndCancelled) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  ASSERT_OK(worker.Handle(event::Update{CallId(5), buffer, {}}).status);
  worker.Handle(event::Leave{});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].call, CallId(5));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kCancelled));
}

TEST(MembershipTest, AServerOfAnOlderEpochIsLeft) {
  SessionHarness worker;
  worker.epoch = Epoch(5);
  LoseServer(worker);
  worker.Drop();
  worker.Say(worker.JoinedAnswer(Epoch(4)));
  EXPECT_FALSE(worker.session.joined());
  EXPECT_EQ(worker.session.epoch(), Epoch(5));
  EXPECT_THAT(worker.Take<CloseStream>(), SizeIs(1));
}

TEST(MembershipTest, AServerOfAnOlderEpochEndsNoMembership) {
  SessionHarness worker;
  worker.epoch = Epoch(5);
  LoseServer(worker);
  worker.Drop();
  worker.Say(Refused{.status = absl::AbortedError("its lease ran out"), .epoch = Epoch(4)});
  EXPECT_FALSE(worker.session.ended());
  EXPECT_THAT(worker.Take<CloseStream>(), SizeIs(1));
  worker.Pass(absl::Seconds(1));
  EXPECT_THAT(worker.Take<OpenStream>(), SizeIs(1));
  worker.Handle(event::StreamOpened{});
  worker.Say(Refused{.status = absl::AbortedError("its lease ran out"), .epoch = Epoch(5)});
  EXPECT_TRUE(worker.session.ended());
}

TEST(MembershipTest, AServerWithAnotherStateGivesAnotherIdentity) {
  SessionHarness worker;
  LoseServer(worker);
  worker.worker = WorkerId(202);
  Joined joined = worker.JoinedAnswer(Epoch(2));
  joined.cluster = ClusterId(9);
  joined.epoch_id = EpochId(8);
  joined.secret.bytes.fill(7);
  worker.Say(joined);
  EXPECT_EQ(worker.session.worker(), WorkerId(202));
  worker.Drop();
  worker.BreakStream();
  worker.Pass(absl::Milliseconds(50));
  const JoinRequest again = worker.OpenAndHearJoin();
  ASSERT_TRUE(again.resume.has_value());
  EXPECT_EQ(again.resume->worker, WorkerId(202));
  EXPECT_EQ(again.resume->cluster, ClusterId(9));
  EXPECT_EQ(again.resume->epoch_id, EpochId(8));
  EXPECT_TRUE(again.resume->secret == joined.secret);
}

TEST(MembershipTest, AServerOfAnotherProtocolEndsTheSession) {
  SessionHarness worker;
  worker.Handle(event::Start{});
  worker.Handle(event::StreamOpened{});
  Joined joined = worker.JoinedAnswer(Epoch(1));
  joined.hello.min_version = joined.hello.max_version = kProtocolVersion + 1;
  worker.Say(joined);
  EXPECT_THAT(worker.session.end_status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                    HasSubstr("no protocol version in common")));
}

TEST(MembershipTest, ARejoinClaimsTheFormerPlace) {
  SessionHarness worker;
  LoseServer(worker);
  const auto joins = worker.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_TRUE(joins[0].resume.has_value());
  EXPECT_EQ(joins[0].resume->worker, worker.worker);
  EXPECT_EQ(joins[0].resume->epoch, Epoch(1));
  EXPECT_EQ(joins[0].resume->group_generation, GroupGeneration(1));
}

TEST(MembershipTest, AChangedGroupEndsWhatIsPendingAndStartsTheNumbersOver) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  worker.PublishNamed(buffer, OperationNumber(1), Version(7, "step-1"));
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Drop();
  worker.Say(GroupChanged{GroupGeneration(2), {"rollout-3", Rank(0)}});
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status,
              StatusIs(absl::StatusCode::kAborted,
                       ::testing::AllOf(HasSubstr("GROUP_CHANGED"), HasSubstr("rollout-3/0"))));
  const auto announced = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(announced, SizeIs(1));
  ASSERT_TRUE(announced[0].buffer.held.has_value());
  EXPECT_TRUE(announced[0].buffer.held->complete);
  ASSERT_OK(worker.Handle(event::Update{CallId(3), buffer, {}}).status);
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key.number, OperationNumber(1));
  EXPECT_EQ(starts[0].group_generation, GroupGeneration(2));
}

TEST(MembershipTest, AnOldWordOfAGroupChangeIsIgnored) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Drop();
  worker.Say(GroupChanged{GroupGeneration(1), {"rollout-3", Rank(0)}});
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
}

TEST(MembershipTest, AGroupThatChangedWhileAwayEndsWhatIsPending) {
  SessionHarness worker;
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Drop();
  worker.Rejoin(Epoch(1), GroupGeneration(2));
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kAborted, HasSubstr("GROUP_CHANGED")));
  EXPECT_THAT(worker.TakeSent<StartOperation>(), IsEmpty());
}

}  // namespace
}  // namespace th
