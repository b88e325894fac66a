// Copies that seed a site: an update that ends as not available, and what goes on behind it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");

class SiteCopyTest : public ::testing::Test {
 protected:
  // The buffer holds step-1.
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.UpdateTo(buffer_, OperationNumber(1), kStep1);
    worker_.Drop();
  }
  absl::Status Update(WhenSeeding when = WhenSeeding::kCopy) {
    return worker_
        .Handle(event::Update{
            CallId(++calls_), buffer_, {.timeout = absl::Seconds(300), .when_seeding = when}})
        .status;
  }
  void AnswerSeeding(uint64_t number, bool site_copy) {
    worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(number)},
                                  .kind = OperationKind::kUpdate,
                                  .outcome = UpdateOutcome::kNotAvailable,
                                  .not_available = NotAvailableReason::kSeeding,
                                  .version = kStep2,
                                  .site_copy = site_copy});
  }
  BufferId AllocatedCopy(absl::Status status = absl::OkStatus()) {
    const auto asked = worker_.Take<AllocateOffload>();
    EXPECT_THAT(asked, SizeIs(1));
    if (asked.empty()) return BufferId();
    const BufferId copy = asked.front().copy;
    worker_.Say(BufferRegistered{copy, absl::OkStatus()});
    worker_.Handle(event::OffloadAllocated{copy, std::move(status)});
    return copy;
  }
  void FillCopy(BufferId copy, absl::Status status = absl::OkStatus()) {
    const OperationKey key{copy, OperationNumber(1)};
    worker_.Say(OperationResolved{key, kStep2, std::nullopt});
    worker_.Say(worker_.Assignment(key, 1, kStep2.sequence, {7}));
    worker_.Handle(event::FirstWrite{copy});
    worker_.Handle(event::FillCompleted{copy, TestRoot(1)});
    worker_.Finish(key, OperationKind::kUpdate, std::move(status), UpdateOutcome::kMoved, kStep2);
  }
  BufferState State(BufferId buffer) { return worker_.session.buffer_state(buffer); }

  SessionHarness worker_;
  BufferId buffer_;
  uint64_t calls_ = 10;
};

TEST_F(SiteCopyTest, TheServerHearsWhatTheCallerWants) {
  ASSERT_OK(Update(WhenSeeding::kSkip));
  const auto starts = worker_.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].when_seeding, WhenSeeding::kSkip);
}

TEST_F(SiteCopyTest, TheCallerHearsThatItIsBeingSeededAndItsBufferServesOn) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/false);
  const auto done = worker_.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_OK(done[0].status);
  EXPECT_EQ(done[0].outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(done[0].not_available, NotAvailableReason::kSeeding);
  EXPECT_EQ(done[0].version, kStep2);
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
  EXPECT_EQ(worker_.session.buffer_version(buffer_), kStep1);
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty());
}

TEST_F(SiteCopyTest, ACopyIsAnUpdateOfABufferOfItsOwn) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  EXPECT_THAT(worker_.Take<OperationDone>(), SizeIs(1));  // before the copy has begun
  const auto registered = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  EXPECT_EQ(registered[0].buffer.role, BufferRole::kSiteCopy);
  EXPECT_EQ(registered[0].buffer.buffer_name, "weights.seed-8.1.2");
  worker_.TakeSent<StartOperation>();
  const BufferId copy = AllocatedCopy();
  const auto starts = worker_.TakeSent<StartOperation>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_EQ(starts[0].key.buffer, copy);
  EXPECT_EQ(starts[0].selector, VersionSelector(kStep2.sequence));
  EXPECT_EQ(starts[0].when_seeding, WhenSeeding::kWait);
  EXPECT_EQ(starts[0].timeout, absl::Seconds(300));
  FillCopy(copy);
  EXPECT_EQ(State(copy), BufferState::kPublished);
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());  // nobody waits for it
}

TEST_F(SiteCopyTest, TheBufferUpdatesWhileTheCopyFills) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  const BufferId copy = AllocatedCopy();
  ASSERT_OK(Update());
  AnswerSeeding(3, /*site_copy=*/false);
  FillCopy(copy);
  EXPECT_EQ(State(copy), BufferState::kPublished);
}

TEST_F(SiteCopyTest, WhenItIsReleasedItGoes) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  const BufferId copy = AllocatedCopy();
  FillCopy(copy);
  worker_.Say(OffloadReleased{copy});
  const auto freed = worker_.Take<FreeOffload>();
  ASSERT_THAT(freed, SizeIs(1));
  EXPECT_EQ(freed[0].copy, copy);
}

TEST_F(SiteCopyTest, WithoutMemoryTheOtherRanksHearOfItAndNothingIsLeft) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  const BufferId copy = AllocatedCopy(absl::ResourceExhaustedError("no memory"));
  const auto failed = worker_.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key.buffer, copy);
  worker_.Finish({copy, OperationNumber(1)}, OperationKind::kUpdate,
                 absl::ResourceExhaustedError("no memory"));
  EXPECT_FALSE(worker_.session.has_buffer(copy));
  EXPECT_THAT(worker_.Take<FreeOffload>(), IsEmpty()) << "there was none to free";
  EXPECT_EQ(State(buffer_), BufferState::kPublished);
}

// The server has released the first copy, or knows that it failed, and this rank has not heard.
TEST_F(SiteCopyTest, WhileAnotherCopyTakesTheMemoryNoneIsAskedFor) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  FillCopy(AllocatedCopy());
  worker_.Drop();
  ASSERT_OK(Update());
  AnswerSeeding(3, /*site_copy=*/true);
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty());
  const auto registered = worker_.TakeSent<RegisterBuffer>();
  ASSERT_THAT(registered, SizeIs(1));
  worker_.Say(BufferRegistered{registered[0].buffer.buffer, absl::OkStatus()});
  const auto failed = worker_.TakeSent<RankFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].key.buffer, registered[0].buffer.buffer);
  EXPECT_THAT(failed[0].status, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(SiteCopyTest, AServerThatKnowsNothingHearsOfTheAnswerAndOfTheCopy) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  const BufferId copy = AllocatedCopy();
  FillCopy(copy);
  worker_.Drop();
  worker_.BreakStream();
  worker_.Pass(absl::Milliseconds(50));
  worker_.Handle(event::StreamOpened{});
  const auto joins = worker_.TakeSent<JoinRequest>();
  ASSERT_THAT(joins, SizeIs(1));
  ASSERT_THAT(joins[0].buffers, SizeIs(2));
  ASSERT_TRUE(joins[0].buffers[0].last_finished.has_value());
  EXPECT_TRUE(joins[0].buffers[0].last_finished->site_copy);
  EXPECT_EQ(joins[0].buffers[1].role, BufferRole::kSiteCopy);
  EXPECT_TRUE(joins[0].buffers[1].held.has_value());
}

TEST_F(SiteCopyTest, AnAnswerToAnEndedUpdateBeginsNothing) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/false);
  AnswerSeeding(2, /*site_copy=*/true);
  EXPECT_THAT(worker_.Take<AllocateOffload>(), IsEmpty());
}

TEST_F(SiteCopyTest, WhenTheGroupCountsAnewACopyThatFillsEnds) {
  ASSERT_OK(Update());
  AnswerSeeding(2, /*site_copy=*/true);
  AllocatedCopy();
  worker_.Say(GroupChanged{GroupGeneration(2), {"rollout", Rank(1)}});
  EXPECT_THAT(worker_.Take<FreeOffload>(), SizeIs(1));
}

}  // namespace
}  // namespace th
