// A rank reports to the server what an operation has cost, with the event that names it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

const VersionInfo kStep1 = Version(7, "step-1");
constexpr OperationNumber kFirst(1);
const EventId kEvent = EventId::Of(Epoch(7), 12);
const FillCost kCost = {.received = {{"tcp", Distance::kSameRack, true, 100}},
                        .rerouted_bytes = 10,
                        .reread_bytes = 5,
                        .reroutes = 1};

class CostReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
  }
  OperationKey key() const { return {buffer_, kFirst}; }
  void StartUpdate() {
    ASSERT_OK(
        worker_.Handle(event::Update{CallId(1), buffer_, {.timeout = absl::Seconds(60)}}).status);
  }
  void Resolve() {
    worker_.Say(OperationResolved{.key = key(), .version = kStep1, .event = kEvent});
  }
  void Assign(EventId event = kEvent) {
    AssignSources assigned = worker_.Assignment(key(), 1, kStep1.sequence, {7});
    assigned.event = event;
    worker_.Say(assigned);
  }
  void Complete() { worker_.Handle(event::FillCompleted{buffer_, TestRoot(9), kCost}); }
  RankDone TheRankDone() {
    const auto done = worker_.TakeSent<RankDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? RankDone() : done.front();
  }
  OperationDone TheDone() {
    const auto done = worker_.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(CostReportTest, AnUpdateTellsItsPhasesAndItsFill) {
  StartUpdate();
  worker_.Pass(absl::Milliseconds(10));
  Resolve();
  worker_.Pass(absl::Milliseconds(20));
  Assign();
  worker_.Pass(absl::Milliseconds(40));
  worker_.Handle(event::AllReceived{buffer_});
  worker_.Pass(absl::Milliseconds(80));
  Complete();
  const RankCost cost = TheRankDone().cost;
  EXPECT_EQ(cost.resolve, absl::Milliseconds(10));
  EXPECT_EQ(cost.queue, absl::Milliseconds(20));
  EXPECT_EQ(cost.transfer, absl::Milliseconds(40));
  EXPECT_EQ(cost.verify, absl::Milliseconds(80));
  EXPECT_EQ(cost.fill, kCost);
}

TEST_F(CostReportTest, WhatIsToldAgainAfterAReconnectIsTheSame) {
  StartUpdate();
  Resolve();
  Assign();
  worker_.Pass(absl::Milliseconds(40));
  Complete();
  const RankCost first = TheRankDone().cost;
  worker_.Rejoin(Epoch(2));
  EXPECT_EQ(TheRankDone().cost, first);
}

TEST_F(CostReportTest, AnUnpublishTellsItsDrain) {
  worker_.PublishNamed(buffer_, kFirst, kStep1);
  worker_.Admit(TransferId(1), buffer_, kStep1.sequence);
  ASSERT_OK(
      worker_.Handle(event::Unpublish{CallId(2), buffer_, {.drain_timeout = absl::Seconds(5)}})
          .status);
  worker_.Pass(absl::Milliseconds(30));
  worker_.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_EQ(TheRankDone().cost.queue, absl::Milliseconds(30));
}

TEST_F(CostReportTest, AResultNamesTheEvent) {
  StartUpdate();
  Resolve();
  Assign();
  Complete();
  worker_.Finish(key(), OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  EXPECT_EQ(TheDone().event, kEvent);
}

TEST_F(CostReportTest, AnErrorEndsWithTheEvent) {
  StartUpdate();
  worker_.Say(OperationFinished{.key = key(),
                                .kind = OperationKind::kUpdate,
                                .status = absl::AbortedError("rolled back"),
                                .event = kEvent});
  const OperationDone done = TheDone();
  EXPECT_EQ(done.event, kEvent);
  EXPECT_THAT(std::string(done.status.message()), EndsWith("; operation 1 event=7-12"));
}

TEST_F(CostReportTest, AServerOfBeforeThatTellsNoneTakesNoneAway) {
  StartUpdate();
  Resolve();
  Assign(EventId());
  Complete();
  worker_.Finish(key(), OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  EXPECT_EQ(TheDone().event, kEvent);
}

TEST_F(CostReportTest, TheCostOfABufferThatFillsNothingIsForgotten) {
  worker_.Handle(event::FillCompleted{buffer_, TestRoot(9), kCost});
  worker_.Handle(event::FillCompleted{BufferId(99), TestRoot(9), kCost});
  StartUpdate();
  Resolve();
  Assign();
  worker_.Handle(event::FillCompleted{buffer_, TestRoot(9)});
  EXPECT_EQ(TheRankDone().cost.fill, FillCost());
}

}  // namespace
}  // namespace th
