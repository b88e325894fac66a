// Update of one rank: phases, failures at each of them, resume.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

class UpdateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    buffer = worker.RegisteredBuffer();
  }
  absl::Status Update(CallId call = CallId(1)) {
    return worker.Handle(event::Update{call, buffer, {.timeout = absl::Seconds(60)}}).status;
  }
  void Resolve(OperationNumber number, const VersionInfo& version,
               std::optional<Digest> root = std::nullopt) {
    worker.Say(OperationResolved{{buffer, number}, version, root});
  }
  void Finish(OperationNumber number, absl::Status status,
              UpdateOutcome outcome = UpdateOutcome::kNone, VersionInfo version = {}) {
    worker.Finish({buffer, number}, OperationKind::kUpdate, status, outcome, version);
  }
  void FailFillNow(const absl::Status& why) {
    worker.Handle(event::FillFailed{buffer, why});
    worker.Handle(event::FillStopped{buffer});
  }
  OperationDone TheDone() {
    const auto done = worker.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }
  BufferState State() { return worker.session.buffer_state(buffer); }

  SessionHarness worker;
  BufferId buffer;
};

TEST_F(UpdateTest, AsksTheServerAndTouchesNothing) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(worker
                .Handle(event::Update{
                    CallId(2), buffer, {.selector = Label("step-2"), .floor = kStep1.sequence}})
                .status);
  const auto starts = worker.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].kind, OperationKind::kUpdate);
  EXPECT_EQ(starts[0].selector, VersionSelector(Label("step-2")));
  EXPECT_EQ(starts[0].floor, kStep1.sequence);
  EXPECT_EQ(State(), BufferState::kPublished);
}

TEST_F(UpdateTest, WhatIsNotAvailableLeavesTheBufferAsItIs) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  OperationFinished finished;
  finished.key = {buffer, kSecond};
  finished.kind = OperationKind::kUpdate;
  finished.outcome = UpdateOutcome::kNotAvailable;
  finished.not_available = NotAvailableReason::kLost;
  worker.Say(finished);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(done.not_available, NotAvailableReason::kLost);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep1);
}

TEST_F(UpdateTest, FillsAnEmptyBuffer) {
  ASSERT_OK(Update());
  worker.Drop();
  Resolve(kFirst, kStep1, TestRoot(9));
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_EQ(fills[0].version, kStep1);
  EXPECT_TRUE(fills[0].resume.empty());
  EXPECT_EQ(fills[0].root, TestRoot(9));
  EXPECT_EQ(fills[0].generation, worker.session.buffer_generation(buffer));
  const auto ready = worker.TakeSent<ReadyToFill>();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].generation, fills[0].generation);
  worker.Say(worker.Assignment({buffer, kFirst}, 1, kStep1.sequence, {7, 8}));
  const auto sources = worker.Take<SetSources>();
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_THAT(sources[0].sources, SizeIs(2));
}

TEST_F(UpdateTest, MovesWhenTheWholeGroupIsThere) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::AllReceived{buffer});
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  EXPECT_THAT(worker.TakeSent<RankDone>(), SizeIs(1));
  EXPECT_EQ(State(), BufferState::kFilling);
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  Finish(kFirst, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(done.version, kStep1);
  EXPECT_FALSE(done.buffer_undefined);
  EXPECT_EQ(State(), BufferState::kPublished);
}

TEST_F(UpdateTest, ThePhasesAreTimed) {
  ASSERT_OK(Update());
  worker.Pass(absl::Milliseconds(10));
  Resolve(kFirst, kStep1);
  worker.Pass(absl::Milliseconds(20));
  worker.Say(worker.Assignment({buffer, kFirst}, 1, kStep1.sequence, {7}));
  worker.Pass(absl::Milliseconds(40));
  worker.Handle(event::AllReceived{buffer});
  worker.Pass(absl::Milliseconds(80));
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  worker.Pass(absl::Milliseconds(160));
  Finish(kFirst, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  const OperationDone done = TheDone();
  EXPECT_EQ(done.resolve, absl::Milliseconds(10));
  EXPECT_EQ(done.queue, absl::Milliseconds(20));
  EXPECT_EQ(done.transfer, absl::Milliseconds(40));
  EXPECT_EQ(done.verify, absl::Milliseconds(80));
  EXPECT_EQ(done.apply, absl::Milliseconds(160));
}

TEST_F(UpdateTest, DrainsReadersBeforeItFills) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  ASSERT_OK(Update());
  worker.Drop();
  Resolve(kSecond, kStep2);
  EXPECT_EQ(State(), BufferState::kDraining);
  worker.Say(worker.Assignment({buffer, kSecond}, 2, kStep2.sequence, {7}));
  worker.Say(worker.Assignment({buffer, kSecond}, 1, kStep2.sequence, {8}));  // late: no longer so
  EXPECT_THAT(worker.Take<StartFill>(), IsEmpty());
  EXPECT_THAT(worker.Take<SetSources>(), IsEmpty());
  EXPECT_THAT(worker.TakeSent<ReadyToFill>(), IsEmpty());
  worker.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_EQ(State(), BufferState::kFilling);
  EXPECT_THAT(worker.Take<StartFill>(), SizeIs(1));
  const auto sources = worker.Take<SetSources>();
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_EQ(sources[0].assignment, AssignmentId(2));
  EXPECT_THAT(worker.TakeSent<ReadyToFill>(), SizeIs(1));
}

TEST_F(UpdateTest, AFillHearsWhetherTheBufferWasPublishedUntilIt) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  worker.Drop();
  Resolve(kSecond, kStep2);
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_TRUE(fills[0].was_published);
}

TEST_F(UpdateTest, WhatItsOwnerMayHaveWrittenWasNotPublished) {
  ASSERT_OK(Update());
  worker.Drop();
  Resolve(kFirst, kStep1);
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_FALSE(fills[0].was_published);
}

// The buffer had the same bytes: nothing is written, and the version is there all the same.
TEST_F(UpdateTest, AFillThatWritesNothingCanBeComplete) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2, TestRoot(9));
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  Finish(kSecond, absl::OkStatus(), UpdateOutcome::kMoved, kStep2);
  EXPECT_OK(TheDone().status);
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep2);
}

TEST_F(UpdateTest, AFillThatWroteNothingAndWhoseGroupFailsLeavesTheVersionOfBefore) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2, TestRoot(9));
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  Finish(kSecond, absl::AbortedError("another rank failed"));
  worker.Handle(event::FillStopped{buffer});
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep1);
}

TEST_F(UpdateTest, ARankThatHasTheVersionMovesNothing) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  worker.Drop();
  Resolve(kSecond, kStep1);
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("ReadyToFill", "RankDone"));
  EXPECT_THAT(worker.Take<StartFill>(), IsEmpty());
  EXPECT_EQ(State(), BufferState::kPublished);
  Finish(kSecond, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  EXPECT_EQ(TheDone().outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(State(), BufferState::kPublished);
}

TEST_F(UpdateTest, AlreadyThereNeedsNoResolution) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  Finish(kSecond, absl::OkStatus(), UpdateOutcome::kAlreadyThere, kStep1);
  const OperationDone done = TheDone();
  EXPECT_OK(done.status);
  EXPECT_EQ(done.outcome, UpdateOutcome::kAlreadyThere);
}

TEST_F(UpdateTest, MovedIsNotBelievedWhileThisRankFills) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  Finish(kFirst, absl::OkStatus(), UpdateOutcome::kMoved, kStep1);
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
  worker.Handle(event::FillStopped{buffer});
  const OperationDone done = TheDone();
  EXPECT_THAT(done.status, StatusIs(absl::StatusCode::kInternal, HasSubstr("UPDATE_FAILED")));
  EXPECT_TRUE(done.buffer_undefined);
}

TEST_F(UpdateTest, MovedIsNotBelievedForAnotherVersion) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  Finish(kFirst, absl::OkStatus(), UpdateOutcome::kMoved, kStep2);
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kInternal));
}

// ---- assignments

TEST_F(UpdateTest, OnlyTheNewestAssignmentCounts) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 3, kStep1.sequence, {8}));
  EXPECT_THAT(worker.Take<SetSources>(), SizeIs(1));
  worker.Say(worker.Assignment({buffer, kFirst}, 2, kStep1.sequence, {9}));
  worker.Say(worker.Assignment({buffer, kFirst}, 3, kStep1.sequence, {9}));
  EXPECT_THAT(worker.Take<SetSources>(), IsEmpty());
}

TEST_F(UpdateTest, AssignmentsOfOtherVersionsAndOperationsAreIgnored) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 5, kStep2.sequence, {8}));
  worker.Say(worker.Assignment({buffer, kSecond}, 5, kStep1.sequence, {8}));
  worker.Say(worker.Assignment({BufferId(77), kFirst}, 5, kStep1.sequence, {8}));
  EXPECT_THAT(worker.Take<SetSources>(), IsEmpty());
}

TEST_F(UpdateTest, AnEmptyAssignmentStopsTheTransfers) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 2, kStep1.sequence, {}));
  const auto sources = worker.Take<SetSources>();
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_THAT(sources[0].sources, IsEmpty());
}

TEST_F(UpdateTest, TheEndOfAnotherKindOfOperationIsNoResult) {
  worker.UpdateTo(buffer, kFirst, kStep1);
  worker.Drop();
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {}}).status);
  worker.Finish({buffer, OperationNumber(2)}, OperationKind::kUnpublish, absl::OkStatus(),
                UpdateOutcome::kNone, kStep1);
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kInternal, HasSubstr("as an unpublish")));
}

TEST_F(UpdateTest, AFailedSourceIsReportedOnce) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  for (int i = 0; i < 2; ++i) {
    worker.Handle(event::SourceFailed{buffer,
                                      AssignmentId(1),
                                      {WorkerId(7), BufferId(1)},
                                      SourceFailure::kStalled,
                                      "silent for 1.0 s"});
  }
  const auto failed = worker.TakeSent<SourceFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key, (OperationKey{buffer, kFirst}));
  EXPECT_EQ(failed[0].source.worker, WorkerId(7));
  EXPECT_EQ(failed[0].detail, "silent for 1.0 s");
}

// The source was assigned anew, under another generation, before the fill had said that it failed.
TEST_F(UpdateTest, AFailureUnderAnEarlierAssignmentLeavesTheNewerOne) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(worker.Assignment({buffer, kFirst}, 2, kStep1.sequence, {7}));
  worker.Drop();
  const auto fail = [&](uint64_t assignment) {
    worker.Handle(event::SourceFailed{
        buffer, AssignmentId(assignment), {WorkerId(7), BufferId(1)}, SourceFailure::kClosed, ""});
  };
  fail(1);
  fail(uint64_t{5000} << 32);  // another server's: its numbers may be higher
  EXPECT_THAT(worker.TakeSent<SourceFailed>(), IsEmpty());
  fail(2);
  EXPECT_THAT(worker.TakeSent<SourceFailed>(), SizeIs(1));
}

TEST_F(UpdateTest, WhatHasArrivedIsToldBeforeThatItsSourceFailed) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(2), 2 * kMinSegmentBytes}});
  worker.Drop();
  worker.Handle(event::SourceFailed{
      buffer, AssignmentId(1), {WorkerId(7), BufferId(1)}, SourceFailure::kStalled, ""});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("FillProgress", "SourceFailed"));
}

TEST_F(UpdateTest, ASourceThatWasNotAssignedCannotFail) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::SourceFailed{
      buffer, AssignmentId(1), {WorkerId(70), BufferId(1)}, SourceFailure::kClosed, ""});
  EXPECT_THAT(worker.TakeSent<SourceFailed>(), IsEmpty());
}

// ---- progress

TEST_F(UpdateTest, ProgressIsToldAtMostOnceAnInterval) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  for (uint64_t i = 1; i <= 5; ++i) {
    worker.Handle(event::FillProgressed{buffer, {FirstSegments(i), i * kMinSegmentBytes}});
  }
  worker.Pass(absl::Milliseconds(249));
  EXPECT_THAT(worker.TakeSent<FillProgress>(), IsEmpty())
      << "its throughputs would say nothing yet";
  worker.Pass(absl::Milliseconds(1));
  auto progress = worker.TakeSent<FillProgress>();
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_EQ(progress[0].segments, FirstSegments(5));
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(6), 6 * kMinSegmentBytes}});
  worker.Pass(absl::Milliseconds(999));
  EXPECT_THAT(worker.TakeSent<FillProgress>(), IsEmpty());
  worker.Pass(absl::Milliseconds(1));
  progress = worker.TakeSent<FillProgress>();
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_EQ(progress[0].segments, FirstSegments(6));
  worker.Pass(absl::Seconds(5));
  EXPECT_THAT(worker.TakeSent<FillProgress>(), IsEmpty());
}

TEST_F(UpdateTest, ThroughputsAreToldSinceTheLastTime) {
  const BufferAddress source{WorkerId(7), BufferId(1)}, second{WorkerId(8), BufferId(1)};
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  const auto report = [&](std::vector<SourceThroughput> throughputs) {
    worker.Handle(event::FillProgressed{buffer, {FirstSegments(1), 1, std::move(throughputs)}});
  };
  report({{source, 100, absl::Milliseconds(200)}});
  worker.Pass(absl::Milliseconds(250));
  auto progress = worker.TakeSent<FillProgress>();
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_THAT(progress[0].throughputs,
              ElementsAre(SourceThroughput{source, 100, absl::Milliseconds(200)}));
  report({{source, 140, absl::Milliseconds(900)}, {second, 7, absl::Milliseconds(50)}});
  worker.Pass(absl::Seconds(1));
  progress = worker.TakeSent<FillProgress>();
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_THAT(progress[0].throughputs,
              ElementsAre(SourceThroughput{source, 40, absl::Milliseconds(700)},
                          SourceThroughput{second, 7, absl::Milliseconds(50)}));
  report({{second, 3, absl::Milliseconds(20)}});  // opened again
  worker.Pass(absl::Seconds(1));
  progress = worker.TakeSent<FillProgress>();
  ASSERT_THAT(progress, SizeIs(1));
  EXPECT_THAT(progress[0].throughputs,
              ElementsAre(SourceThroughput{second, 3, absl::Milliseconds(20)}));
}

TEST_F(UpdateTest, TransportsAreToldWithProgressWhenTheyAreOthersThanBefore) {
  const TransportsUsed tcp{.names = {"tcp"}, .passed_over = {{"same_host", "on another host"}}};
  const TransportsUsed both{.names = {"tcp", "ibverbs"}, .passed_over = tcp.passed_over};
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  const auto reported = [&](const TransportsUsed& used) {
    worker.Handle(event::FillProgressed{buffer, {FirstSegments(1), 1, {}, used}});
    worker.Pass(absl::Seconds(1));
    const auto progress = worker.TakeSent<FillProgress>();
    EXPECT_THAT(progress, SizeIs(1));
    return progress.at(0).transports;
  };
  EXPECT_EQ(reported(tcp), tcp);
  EXPECT_EQ(reported(tcp), std::nullopt);
  EXPECT_EQ(reported(both), both);
  worker.Rejoin(Epoch(2));
  worker.Drop();
  EXPECT_EQ(reported(both), both) << "the new server has not heard";
}

TEST_F(UpdateTest, LongReasonsOfTransportsDoNotHoldProgressUp) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  TransportsUsed used;
  for (size_t i = 0; i < kMaxPassedOverKinds; ++i) {
    used.passed_over.push_back(
        {absl::StrCat("transport-", i), std::string(kMaxPassedOverReasonBytes, 'x')});
  }
  size_t reports = 0, reports_with_transports = 0;
  for (uint64_t i = 0; i < 30; ++i) {
    used.names = {i % 2 == 0 ? "tcp" : "ibverbs"};
    worker.Handle(event::FillProgressed{buffer, {FirstSegments(1), 1, {}, used}});
    worker.Pass(absl::Seconds(1));
    for (const FillProgress& progress : worker.TakeSent<FillProgress>()) {
      ++reports;
      if (progress.transports.has_value()) ++reports_with_transports;
    }
  }
  EXPECT_GE(reports, 5);
  EXPECT_GE(reports_with_transports, 3);
  constexpr size_t kBudgetBytes = 32 << 10;  // of an update's progress
  EXPECT_LE(reports_with_transports,
            kBudgetBytes / (kMaxPassedOverKinds * kMaxPassedOverReasonBytes));
}

TEST_F(UpdateTest, TheEndOfAFillIsToldAtOnce) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(1), 1}});
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(10), 10}});
  worker.Drop();
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  EXPECT_THAT(worker.TakeSentNames(), ElementsAre("FillProgress", "RankDone"));
}

// ---- roots

TEST_F(UpdateTest, ARootThatBecomesKnownReachesTheFill) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(RootKnown{kStep1.sequence, {TestLayout()->digest(), TestRoot(9)}});
  const auto roots = worker.Take<SetRoot>();
  ASSERT_THAT(roots, SizeIs(1));
  EXPECT_EQ(roots[0].root, TestRoot(9));
}

TEST_F(UpdateTest, RootsOfOtherShardsAndVersionsDoNot) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Say(RootKnown{kStep1.sequence, {TestLayout(5)->digest(), TestRoot(9)}});
  worker.Say(RootKnown{kStep2.sequence, {TestLayout()->digest(), TestRoot(9)}});
  EXPECT_THAT(worker.Take<SetRoot>(), IsEmpty());
}

TEST_F(UpdateTest, ARootThatBecameKnownDuringTheDrainIsNotLost) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2);
  worker.Say(RootKnown{kStep2.sequence, {TestLayout()->digest(), TestRoot(9)}});
  worker.Drop();
  worker.Handle(event::ReaderReleased{TransferId(1)});
  const auto fills = worker.Take<StartFill>();
  ASSERT_THAT(fills, SizeIs(1));
  EXPECT_EQ(fills[0].root, TestRoot(9));
}

TEST_F(UpdateTest, AShardWithAnotherRootIsNotDone) {
  ASSERT_OK(Update());
  Resolve(kFirst, kStep1, TestRoot(9));
  worker.Handle(event::FirstWrite{buffer});
  worker.Drop();
  worker.Handle(event::FillCompleted{buffer, TestRoot(8)});
  EXPECT_THAT(worker.TakeSent<RankDone>(), IsEmpty());
  EXPECT_THAT(worker.TakeSent<RankFailed>(), SizeIs(1));
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kDataLoss));
}

// ---- failures

TEST_F(UpdateTest, AFailureAfterTheFirstWriteLeavesTheBufferUndefined) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(4), 4 * kMinSegmentBytes}});
  worker.Handle(event::FillFailed{buffer, absl::UnavailableError("no source left")});
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty()) << "bytes may still land";
  const auto failed = worker.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_TRUE(failed[0].buffer_undefined);
  worker.Handle(event::FillStopped{buffer});
  const OperationDone done = TheDone();
  EXPECT_TRUE(done.buffer_undefined);
  EXPECT_EQ(State(), BufferState::kUndefined);
  EXPECT_THAT(
      done.status,
      StatusIs(absl::StatusCode::kUnavailable,
               "UPDATE_FAILED run=r1 model=qwen3 version=step-1 rank=rollout-3/1: 16.0 of "
               "40.0 KiB received; no source left; buffer undefined, do not serve; operation "
               "1"));
}

TEST_F(UpdateTest, AFailureBeforeTheFirstWriteChangesNothing) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  const BufferGeneration before = worker.session.buffer_generation(buffer);
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2);
  worker.Drop();
  FailFillNow(absl::UnavailableError("no source left"));
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep1);
  EXPECT_GT(worker.session.buffer_generation(buffer), before);
  const OperationDone done = TheDone();
  EXPECT_FALSE(done.buffer_undefined);
  EXPECT_THAT(done.status, StatusIs(absl::StatusCode::kUnavailable,
                                    HasSubstr("buffer unchanged, still step-1")));
  const auto announced = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_EQ(announced[0].buffer.generation, worker.session.buffer_generation(buffer));
  ASSERT_TRUE(announced[0].buffer.held.has_value());
  EXPECT_EQ(announced[0].buffer.held->version, kStep1);
  EXPECT_TRUE(announced[0].buffer.held->publisher);
}

TEST_F(UpdateTest, AStalledSourceGivesTheErrorItsNameAndWhereItWasRead) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::SourceFailed{buffer,
                                    AssignmentId(1),
                                    {WorkerId(7), BufferId(1)},
                                    SourceFailure::kStalled,
                                    "silent for 1.0 s",
                                    {.address = "rxe0 10.1.0.7", .transport = "ibverbs"}});
  FailFillNow(absl::UnavailableError("no source left"));
  EXPECT_THAT(
      TheDone().status,
      StatusIs(absl::StatusCode::kUnavailable,
               "UPDATE_STALLED run=r1 model=qwen3 version=step-1 rank=rollout-3/1: 0.0 of "
               "40.0 KiB received; source rollout-7/1 (ibverbs rxe0 10.1.0.7) silent for 1.0 s; "
               "buffer undefined, do not serve; operation 1"));
}

TEST_F(UpdateTest, AnErrorOfTheGroupStopsTheFillFirst) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  Finish(kFirst, absl::UnavailableError("rank rollout-3/0 is gone"));
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  EXPECT_EQ(State(), BufferState::kFilling);
  worker.Handle(event::FillStopped{buffer});
  EXPECT_EQ(State(), BufferState::kUndefined);
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rollout-3/0")));
  EXPECT_THAT(worker.TakeSent<RankFailed>(), IsEmpty());
}

TEST_F(UpdateTest, AFirstWriteWhileTheFillIsBeingStoppedCounts) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  Finish(kFirst, absl::UnavailableError("rank rollout-3/0 is gone"));
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillStopped{buffer});
  EXPECT_EQ(State(), BufferState::kUndefined);
}

TEST_F(UpdateTest, AnErrorOfTheGroupAfterTheShardIsDoneLeavesItUndefined) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  Finish(kFirst, absl::DeadlineExceededError("rank rollout-3/0 is late"));
  worker.Handle(event::FillStopped{buffer});
  EXPECT_EQ(State(), BufferState::kUndefined);
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("UPDATE_DEADLINE")));
}

TEST_F(UpdateTest, AnErrorDuringTheDrainWaitsForItsEnd) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  worker.Admit(TransferId(1), buffer, kStep1.sequence);
  ASSERT_OK(Update());
  Resolve(kSecond, kStep2);
  Finish(kSecond, absl::UnavailableError("rank rollout-3/0 is gone"));
  EXPECT_EQ(State(), BufferState::kDraining);
  EXPECT_THAT(worker.Take<OperationDone>(), IsEmpty());
  worker.Drop();
  worker.Handle(event::ReaderReleased{TransferId(1)});
  EXPECT_EQ(State(), BufferState::kPublished);
  EXPECT_EQ(worker.session.buffer_version(buffer), kStep1);
  EXPECT_THAT(worker.Take<StartFill>(), IsEmpty());
  EXPECT_FALSE(TheDone().status.ok());
}

TEST_F(UpdateTest, EndsByItselfWhenTheServerIsSilent) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Pass(absl::Seconds(62));
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("UPDATE_DEADLINE")));
}

// The server took the version from the group when the update began there, and its end does not say
// who still has it.
TEST_F(UpdateTest, WhatItHoldsIsSaidAgainWhenTheServerHadBegunWhatHasEndedHere) {
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(Update());
  worker.Pass(absl::Seconds(62));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  Resolve(kSecond, kStep2);
  worker.Drop();
  Finish(kSecond, absl::DeadlineExceededError("out of time"));
  const auto said = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said.front().buffer.held->version, kStep1);
}

// The publish may have been made good already: nothing is said that contradicts it.
TEST_F(UpdateTest, WhatWasPublishedSinceIsNotSaidAgain) {
  ASSERT_OK(Update());
  worker.Pass(absl::Seconds(62));
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_OK(worker.Handle(event::Publish{CallId(2), buffer, {.label = Label("step-2")}}).status);
  worker.Drop();
  Finish(kFirst, absl::DeadlineExceededError("out of time"));
  EXPECT_THAT(worker.TakeSent<RegisterBuffer>(), IsEmpty());
}

TEST_F(UpdateTest, AnotherResolutionOfTheSameOperationIsAnError) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  Resolve(kFirst, kStep2);
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kAborted, HasSubstr("step-2")));
}

TEST_F(UpdateTest, AVersionLostInMidFillIsAnError) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  Finish(kFirst, absl::OkStatus(), UpdateOutcome::kNotAvailable);
  worker.Handle(event::FillStopped{buffer});
  const OperationDone done = TheDone();
  EXPECT_THAT(done.status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(done.buffer_undefined);
}

TEST_F(UpdateTest, AReplacedWorkerStopsItsFillBeforeItEnds) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FirstWrite{buffer});
  worker.Say(Refused{absl::AbortedError("replaced"), absl::InfiniteDuration()});
  EXPECT_THAT(worker.Take<StopFill>(), SizeIs(1));
  EXPECT_THAT(worker.Take<SessionEnded>(), IsEmpty());
  EXPECT_FALSE(worker.session.ended());
  worker.Handle(event::FillStopped{buffer});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("MEMBERSHIP_ENDED")));
  EXPECT_THAT(worker.Take<SessionEnded>(), SizeIs(1));
  EXPECT_EQ(State(), BufferState::kUndefined);
}

// ---- reports that come too late

TEST_F(UpdateTest, ReportsOfNoFillAreIgnored) {
  worker.Handle(event::FirstWrite{buffer});
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(3), 3}});
  worker.Handle(event::AllReceived{buffer});
  worker.Handle(event::FillCompleted{buffer, TestRoot(9)});
  worker.Handle(event::FillFailed{buffer, absl::InternalError("x")});
  worker.Handle(event::FillStopped{buffer});
  worker.Handle(event::FirstWrite{BufferId(99)});
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_THAT(worker.TakeSentNames(), IsEmpty());
}

TEST_F(UpdateTest, DescribesHowFarItIs) {
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(4), 4}});
  EXPECT_THAT(worker.session.Describe(buffer),
              HasSubstr("update step-1: filling, 4 of 10 segments from 1 sources"));
}

TEST_F(UpdateTest, NamesThePhaseAsTheTableDoes) {
  EXPECT_THAT(worker.session.phases(buffer), IsEmpty());
  worker.UpdateToFilling(buffer, kFirst, kStep1);
  EXPECT_THAT(worker.session.phases(buffer), ElementsAre("update filling"));
  EXPECT_FALSE(worker.session.is_read(buffer));
  EXPECT_FALSE(worker.session.has_buffer(BufferId(99)));
  EXPECT_THAT(worker.session.phases(BufferId(99)), IsEmpty());
}

}  // namespace
}  // namespace th
