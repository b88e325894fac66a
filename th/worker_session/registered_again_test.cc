// A buffer that is freed and registered again, and answers that belong to something else.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

const VersionInfo kStep1 = Version(7, "step-1");
const VersionInfo kStep2 = Version(8, "step-2");
constexpr OperationNumber kFirst(1);

class RegisteredAgainTest : public ::testing::Test {
 protected:
  void SetUp() override { worker.Join(); }

  // Registers a buffer; the announcement that the server gets of it.
  AnnouncedBuffer Register(const std::string& name = "weights") {
    worker.Drop();
    const auto buffer = worker.BufferOf(event::RegisterBuffer{name, "hf", TestLayout()});
    EXPECT_OK(buffer);
    const auto sent = worker.TakeSent<RegisterBuffer>();
    EXPECT_THAT(sent, SizeIs(1));
    worker.Say(BufferRegistered{*buffer, absl::OkStatus()});
    return sent.empty() ? AnnouncedBuffer() : sent.front().buffer;
  }
  void Free(const AnnouncedBuffer& buffer) {
    EXPECT_OK(worker.Handle(event::UnregisterBuffer{buffer.buffer}).status);
  }
  // The announcement of the one buffer that there is in the next join.
  AnnouncedBuffer AnnouncedAtRejoin() {
    worker.Drop();
    worker.BreakStream();
    worker.Pass(absl::Milliseconds(50));
    const JoinRequest join = worker.OpenAndHearJoin();
    EXPECT_THAT(join.buffers, SizeIs(1));
    return join.buffers.empty() ? AnnouncedBuffer() : join.buffers.front();
  }
  OperationDone TheDone() {
    const auto done = worker.Take<OperationDone>();
    EXPECT_THAT(done, SizeIs(1));
    return done.empty() ? OperationDone() : done.front();
  }

  SessionHarness worker;
};

TEST_F(RegisteredAgainTest, CountsAfterTheGenerationInWhichItsNameWasFreed) {
  const AnnouncedBuffer first = Register();
  EXPECT_EQ(first.counts_after, GroupGeneration());
  worker.PublishNamed(first.buffer, kFirst, kStep1);
  Free(first);
  const AnnouncedBuffer again = Register();
  EXPECT_NE(again.buffer, first.buffer);
  EXPECT_EQ(again.counts_after, GroupGeneration(1));
  EXPECT_FALSE(again.last_finished.has_value());
  EXPECT_FALSE(again.held.has_value());
}

TEST_F(RegisteredAgainTest, AnotherNameIsNotDisturbed) {
  Free(Register("weights"));
  EXPECT_EQ(Register("adapter").counts_after, GroupGeneration());
}

TEST_F(RegisteredAgainTest, WhereTheGroupCountsAnewSinceItWasFreedNothingIsLeftToFear) {
  Free(Register());
  worker.Say(GroupChanged{GroupGeneration(2), {"rollout-3", Rank(0)}});
  EXPECT_EQ(Register().counts_after, GroupGeneration());
}

TEST_F(RegisteredAgainTest, SaysTheSameToTheNextServer) {
  Free(Register());
  const AnnouncedBuffer again = Register();
  worker.Say(GroupChanged{GroupGeneration(5), {"rollout-3", Rank(0)}});
  EXPECT_EQ(AnnouncedAtRejoin().counts_after, again.counts_after);
}

TEST_F(RegisteredAgainTest, SaysSoWhenItHappensWithoutAServer) {
  const AnnouncedBuffer first = Register();
  worker.BreakStream();
  Free(first);
  ASSERT_OK(worker.BufferOf(event::RegisterBuffer{"weights", "hf", TestLayout()}));
  worker.Pass(absl::Milliseconds(50));
  const JoinRequest join = worker.OpenAndHearJoin();
  ASSERT_THAT(join.buffers, SizeIs(1));
  EXPECT_EQ(join.buffers[0].counts_after, GroupGeneration(1));
}

TEST_F(RegisteredAgainTest, ABufferThatNoServerEverTookLeavesNoName) {
  const auto refused = worker.BufferOf(event::RegisterBuffer{"weights", "hf", TestLayout()});
  ASSERT_OK(refused);
  worker.Say(BufferRegistered{*refused, absl::AlreadyExistsError("taken")});
  EXPECT_OK(worker.Handle(event::UnregisterBuffer{*refused}).status);
  EXPECT_EQ(Register().counts_after, GroupGeneration());
}

// ---- an answer is compared with what was asked

TEST_F(RegisteredAgainTest, ThePublicationOfAnotherLabelIsNoneOfThisBuffer) {
  const BufferId buffer = Register().buffer;
  ASSERT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-2")}}).status);
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep1);
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("step-1"), HasSubstr("step-2"), HasSubstr("call again"))));
  EXPECT_EQ(worker.session.buffer_state(buffer), BufferState::kWritable);
  EXPECT_THAT(worker.Take<StartSealing>(), IsEmpty());
  EXPECT_THAT(worker.TakeSent<RankFailed>(), SizeIs(1)) << "the server takes it for a holder";
  const AnnouncedBuffer announced = AnnouncedAtRejoin();
  EXPECT_FALSE(announced.held.has_value());
  ASSERT_TRUE(announced.last_finished.has_value());
  EXPECT_THAT(announced.last_finished->status, StatusIs(absl::StatusCode::kInternal));
}

TEST_F(RegisteredAgainTest, ADerivedFormIsNotThatOfAnotherVersion) {
  const BufferId buffer = Register().buffer;
  ASSERT_OK(worker
                .Handle(event::Publish{
                    CallId(1), buffer, {.label = Label("step-2"), .derived_from = kStep1.sequence}})
                .status);
  worker.Finish({buffer, kFirst}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
                kStep2);
  EXPECT_THAT(TheDone().status, StatusIs(absl::StatusCode::kInternal));
}

TEST_F(RegisteredAgainTest, AnUpdateToAnotherVersionThanAskedForIsAnError) {
  const BufferId buffer = Register().buffer;
  worker.PublishNamed(buffer, kFirst, kStep1);
  ASSERT_OK(worker.Handle(event::Update{CallId(2), buffer, {.selector = Label("step-2")}}).status);
  worker.Finish({buffer, OperationNumber(2)}, OperationKind::kUpdate, absl::OkStatus(),
                UpdateOutcome::kAlreadyThere, kStep1);
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("step-2 was asked for")));
}

TEST_F(RegisteredAgainTest, NothingIsFilledWithAnotherVersionThanAskedFor) {
  const BufferId buffer = Register().buffer;
  ASSERT_OK(worker.Handle(event::Update{CallId(1), buffer, {.selector = Label("step-2")}}).status);
  worker.Say(OperationResolved{{buffer, kFirst}, kStep1, std::nullopt});
  EXPECT_THAT(TheDone().status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("step-2 was asked for")));
  EXPECT_THAT(worker.Take<StartFill>(), IsEmpty());
}

}  // namespace
}  // namespace th
