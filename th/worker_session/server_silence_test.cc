// A server whose host has gone silent: the stream stays open, and nothing comes any more.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kAskedAfter = absl::Milliseconds(500);

class ServerSilenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    worker_.PublishNamed(buffer_, OperationNumber(1), Version(7, "one"));
    worker_.Drop();
  }
  void Unpublish() { ASSERT_OK(worker_.Handle(event::Unpublish{CallId(2), buffer_, {}}).status); }
  // The questions among the heartbeats.
  size_t Asked() {
    size_t asked = 0;
    for (const Heartbeat& heartbeat : worker_.TakeSent<Heartbeat>()) asked += heartbeat.ask ? 1 : 0;
    return asked;
  }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_F(ServerSilenceTest, AnUnpublishEndsWithinThreeSeconds) {
  Unpublish();
  worker_.Pass(absl::Milliseconds(2'900));
  const auto done = worker_.Take<OperationDone>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_OK(done[0].status);
  EXPECT_EQ(worker_.session.buffer_state(buffer_), BufferState::kWritable);
}

TEST_F(ServerSilenceTest, TheServerIsAskedOnceBeforeItsStreamIsGivenUp) {
  Unpublish();
  worker_.Pass(kAskedAfter);
  EXPECT_EQ(Asked(), 1u);
  EXPECT_THAT(worker_.Take<CloseStream>(), IsEmpty());
  worker_.Pass(absl::Milliseconds(999));
  EXPECT_EQ(Asked(), 0u);
  EXPECT_THAT(worker_.Take<CloseStream>(), IsEmpty());
  worker_.Pass(absl::Milliseconds(1));
  EXPECT_THAT(worker_.Take<CloseStream>(), SizeIs(1));
}

TEST_F(ServerSilenceTest, OneThatAnswersIsWaitedForAsLongAsTheCallAsked) {
  Unpublish();
  for (int i = 0; i < 20; ++i) {
    worker_.Pass(kAskedAfter);
    ASSERT_EQ(Asked(), 1u) << i;
    worker_.Say(Alive{});
  }
  EXPECT_THAT(worker_.Take<CloseStream>(), IsEmpty());
  EXPECT_THAT(worker_.Take<OperationDone>(), IsEmpty());
}

TEST_F(ServerSilenceTest, NobodyWhoWaitsForNothingAsks) {
  worker_.Pass(absl::Minutes(1));
  EXPECT_EQ(Asked(), 0u);
  EXPECT_THAT(worker_.Take<CloseStream>(), IsEmpty());
}

TEST_F(ServerSilenceTest, AWorkerThatWasStoppedItselfAsksBeforeItGivesUp) {
  Unpublish();
  worker_.now += absl::Seconds(20);  // without a tick
  worker_.Handle(event::Tick{});
  EXPECT_EQ(Asked(), 1u);
  EXPECT_THAT(worker_.Take<CloseStream>(), IsEmpty());
}

}  // namespace
}  // namespace th
