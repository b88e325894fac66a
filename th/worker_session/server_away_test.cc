// A trainer that goes on without a server: every step ends here, and the server hears of all of
// them when it is back, no more at a time than it queues.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::SizeIs;
using ::th::testing::StatusIs;

constexpr int kSteps = 1'000;
constexpr size_t kServerQueues = 8;

class ServerAwayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.BreakStream();
    worker_.Pass(absl::Seconds(2));
    worker_.Drop();
  }
  absl::Status Publish(int step) {
    return worker_
        .Handle(event::Publish{
            CallId(++calls_), buffer_, {.label = Label(absl::StrCat("step-", step))}})
        .status;
  }
  absl::Status Unpublish() {
    return worker_.Handle(event::Unpublish{CallId(++calls_), buffer_, {}}).status;
  }
  void RunSteps(int steps) {
    for (int step = 1; step <= steps; ++step) {
      ASSERT_OK(Publish(step)) << step;
      ASSERT_OK(Unpublish()) << step;
      // The publication was never named; the buffer is the trainer's again all the same.
      ASSERT_THAT(worker_.Take<OperationDone>(), SizeIs(2)) << step;
      ASSERT_EQ(worker_.session.buffer_state(buffer_), BufferState::kWritable) << step;
      worker_.Drop();
    }
  }

  SessionHarness worker_;
  BufferId buffer_;
  uint64_t calls_ = 0;
};

TEST_F(ServerAwayTest, AThousandStepsEndAndTheLastPublicationIsNamedWhenItIsBack) {
  ASSERT_NO_FATAL_FAILURE(RunSteps(kSteps));
  ASSERT_OK(Publish(kSteps + 1));
  worker_.epoch = Epoch(2);
  worker_.Handle(event::StreamOpened{});
  worker_.Say(worker_.JoinedAnswer(Epoch(2)));
  worker_.Say(BufferRegistered{buffer_, absl::OkStatus()});
  OperationNumber next(1);
  VersionInfo last;
  // The server answers one after the other.
  for (auto starts = worker_.TakeSent<StartOperation>(); !starts.empty();
       starts = worker_.TakeSent<StartOperation>()) {
    ASSERT_LE(starts.size(), kServerQueues);
    for (const StartOperation& start : starts) {
      ASSERT_EQ(start.key.number, next);
      next = next.Next();
      const bool is_last = start.key.number.value == 2 * kSteps + 1;
      if (is_last) last = Version(77, start.label.text());
      const bool unpublish = start.kind == OperationKind::kUnpublish;
      worker_.Finish(start.key, start.kind,
                     is_last || unpublish ? absl::OkStatus() : absl::UnavailableError("given up"),
                     UpdateOutcome::kNone, is_last ? last : VersionInfo());
    }
  }
  EXPECT_EQ(next.value, 2 * kSteps + 2u);
  EXPECT_EQ(last.label, Label(absl::StrCat("step-", kSteps + 1)));
  const auto done = worker_.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_OK(done[0].status);
  EXPECT_EQ(worker_.session.buffer_version(buffer_), last);
}

TEST_F(ServerAwayTest, WhatTheServerHasToHearIsBounded) {
  ASSERT_NO_FATAL_FAILURE(RunSteps(1'280));
  const absl::Status refused = Publish(9'999);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                ::testing::HasSubstr("the server is away")));
  EXPECT_EQ(worker_.session.buffer_state(buffer_), BufferState::kWritable);
}

}  // namespace
}  // namespace th
