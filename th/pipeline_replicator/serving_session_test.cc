// Every decision of one serving connection, on a clock of whole milliseconds. Reader, holder and
// transport are played by hand; outputs are compared as text.
#include "th/pipeline_replicator/serving_session.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = ServingSession::State;

constexpr uint64_t kSegments = 8;

absl::Time At(int64_t milliseconds) {
  return absl::UnixEpoch() + absl::Hours(1) + absl::Milliseconds(milliseconds);
}
SegmentIndex S(uint64_t i) { return SegmentIndex(i); }
bool Always(SegmentIndex) { return true; }
bool Never(SegmentIndex) { return false; }

struct InWords {
  std::string operator()(const AskToAdmit&) const { return "ask"; }
  std::string operator()(const SendAdmitted& o) const {
    return absl::StrCat("admitted ", o.generation.value);
  }
  std::string operator()(const SendRefused& o) const {
    return absl::StrCat("refused: ", o.why.message());
  }
  std::string operator()(const SendAlive&) const { return "alive"; }
  std::string operator()(const SendClose& o) const { return absl::StrCat("close: ", o.why); }
  std::string operator()(const Disconnect& o) const { return absl::StrCat("disconnect: ", o.why); }
};

class ServingSessionTest : public ::testing::Test {
 protected:
  // keep_alive 100 ms, the two timeouts 1000 ms.
  static ServingLimits Limits() { return {.max_requests_queued = 2, .max_segments_queued = 6}; }

  std::vector<std::string> Outputs() {
    std::vector<std::string> outputs;
    while (const auto output = session_.PollOutput()) {
      outputs.push_back(std::visit(InWords(), *output));
    }
    return outputs;
  }
  std::vector<std::string> TickAt(int64_t now) {
    session_.HandleTick(At(now));
    return Outputs();
  }
  void Ask(uint64_t begin, uint64_t end, int64_t now = 0) {
    EXPECT_EQ(session_.HandleAsk({S(begin), S(end)}, At(now)), absl::OkStatus());
  }
  // Everything that was polled has left by `now`.
  void SendAll(int64_t now = 0) { session_.HandleSent(/*all=*/true, At(now)); }
  void Open(int64_t now = 0) {
    EXPECT_EQ(session_.HandleOpened(At(now)), absl::OkStatus());
    EXPECT_THAT(Outputs(), ElementsAre("ask"));
  }
  // Admitted, and the word has left.
  void Admit(int64_t now = 0) {
    Open(now);
    session_.HandleAdmitted(BufferGeneration(3), kSegments, At(now));
    EXPECT_THAT(Outputs(), ElementsAre("admitted 3"));
    SendAll(now);
  }

  ServingSession session_{Limits(), At(0)};
};

// ---- the admission

TEST_F(ServingSessionTest, AReaderIsAdmittedAskedAboutOnceAndAnswered) {
  Admit();
  EXPECT_EQ(session_.PollSegment(Always), std::nullopt) << "nothing is asked for";
  EXPECT_EQ(session_.NextDeadline(), absl::InfiniteFuture());
  Ask(2, 4);
  EXPECT_EQ(session_.PollSegment(Always), S(2));
  EXPECT_EQ(session_.PollSegment(Always), S(3));
  EXPECT_EQ(session_.PollSegment(Always), std::nullopt);
  EXPECT_THAT(Outputs(), IsEmpty());
  session_.HandleClosed();
  EXPECT_TRUE(session_.closed());
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ServingSessionTest, AReaderThatDoesNotSayWhatItWantsIsClosed) {
  EXPECT_EQ(session_.NextDeadline(), At(1000));
  EXPECT_THAT(TickAt(999), IsEmpty());
  EXPECT_THAT(TickAt(1000), ElementsAre("disconnect: "));
  EXPECT_EQ(session_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(ServingSessionTest, WhileTheHolderDecidesTheSourceSaysThatItIsAlive) {
  Open(10);
  EXPECT_EQ(session_.NextDeadline(), At(110));
  EXPECT_THAT(TickAt(110), ElementsAre("alive"));
  SendAll(111);
  EXPECT_THAT(TickAt(211), ElementsAre("alive"));
}

TEST_F(ServingSessionTest, ARefusalIsTheLastWordAndTheReaderHasTimeToClose) {
  Open();
  session_.HandleRefused(absl::PermissionDeniedError("not yours"), At(50));
  EXPECT_THAT(Outputs(), ElementsAre("refused: not yours"));
  EXPECT_EQ(session_.state(), State::kEnding);
  SendAll(50);
  EXPECT_THAT(TickAt(1049), IsEmpty());
  EXPECT_THAT(TickAt(1050), ElementsAre("disconnect: "));
}

TEST_F(ServingSessionTest, AnAnswerThatComesAfterTheReaderHasClosedIsVoid) {
  Open();
  session_.HandleClosed();
  session_.HandleAdmitted(BufferGeneration(3), kSegments, At(1));
  session_.HandleRefused(absl::InternalError("late"), At(1));
  EXPECT_TRUE(session_.closed());
  EXPECT_THAT(Outputs(), IsEmpty());
}

// ---- rules for the reader

TEST_F(ServingSessionTest, WhatBreaksTheRulesIsAnError) {
  EXPECT_THAT(session_.HandleAsk({S(0), S(1)}, At(0)).message(), HasSubstr("before"));
  Open();
  EXPECT_THAT(session_.HandleAsk({S(0), S(1)}, At(0)).message(), HasSubstr("before"));
  EXPECT_THAT(session_.HandleOpened(At(0)).message(), HasSubstr("second Open"));
  session_.HandleBroken("a second Open");
  EXPECT_THAT(Outputs(), ElementsAre("disconnect: a second Open"));
}

TEST_F(ServingSessionTest, RequestsAreLimited) {
  Admit();
  EXPECT_EQ(session_.HandleAsk({S(7), S(9)}, At(0)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(session_.HandleAsk({S(0), S(7)}, At(0)).message(), HasSubstr("max_segments_queued"));
  Ask(0, 1);
  Ask(1, 2);
  EXPECT_THAT(session_.HandleAsk({S(2), S(3)}, At(0)).message(), HasSubstr("max_requests_queued"));
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  Ask(2, 3);
}

// ---- what is sent next

TEST_F(ServingSessionTest, TheLowestThatIsReadyIsSentFirst) {
  Admit();
  Ask(4, 6);
  Ask(0, 2);
  EXPECT_EQ(session_.PollSegment([](SegmentIndex s) { return s > S(4); }), S(5));
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  EXPECT_EQ(session_.PollSegment([](SegmentIndex s) { return s != S(1); }), S(4));
  EXPECT_EQ(session_.PollSegment(Never), std::nullopt);
  EXPECT_EQ(session_.requests().segments(), 1);
}

TEST_F(ServingSessionTest, ABufferThatServesNobodyEndsTheConnectionAfterWhatIsOnItsWay) {
  Admit();
  Ask(0, 2);
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  session_.HandleBufferClosed();
  EXPECT_EQ(session_.PollSegment(Always), std::nullopt);
  EXPECT_THAT(Outputs(), IsEmpty());
  session_.HandleSent(/*all=*/false, At(1));
  EXPECT_THAT(Outputs(), IsEmpty());
  SendAll(2);
  EXPECT_THAT(Outputs(), ElementsAre("disconnect: the holder serves this buffer no longer"));
}

// ---- life

TEST_F(ServingSessionTest, AliveIsSaidWhileSegmentsAreAwaitedAndOnlyThen) {
  Admit();
  Ask(0, 1, 20);
  EXPECT_EQ(session_.NextDeadline(), At(120));
  EXPECT_THAT(TickAt(119), IsEmpty());
  EXPECT_THAT(TickAt(120), ElementsAre("alive"));
  SendAll(121);
  EXPECT_EQ(session_.NextDeadline(), At(221));
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  EXPECT_EQ(session_.NextDeadline(), absl::InfiniteFuture()) << "nothing is owed";
}

TEST_F(ServingSessionTest, BytesThatLeaveAreASignOfLifeToo) {
  Admit();
  Ask(0, 2);
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  session_.HandleSent(/*all=*/false, At(90));
  EXPECT_EQ(session_.NextDeadline(), At(190));
}

TEST_F(ServingSessionTest, NoWordIsSaidBehindOneThatCannotLeave) {
  Admit();
  Ask(0, 1);
  EXPECT_THAT(TickAt(100), ElementsAre("alive"));
  EXPECT_THAT(TickAt(200), IsEmpty());
  EXPECT_EQ(session_.NextDeadline(), At(300)) << "it is looked at again";
  SendAll(250);
  EXPECT_THAT(TickAt(350), ElementsAre("alive"));
}

// ---- the end

struct FinishCase {
  const char* why;
  void (*finish)(ServingSession&, absl::Time);
};
class FinishTest : public ServingSessionTest, public ::testing::WithParamInterface<FinishCase> {};
TEST_P(FinishTest, SendsNoMoreThanWhatHasBegunAndWaitsForTheReaderToClose) {
  Admit();
  Ask(0, 4);
  EXPECT_EQ(session_.PollSegment(Always), S(0));
  GetParam().finish(session_, At(10));
  EXPECT_EQ(session_.PollSegment(Always), std::nullopt);
  EXPECT_THAT(Outputs(), ElementsAre(absl::StrCat("close: ", GetParam().why)));
  EXPECT_EQ(session_.HandleAsk({S(5), S(6)}, At(11)), absl::OkStatus()) << "it counts no more";
  EXPECT_TRUE(session_.requests().empty());
  GetParam().finish(session_, At(500));
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_EQ(session_.NextDeadline(), At(1010));
  EXPECT_THAT(TickAt(1010), ElementsAre("disconnect: "));
}
TEST_P(FinishTest, ClosesAConnectionThatIsNotServed) {
  Open();
  GetParam().finish(session_, At(1));
  EXPECT_THAT(Outputs(), ElementsAre(absl::StrCat("disconnect: ", GetParam().why)));
}
INSTANTIATE_TEST_SUITE_P(All, FinishTest,
                         ::testing::Values(FinishCase{"as the reader asked",
                                                      [](ServingSession& session, absl::Time now) {
                                                        session.HandleFinish(now);
                                                      }},
                                           FinishCase{"the holder leaves",
                                                      [](ServingSession& session, absl::Time now) {
                                                        session.HandleEnd(ServingEnd::kAfterSegment,
                                                                          now);
                                                      }}));

TEST_F(ServingSessionTest, ACutClosesAtOnceAndWhatWasNotPolledIsVoid) {
  Admit();
  Ask(0, 4);
  session_.HandleTick(At(100));
  session_.HandleEnd(ServingEnd::kNow, At(101));
  EXPECT_THAT(Outputs(), ElementsAre("disconnect: "));
  EXPECT_EQ(session_.PollSegment(Always), std::nullopt);
  session_.HandleEnd(ServingEnd::kNow, At(102));
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ServingSessionTest, ACutEndsAConnectionThatIsFinishing) {
  Admit();
  session_.HandleFinish(At(1));
  EXPECT_THAT(Outputs(), ElementsAre("close: as the reader asked"));
  session_.HandleEnd(ServingEnd::kNow, At(2));
  EXPECT_THAT(Outputs(), ElementsAre("disconnect: "));
}

// ---- the list of sums

std::vector<SegmentChecksum> None(SegmentRange) { return {}; }

TEST_F(ServingSessionTest, SumsAreSentInOrderAsTheyBecomeKnown) {
  Admit();
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(kSegments)}, At(0)), absl::OkStatus());
  EXPECT_TRUE(session_.owes_answer());
  EXPECT_FALSE(session_.PollChecksums(None).has_value());
  const auto first = session_.PollChecksums([](SegmentRange asked) {
    EXPECT_EQ(asked, (SegmentRange{S(0), S(kSegments)}));
    return std::vector<SegmentChecksum>{1, 2, 3};
  });
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->first, S(0));
  const auto rest = session_.PollChecksums([](SegmentRange asked) {
    EXPECT_EQ(asked, (SegmentRange{S(3), S(kSegments)}));
    return std::vector<SegmentChecksum>(kSegments - 3, 4);
  });
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->first, S(3));
  EXPECT_FALSE(session_.owes_answer());
}

TEST_F(ServingSessionTest, SumsThatAreNotKnownAreOwedAndHoldUpNoSegment) {
  Admit();
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(kSegments)}, At(0)), absl::OkStatus());
  Ask(1, 2);
  EXPECT_FALSE(session_.PollChecksums(None).has_value());
  EXPECT_EQ(session_.PollSegment(Always), S(1));
  SendAll(50);
  EXPECT_THAT(TickAt(150), ElementsAre("alive"));
}

TEST_F(ServingSessionTest, SumsAreAskedForOnceAndWithinTheShard) {
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(1)}, At(0)).code(),
            absl::StatusCode::kInvalidArgument);
  Admit();
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(kSegments + 1)}, At(0)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(1)}, At(0)), absl::OkStatus());
  EXPECT_EQ(session_.HandleAskChecksums({S(1), S(2)}, At(0)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ServingSessionTest, ASessionThatEndsOwesNoSums) {
  Admit();
  EXPECT_EQ(session_.HandleAskChecksums({S(0), S(kSegments)}, At(0)), absl::OkStatus());
  session_.HandleFinish(At(1));
  EXPECT_FALSE(
      session_.PollChecksums([](SegmentRange) { return std::vector<SegmentChecksum>{1}; }));
  EXPECT_THAT(Outputs(), ElementsAre("close: as the reader asked"));
}

}  // namespace
}  // namespace th
