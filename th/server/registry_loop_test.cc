#include "th/server/registry_loop.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/memory_store.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::th::testing::StatusIs;

constexpr absl::Duration kDeadline = absl::Seconds(20);

// A journal of what the loop did, in order, from both of its ends.
class Journal {
 public:
  void Add(std::string entry) {
    absl::MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }
  // False when there are fewer at the deadline.
  bool AwaitCount(size_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return entries_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kDeadline);
  }
  std::vector<std::string> entries() const {
    absl::MutexLock lock(&mutex_);
    return entries_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> entries_ ABSL_GUARDED_BY(mutex_);
};

std::string NameOf(const ServerMessage& message) {
  static constexpr const char* kNames[] = {
      "joined",          "refused",    "layout wanted", "registered",          "resolved",
      "assigned",        "root known", "finished",      "publication refused", "group changed",
      "command finished"};
  return kNames[message.index()];
}

class FakePeer : public StreamPeer {
 public:
  explicit FakePeer(Journal* journal) : journal_(journal) {}
  bool Send(const ServerMessage& message) override {
    if (deaf) {
      journal_->Add("overflow");
      return false;
    }
    if (const auto* refused = std::get_if<Refused>(&message)) {
      absl::MutexLock lock(&mutex_);
      refused_ = refused->status;
    }
    journal_->Add("send " + NameOf(message));
    return true;
  }
  void ReadNext() override { journal_->Add("read next"); }
  void CloseAfterSending() override { journal_->Add("close"); }
  void Abort() override { journal_->Add("abort"); }
  absl::Status refused() const {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }

  std::atomic<bool> deaf{false};

 private:
  Journal* const journal_;
  mutable absl::Mutex mutex_;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

class JournallingStore : public DurableStore {
 public:
  JournallingStore(Journal* journal, absl::Status result)
      : journal_(journal), result_(std::move(result)) {}
  const OpenedState& opened() const override { return opened_; }
  absl::Status Write(const DurableState&) override {
    journal_->Add("write");
    return result_;
  }
  absl::Status BeginAbove(Epoch heard, const DurableState& state) override {
    journal_->Add("begin above");
    opened_.epoch = heard.Next();
    opened_.durable = state;
    return result_;
  }

 private:
  Journal* const journal_;
  const absl::Status result_;
  OpenedState opened_{.epoch = Epoch(3),
                      .identity = {.cluster = ClusterId(1), .epoch_ids = {EpochId(3)}}};
};

class RegistryLoopTest : public ::testing::Test {
 protected:
  void Start(absl::Status write_result = absl::OkStatus()) {
    options_.store = std::make_unique<JournallingStore>(&journal_, std::move(write_result));
    loop_ = std::make_unique<RegistryLoop>(std::move(options_), &metrics_);
  }
  ConnectionId Join() {
    const ConnectionId connection = loop_->Open(peer_);
    loop_->HandleMessage(
        connection,
        JoinRequest{.hello = {1, 1}, .key = {"r", "m"}, .name = {"trainer", Rank(0)}, .ranks = 1});
    return connection;
  }

  Journal journal_;
  ServerMetrics metrics_;
  RegistryLoop::Options options_;
  std::shared_ptr<FakePeer> peer_ = std::make_shared<FakePeer>(&journal_);
  std::unique_ptr<RegistryLoop> loop_;
};

TEST_F(RegistryLoopTest, EveryMessageIsAnsweredBeforeTheNextIsRead) {
  Start();
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  EXPECT_THAT(journal_.entries(), ElementsAre("send joined", "read next"));
}

TEST_F(RegistryLoopTest, NothingLeavesBeforeItIsDurable) {
  Start();
  const ConnectionId connection = Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  loop_->HandleMessage(connection, RunCommand{"key", SetRetention{2}});
  ASSERT_TRUE(journal_.AwaitCount(5));
  EXPECT_THAT(journal_.entries(), ElementsAre("send joined", "read next", "write",
                                              "send command finished", "read next"));
}

// A worker that has lived in an epoch of which the server's state knows nothing.
TEST_F(RegistryLoopTest, AHigherEpochIsDurableBeforeEverybodyIsToldToComeBack) {
  absl::Time now = absl::UnixEpoch();
  absl::Mutex mutex;
  options_.now = [&] {
    absl::MutexLock lock(&mutex);
    return now;
  };
  Start();
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  {
    absl::MutexLock lock(&mutex);
    now += absl::Milliseconds(400);
  }
  const auto stranger = std::make_shared<FakePeer>(&journal_);
  loop_->HandleMessage(
      loop_->Open(stranger),
      JoinRequest{.hello = {1, 1},
                  .key = {"r", "m"},
                  .name = {"rollout", Rank(0)},
                  .ranks = 1,
                  .resume = ResumeClaim{.worker = WorkerId(5), .epoch = Epoch(20)}});
  ASSERT_TRUE(journal_.AwaitCount(7));
  EXPECT_THAT(journal_.entries(), ElementsAre("send joined", "read next", "begin above",
                                              "send refused", "send refused", "close", "close"));
  EXPECT_EQ(loop_->epoch(), Epoch(21));
  EXPECT_THAT(peer_->refused(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("begins again")));
  loop_.reset();  // before its clock
}

// A clock that the test moves.
class RegistryLoopClockTest : public RegistryLoopTest {
 protected:
  void StartWithLease(absl::Duration lease) {
    options_.limits.lease = lease;
    options_.pulse_interval = absl::Milliseconds(1);
    options_.now = [this] {
      const int64_t now = now_ms_;
      absl::MutexLock lock(&clock_mutex_);
      if (std::this_thread::get_id() != loop_thread_) read_by_others_ms_ = now;
      return absl::UnixEpoch() + absl::Milliseconds(now);
    };
    Start();
  }
  void Advance(absl::Duration duration) { now_ms_ += absl::ToInt64Milliseconds(duration); }
  // So long passes while the loop works and every other thread of the process runs.
  void PassWhileOthersRun(absl::Duration duration) {
    for (; duration > absl::ZeroDuration(); duration -= kStep) {
      Advance(kStep);
      absl::MutexLock lock(&clock_mutex_);
      const int64_t now = now_ms_;
      const auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(clock_mutex_) {
        return read_by_others_ms_ >= now;
      };
      EXPECT_TRUE(clock_mutex_.AwaitWithTimeout(absl::Condition(&read), kDeadline));
    }
  }
  // A turn of the loop that takes so long.
  void SlowTurn(absl::Duration duration) {
    absl::Notification answered;
    EXPECT_OK(loop_->Ask([&](RegistryTurn&) -> Answer {
      loop_thread_ = std::this_thread::get_id();
      PassWhileOthersRun(duration);
      return [&](const absl::Status&) { answered.Notify(); };
    }));
    answered.WaitForNotification();
  }
  // Once the loop has handled all that is due now.
  size_t WorkerCount() {
    for (int turn = 0; turn < 2; ++turn) workers_ = AskWorkerCount();
    return workers_;
  }

 private:
  size_t AskWorkerCount() {
    absl::Notification answered;
    size_t count = 0;
    EXPECT_OK(loop_->Ask([&](RegistryTurn& turn) -> Answer {
      count = turn.registry.worker_count();
      return [&](const absl::Status&) { answered.Notify(); };
    }));
    answered.WaitForNotification();
    return count;
  }

  static constexpr absl::Duration kStep = absl::Milliseconds(100);

  std::atomic<int64_t> now_ms_{1'000'000};
  std::atomic<std::thread::id> loop_thread_{};
  absl::Mutex clock_mutex_;
  int64_t read_by_others_ms_ ABSL_GUARDED_BY(clock_mutex_) = 0;
  size_t workers_ = 0;
};

TEST_F(RegistryLoopClockTest, APauseLongerThanTheLeaseEndsNoMembership) {
  StartWithLease(absl::Seconds(2));
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  ASSERT_EQ(WorkerCount(), 1u);
  Advance(absl::Hours(1));  // as after SIGSTOP and SIGCONT
  EXPECT_EQ(WorkerCount(), 1u);
  EXPECT_THAT(journal_.entries(), ElementsAre("send joined", "read next"));
  EXPECT_GE(metrics_.pauses.load(), 1u);
}

TEST_F(RegistryLoopClockTest, AWorkerThatIsSilentWhileTheLoopRunsIsDropped) {
  StartWithLease(absl::Seconds(2));
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  for (int i = 0; i < 30 && WorkerCount() == 1; ++i) Advance(absl::Milliseconds(100));
  EXPECT_EQ(WorkerCount(), 0u);
  EXPECT_EQ(metrics_.pauses.load(), 0u);
}

// The loop's own slowness is no pause: a worker that has died is dropped nevertheless.
TEST_F(RegistryLoopClockTest, ASilentWorkerIsDroppedThoughEveryTurnIsSlow) {
  StartWithLease(absl::Seconds(2));
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  for (int turn = 0; turn < 6; ++turn) SlowTurn(absl::Milliseconds(600));
  EXPECT_EQ(WorkerCount(), 0u);
  EXPECT_EQ(metrics_.pauses.load(), 0u);
}

// A turn may take longer than a worker's lease: the loop reads its stream before it judges it.
TEST_F(RegistryLoopClockTest, AWorkerThatSpeaksIsKeptThoughATurnIsLongerThanItsLease) {
  StartWithLease(absl::Seconds(2));
  const ConnectionId connection = Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  for (int turn = 0; turn < 3; ++turn) {
    SlowTurn(absl::Seconds(3));
    SlowTurn(absl::ZeroDuration());  // before the stream was read again
    loop_->HandleMessage(connection, Heartbeat{});
    EXPECT_EQ(WorkerCount(), 1u);
  }
}

TEST_F(RegistryLoopTest, AQuestionIsAnsweredAfterTheWrite) {
  Start();
  ASSERT_OK(loop_->Ask([this](RegistryTurn& turn) -> Answer {
    turn.run_command({"r", "m"}, {"key", SetRetention{2}});
    journal_.Add("asked");
    return [this](const absl::Status& durable) {
      journal_.Add(durable.ok() ? "answered" : "not answered");
    };
  }));
  ASSERT_TRUE(journal_.AwaitCount(3));
  EXPECT_THAT(journal_.entries(), ElementsAre("asked", "write", "answered"));
}

TEST_F(RegistryLoopTest, AFailedWriteIsAnsweredByNothingButRefusals) {
  absl::Notification failed;
  options_.on_failure = [&](absl::Status) { failed.Notify(); };
  Start(absl::ResourceExhaustedError("disk full"));
  const ConnectionId connection = Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  loop_->HandleMessage(connection, RunCommand{"key", SetRetention{2}});
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kDeadline));
  ASSERT_TRUE(journal_.AwaitCount(5));
  EXPECT_THAT(journal_.entries(),
              ElementsAre("send joined", "read next", "write", "send refused", "close"));
  EXPECT_THAT(peer_->refused(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("disk full")));
}

TEST_F(RegistryLoopTest, AFailedLoopAnswersQuestionsWithTheFailure) {
  absl::Notification failed;
  options_.on_failure = [&](absl::Status) { failed.Notify(); };
  Start(absl::ResourceExhaustedError("disk full"));
  for (int i = 0; i < 2; ++i) {
    absl::Notification answered;
    absl::Status answer;
    ASSERT_OK(loop_->Ask([&](RegistryTurn& turn) -> Answer {
      turn.run_command({"r", "m"}, {"key", SetRetention{2}});
      return [&](const absl::Status& durable) {
        answer = durable;
        answered.Notify();
      };
    }));
    ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kDeadline));
    EXPECT_THAT(answer, StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_TRUE(failed.HasBeenNotified());
  EXPECT_THAT(journal_.entries(), ElementsAre("write"));
}

TEST_F(RegistryLoopTest, ABadFrameIsRefusedAndEndsTheStream) {
  Start();
  const ConnectionId connection = Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  loop_->HandleBadFrame(connection, absl::InvalidArgumentError("join.key: is missing"));
  ASSERT_TRUE(journal_.AwaitCount(4));
  EXPECT_THAT(journal_.entries(), ElementsAre("send joined", "read next", "send refused", "close"));
  EXPECT_THAT(peer_->refused(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RegistryLoopTest, APeerThatDoesNotReadIsClosed) {
  Start();
  peer_->deaf = true;
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  EXPECT_THAT(journal_.entries(), ElementsAre("overflow", "close"));
}

TEST_F(RegistryLoopTest, AStreamThatDoesNotEndIsCut) {
  options_.close_grace = absl::Milliseconds(10);
  Start();
  const ConnectionId connection = loop_->Open(peer_);
  loop_->HandleDisconnect(connection);
  ASSERT_TRUE(journal_.AwaitCount(2));
  EXPECT_THAT(journal_.entries(), ElementsAre("close", "abort"));
}

TEST_F(RegistryLoopTest, ADisconnectIsHeardOnce) {
  Start();
  const ConnectionId connection = loop_->Open(peer_);
  loop_->HandleDisconnect(connection);
  loop_->HandleDisconnect(connection);
  loop_->HandleMessage(connection, Heartbeat{});
  loop_->Stop();
  EXPECT_THAT(journal_.entries(), ElementsAre("close"));
}

TEST_F(RegistryLoopTest, ASilentStreamIsClosed) {
  options_.first_message_timeout = absl::Milliseconds(10);
  Start();
  loop_->Open(peer_);
  ASSERT_TRUE(journal_.AwaitCount(2));
  EXPECT_THAT(journal_.entries(), ElementsAre("send refused", "close"));
  EXPECT_THAT(peer_->refused(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(RegistryLoopTest, AStreamThatHasSpokenMayBeSilent) {
  options_.first_message_timeout = absl::Milliseconds(10);
  Start();
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  // A second one's end shows that the first one's time has come as well.
  auto silent = std::make_shared<FakePeer>(&journal_);
  loop_->Open(silent);
  ASSERT_TRUE(journal_.AwaitCount(4));
  EXPECT_OK(peer_->refused());
  EXPECT_THAT(silent->refused(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(RegistryLoopTest, MoreQuestionsThanTheLimitAreRefused) {
  Start();
  absl::Notification entered, release;
  const auto nothing = [](const absl::Status&) {};
  ASSERT_OK(loop_->Ask([&](RegistryTurn&) -> Answer {
    entered.Notify();
    release.WaitForNotification();
    return nothing;
  }));
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kDeadline));
  size_t accepted = 0;
  while (accepted <= kMaxPendingQuestions &&
         loop_->Ask([&](RegistryTurn&) -> Answer { return nothing; }).ok()) {
    ++accepted;
  }
  const uint64_t calls = metrics_.calls.load();
  EXPECT_OK(loop_->Ask([&](RegistryTurn&) -> Answer { return nothing; }, Asker::kServer));
  EXPECT_EQ(metrics_.calls.load(), calls) << "the server's own is no call of a controller";
  release.Notify();
  loop_->Stop();  // before what its thread waits for goes
  EXPECT_EQ(accepted, kMaxPendingQuestions);
  EXPECT_EQ(metrics_.calls_refused.load(), 1u);
}

TEST_F(RegistryLoopTest, StoppingAnswersThoseWhoWait) {
  Start();
  absl::StatusOr<VersionInfo> result;
  ASSERT_OK(loop_->Wait({.key = {"r", "m"},
                         .selector = LatestVersion{},
                         .timeout = absl::Hours(1),
                         .done = [&](absl::StatusOr<VersionInfo> version) { result = version; }}));
  loop_->Stop();
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(metrics_.waits.load(), 0);
}

TEST_F(RegistryLoopTest, AStoppedLoopAcceptsNothing) {
  Start();
  loop_->Stop();
  EXPECT_THAT(loop_->Ask([](RegistryTurn&) -> Answer { return [](const absl::Status&) {}; }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(loop_->Wait({.timeout = absl::Hours(1)}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(journal_.entries(), IsEmpty());
}

TEST_F(RegistryLoopTest, RefusingEverybodyMeansThoseWhoComeLaterToo) {
  Start();
  Join();
  ASSERT_TRUE(journal_.AwaitCount(2));
  loop_->RefuseEverybody(absl::UnavailableError("going down"), absl::Milliseconds(1));
  auto late = std::make_shared<FakePeer>(&journal_);
  loop_->Open(late);
  ASSERT_TRUE(journal_.AwaitCount(6));
  EXPECT_THAT(peer_->refused(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(late->refused(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace th
