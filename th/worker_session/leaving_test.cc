// How a worker leaves: with its readers' last segments ended, and with a notice.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

constexpr OperationNumber kFirst(1);
constexpr TransferId kReader(7);
const VersionInfo kStep1 = {VersionSequence(1), Label("step-1"), {}, {}};

class LeavingTest : public ::testing::Test {
 protected:
  LeavingTest() { worker_.Join(); }
  // A buffer that one reader reads.
  void PublishToAReader() {
    buffer_ = worker_.RegisteredBuffer();
    worker_.PublishNamed(buffer_, kFirst, kStep1);
    worker_.Admit(kReader, buffer_, kStep1.sequence);
    worker_.Drop();
  }
  std::vector<TransferId> Finished() {
    std::vector<TransferId> finished;
    for (const FinishReaders& finish : worker_.Take<FinishReaders>()) {
      finished.insert(finished.end(), finish.transfers.begin(), finish.transfers.end());
    }
    return finished;
  }
  bool ended() { return !worker_.Take<SessionEnded>().empty(); }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(LeavingTest, ReadersEndTheSegmentUnderWayBeforeTheSessionEnds) {
  PublishToAReader();
  worker_.Handle(event::Leave{});
  EXPECT_THAT(Finished(), ElementsAre(kReader));
  EXPECT_THAT(worker_.Take<CutReaders>(), IsEmpty());
  EXPECT_THAT(worker_.TakeSentNames(), ElementsAre("Leave"));
  EXPECT_FALSE(ended());
  worker_.Handle(event::ReaderReleased{kReader});
  EXPECT_TRUE(ended());
}

TEST_F(LeavingTest, AReaderThatDoesNotEndIsWaitedForNoLongerThanTheGrace) {
  PublishToAReader();
  worker_.Handle(event::Leave{});
  worker_.Pass(absl::Milliseconds(499));
  EXPECT_FALSE(ended());
  EXPECT_THAT(worker_.Take<CutReaders>(), IsEmpty());
  worker_.Pass(absl::Milliseconds(1));
  EXPECT_TRUE(ended());
}

TEST_F(LeavingTest, TheCallerMayGrantLess) {
  PublishToAReader();
  worker_.Handle(event::Leave{absl::Milliseconds(100)});
  worker_.Pass(absl::Milliseconds(100));
  EXPECT_TRUE(ended());
}

TEST_F(LeavingTest, NobodyIsAdmittedAnyMore) {
  PublishToAReader();
  worker_.Handle(event::Leave{});
  worker_.Handle(event::AdmissionAsked{TransferId(8), buffer_,
                                       worker_.CapabilityFor(buffer_, kStep1.sequence),
                                       worker_.session.buffer_generation(buffer_)});
  const auto decided = worker_.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(decided[0].status, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(LeavingTest, ReadersOfABufferThatFillsEndTheirSegmentToo) {
  buffer_ = worker_.RegisteredBuffer();
  worker_.UpdateToFilling(buffer_, kFirst, kStep1);
  worker_.Admit(kReader, buffer_, kStep1.sequence);
  worker_.Drop();
  worker_.Handle(event::Leave{});
  EXPECT_THAT(Finished(), ElementsAre(kReader));
  EXPECT_THAT(worker_.Take<StopFill>(), SizeIs(1));
  worker_.Handle(event::FillStopped{buffer_});
  EXPECT_FALSE(ended());
  worker_.Handle(event::ReaderReleased{kReader});
  EXPECT_TRUE(ended());
}

// ---- notices

TEST_F(LeavingTest, ANoticeIsToldAndKept) {
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(30)}).status);
  const auto reported = worker_.TakeSent<Preempt>();
  ASSERT_THAT(reported, SizeIs(1));
  EXPECT_EQ(reported[0].deadline, absl::Seconds(30));
  worker_.Pass(absl::Seconds(30) - absl::Milliseconds(1));
  EXPECT_TRUE(worker_.session.joined());
  EXPECT_THAT(worker_.TakeSent<Leave>(), IsEmpty());
  worker_.Pass(absl::Milliseconds(1));
  EXPECT_THAT(worker_.TakeSent<Leave>(), SizeIs(1));
  EXPECT_TRUE(ended());
  EXPECT_OK(worker_.session.end_status());
}

TEST_F(LeavingTest, TheEarliestOfSeveralNoticesCounts) {
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(30)}).status);
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(60)}).status);
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(10)}).status);
  EXPECT_THAT(worker_.TakeSent<Preempt>(), SizeIs(2));
  worker_.Pass(absl::Seconds(10));
  EXPECT_TRUE(ended());
}

TEST_F(LeavingTest, ANoticeInThePastOrTooFarAheadIsRefused) {
  for (const absl::Duration notice :
       {absl::ZeroDuration(), -absl::Seconds(3), absl::Hours(25), absl::InfiniteDuration()}) {
    EXPECT_THAT(worker_.Handle(event::Preempt{notice}).status,
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(worker_.TakeSent<Preempt>(), IsEmpty());
  worker_.Handle(event::Leave{});
  EXPECT_THAT(worker_.Handle(event::Preempt{absl::Seconds(1)}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(LeavingTest, AServerThatComesBackHearsOfTheNotice) {
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(30)}).status);
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.Handle(event::StreamOpened{});
  const auto joins = worker_.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  EXPECT_EQ(joins[0].leaves_in, absl::Seconds(30) - absl::Milliseconds(50));
}

TEST_F(LeavingTest, ANoticeDuringTheJoinIsToldAfterIt) {
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.OpenAndHearJoin();
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(30)}).status);
  worker_.Pass(absl::Seconds(1));
  worker_.Say(worker_.JoinedAnswer(Epoch(1)));
  const auto reported = worker_.TakeSent<Preempt>();
  ASSERT_THAT(reported, SizeIs(1));
  EXPECT_EQ(reported[0].deadline, absl::Seconds(29));
}

TEST_F(LeavingTest, ANoticeThatTheJoinToldIsNotToldAgain) {
  ASSERT_OK(worker_.Handle(event::Preempt{absl::Seconds(30)}).status);
  worker_.Drop();
  worker_.Rejoin(Epoch(1));
  EXPECT_THAT(worker_.TakeSent<Preempt>(), IsEmpty());
}

TEST_F(LeavingTest, WhoHasNoNoticeStays) {
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.Handle(event::StreamOpened{});
  EXPECT_EQ(worker_.TakeSent<JoinRequest>()[0].leaves_in, absl::InfiniteDuration());
}

}  // namespace
}  // namespace th
