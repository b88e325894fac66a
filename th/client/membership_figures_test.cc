#include "th/client/membership_figures.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

OperationDone Moved() {
  OperationDone done{.kind = OperationKind::kUpdate, .outcome = UpdateOutcome::kMoved};
  done.resolve = absl::Milliseconds(10);
  done.queue = absl::Milliseconds(200);
  done.transfer = absl::Seconds(3);
  done.verify = absl::Milliseconds(40);
  done.apply = absl::Milliseconds(500);
  return done;
}

absl::Duration StallOf(const MembershipFigures& figures, StallPhase phase) {
  return figures.stall[static_cast<size_t>(phase)];
}

TEST(MembershipFiguresTest, AnUpdateIsCountedByOutcomePhaseAndSource) {
  MembershipFigures figures;
  const FillCost cost{.received = {{"tcp", Distance::kSameRack, true, 600}},
                      .passed_over = {{"same_host", "on another host"}},
                      .unchanged_bytes = 1,
                      .rerouted_bytes = 2,
                      .reread_bytes = 3,
                      .reroutes = 4};
  figures.Count(Verb::kUpdate, Moved(), cost, 5);
  figures.Count(Verb::kUpdate, Moved(), cost, 0);
  EXPECT_THAT(figures.ended, ElementsAre(Pair(Pair(Verb::kUpdate, "moved"), 2)));
  EXPECT_EQ(StallOf(figures, StallPhase::kQueue), absl::Milliseconds(400));
  EXPECT_EQ(StallOf(figures, StallPhase::kApply), absl::Seconds(1));
  EXPECT_EQ(SumOf(figures.stall), absl::Milliseconds(7500));
  EXPECT_EQ(figures.update_seconds.sum, absl::Milliseconds(7500));
  EXPECT_THAT(figures.received.received,
              ElementsAre(ReceivedBytes{"tcp", Distance::kSameRack, true, 1200}));
  EXPECT_THAT(figures.received.passed_over,
              ElementsAre(PassedOver{"same_host", "on another host", 2}));
  EXPECT_EQ(figures.received.unchanged_bytes, 2u);
  EXPECT_EQ(figures.received.rerouted_bytes, 4u);
  EXPECT_EQ(figures.received.reread_bytes, 6u);
  EXPECT_EQ(figures.received.reroutes, 8u);
  EXPECT_EQ(figures.corrupt_segments, 5u);
}

TEST(MembershipFiguresTest, AFailureIsOnePhaseHoweverFarItCame) {
  MembershipFigures figures;
  OperationDone failed = Moved();
  failed.status = absl::UnavailableError("no source");
  figures.Count(Verb::kUpdate, failed, {}, 0);
  EXPECT_THAT(figures.ended, ElementsAre(Pair(Pair(Verb::kUpdate, "failed"), 1)));
  EXPECT_EQ(StallOf(figures, StallPhase::kFailed), absl::Milliseconds(3750));
  EXPECT_EQ(SumOf(figures.stall), absl::Milliseconds(3750));
  EXPECT_EQ(figures.update_seconds.sum, absl::ZeroDuration());
}

TEST(MembershipFiguresTest, AStageIsNoStall) {
  MembershipFigures figures;
  figures.Count(Verb::kStage, Moved(), {}, 0);
  EXPECT_THAT(figures.ended, ElementsAre(Pair(Pair(Verb::kStage, "moved"), 1)));
  EXPECT_EQ(SumOf(figures.stall), absl::ZeroDuration());
  EXPECT_EQ(figures.update_seconds.sum, absl::ZeroDuration());
}

TEST(MembershipFiguresTest, AnUnpublishWaitsForItsReadersAndAPublishForNobody) {
  MembershipFigures figures;
  OperationDone done{.kind = OperationKind::kUnpublish};
  done.queue = absl::Seconds(2);
  figures.Count(Verb::kUnpublish, done, {}, 0);
  figures.Count(Verb::kPublish, done, {}, 0);
  EXPECT_THAT(figures.ended, ElementsAre(Pair(Pair(Verb::kPublish, "done"), 1),
                                         Pair(Pair(Verb::kUnpublish, "done"), 1)));
  EXPECT_EQ(StallOf(figures, StallPhase::kDrain), absl::Seconds(2));
  EXPECT_EQ(SumOf(figures.stall), absl::Seconds(2));
}

TEST(MembershipFiguresTest, UpdatesThatDoNotMoveHaveOutcomesOfTheirOwn) {
  MembershipFigures figures;
  for (const UpdateOutcome outcome : {UpdateOutcome::kAlreadyThere, UpdateOutcome::kNotAvailable}) {
    figures.Count(Verb::kReceive, {.kind = OperationKind::kUpdate, .outcome = outcome}, {}, 0);
  }
  EXPECT_THAT(figures.ended, ElementsAre(Pair(Pair(Verb::kReceive, "already_there"), 1),
                                         Pair(Pair(Verb::kReceive, "not_available"), 1)));
}

TEST(VerbTest, EachHasItsName) {
  EXPECT_EQ(VerbName(Verb::kPublish), "publish");
  EXPECT_EQ(VerbName(Verb::kReceive), "receive");
}

}  // namespace
}  // namespace th
