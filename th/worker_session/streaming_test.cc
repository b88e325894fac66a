// The buffer of a streaming reader: one update, nothing kept, nobody served.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
constexpr OperationNumber kFirst(1);

class StreamSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker.Join();
    const auto registered = worker.session.RegisterStreamBuffer("hf", TestLayout(0), worker.now);
    ASSERT_OK(registered.status());
    buffer = *registered;
    announced = worker.TakeSent<RegisterBuffer>();
    worker.Say(BufferRegistered{buffer, absl::OkStatus()});
    worker.Drop();
  }
  void Receive() {
    worker.UpdateToFilling(buffer, kFirst, kStep1);
    worker.session.HandleFirstWrite(buffer, worker.now);
  }
  void Move() {
    worker.Finish({buffer, kFirst}, OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved,
                  kStep1);
  }
  BufferState State() { return worker.session.buffer_state(buffer); }

  SessionHarness worker;
  BufferId buffer;
  std::vector<RegisterBuffer> announced;
};

TEST_F(StreamSessionTest, TheServerHearsThatItKeepsNothing) {
  ASSERT_THAT(announced, SizeIs(1));
  EXPECT_TRUE(announced[0].buffer.keeps_nothing);
  EXPECT_FALSE(announced[0].buffer.held.has_value());
}

TEST_F(StreamSessionTest, EachHasANameOfItsOwnThatOtherRanksFindToo) {
  SessionHarness other;
  other.Join();
  const auto theirs = other.session.RegisterStreamBuffer("hf", TestLayout(1), other.now);
  ASSERT_OK(theirs.status());
  EXPECT_EQ(other.TakeSent<RegisterBuffer>()[0].buffer.buffer_name,
            announced[0].buffer.buffer_name);
  ASSERT_OK(worker.session.RegisterStreamBuffer("hf", TestLayout(0), worker.now).status());
  EXPECT_NE(worker.TakeSent<RegisterBuffer>()[0].buffer.buffer_name,
            announced[0].buffer.buffer_name);
}

TEST_F(StreamSessionTest, AGroupThatCountsAnewNamesThemAnew) {
  worker.Rejoin(Epoch(1), GroupGeneration(2));
  worker.Drop();
  ASSERT_OK(worker.session.RegisterStreamBuffer("hf", TestLayout(0), worker.now).status());
  const auto named = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(named, SizeIs(1));
  EXPECT_EQ(named[0].buffer.buffer_name, "stream-2.1");
}

TEST_F(StreamSessionTest, WhenTheGroupIsDoneNothingIsThere) {
  Receive();
  worker.session.HandleFillComplete(buffer, TestRoot(9), worker.now);
  EXPECT_THAT(worker.TakeSent<RankDone>(), SizeIs(1));
  Move();
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_OK(done[0].status);
  EXPECT_EQ(done[0].outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(State(), BufferState::kWritable);
  EXPECT_EQ(worker.session.buffer_version(buffer), VersionInfo());
}

TEST_F(StreamSessionTest, APartIsDoneWithoutARootToCompare) {
  Receive();
  worker.Say(RootKnown{kStep1.sequence, {TestLayout(0)->digest(), TestRoot(9)}});
  worker.session.HandleFillComplete(buffer, Digest(), worker.now);
  EXPECT_THAT(worker.TakeSent<RankDone>(), SizeIs(1));
}

TEST_F(StreamSessionTest, AWholeWithAnotherRootIsRefused) {
  Receive();
  worker.Say(RootKnown{kStep1.sequence, {TestLayout(0)->digest(), TestRoot(9)}});
  worker.session.HandleFillComplete(buffer, TestRoot(8), worker.now);
  worker.session.HandleFillStopped(buffer, worker.now);
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(StreamSessionTest, AFailureLeavesNothingUndefined) {
  Receive();
  worker.session.HandleFillFailed(buffer, absl::DataLossError("no"), worker.now);
  worker.session.HandleFillStopped(buffer, worker.now);
  const auto done = worker.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(done[0].buffer_undefined);
  EXPECT_EQ(State(), BufferState::kWritable);
  const auto again = worker.TakeSent<RegisterBuffer>();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_FALSE(again[0].buffer.held.has_value());
}

TEST_F(StreamSessionTest, NobodyIsLetIn) {
  Receive();
  worker.Admit(TransferId(5), buffer, kStep1.sequence);
  const auto decided = worker.Take<AdmissionDecided>();
  ASSERT_THAT(decided, SizeIs(1));
  EXPECT_THAT(decided[0].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("keeps")));
}

TEST_F(StreamSessionTest, ItIsNotPublished) {
  EXPECT_THAT(worker.session.Publish(CallId(1), buffer, {.label = kStep1.label}, worker.now),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keeps nothing")));
}

}  // namespace
}  // namespace th
