// The conformance suite over a medium whose reads end later, on another thread: what a queue pair
// does, without the hardware. Both ends are in this process; keys and a handshake of two rounds
// have to arrive for a read to succeed.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/conformance_suite.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"

namespace th::stream {
namespace {

uint32_t KeyFor(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) * 2654435761u);
}

// Copies in order on a thread of its own, and says so through an eventfd.
class LateMemory final : public RemoteMemory {
 public:
  LateMemory() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), thread_([this] { Run(); }) {}
  ~LateMemory() override {
    {
      absl::MutexLock lock(&mu_);
      over_ = true;
      asked_.clear();
    }
    thread_.join();
    close(event_);
  }

  // While held no copy begins.
  static void Hold(bool hold) {
    absl::MutexLock lock(&hold_mu_);
    hold_ = hold;
  }

  absl::StatusOr<std::string> HandleOffer(absl::string_view offer) override {
    if (offer == "offer") return std::string("answer");
    if (offer != "reply") return absl::InvalidArgumentError("an offer that makes no sense");
    Enqueue({.makes_ready = true});
    return std::string();
  }
  bool ready() const override { return ready_; }
  int fd() const override { return event_; }
  void Start(absl::Span<const Located::Piece> from, absl::Span<const iovec> into,
             const ControlPlace& control) override {
    Enqueue({.from = {from.begin(), from.end()}, .into = into, .control = control});
  }
  absl::StatusOr<std::optional<Read>> Poll() override {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_, &count, sizeof(count));
    absl::MutexLock lock(&mu_);
    while (!ended_.empty() && ended_.front().makes_ready) {
      ready_ = true;
      ended_.pop_front();
    }
    if (ended_.empty()) return std::optional<Read>();
    std::optional<Read> read = std::move(ended_.front().read);
    ended_.pop_front();
    return read;
  }

 private:
  static inline absl::Mutex hold_mu_;
  static inline bool hold_ ABSL_GUARDED_BY(hold_mu_) = false;

  struct Task {
    bool makes_ready = false;
    std::vector<Located::Piece> from;
    absl::Span<const iovec> into;
    ControlPlace control;
    Read read;
  };

  void Enqueue(Task task) {
    absl::MutexLock lock(&mu_);
    asked_.push_back(std::move(task));
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return over_ || !asked_.empty(); }

  void Run() {
    while (true) {
      Task task;
      {
        absl::MutexLock lock(&mu_, absl::Condition(this, &LateMemory::HasWork));
        if (over_) return;
        task = std::move(asked_.front());
        asked_.pop_front();
      }
      if (!task.makes_ready) {
        {
          absl::MutexLock lock(&hold_mu_, absl::Condition(
                                              +[](bool* hold) { return !*hold; }, &hold_));
        }
        Copy(task);
      }
      absl::MutexLock lock(&mu_);
      ended_.push_back(std::move(task));
      const uint64_t one = 1;
      EXPECT_EQ(write(event_, &one, sizeof(one)), ssize_t{sizeof(one)});
    }
  }

  static void Copy(Task& task) {
    std::string bytes;
    for (const Located::Piece& piece : task.from) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process.
      const char* const at = reinterpret_cast<const char*>(piece.address);
      if (piece.key != KeyFor(at)) task.read.status = absl::PermissionDeniedError("a wrong key");
      bytes.append(at, piece.bytes);
    }
    size_t taken = 0;
    for (const iovec& piece : task.into) {
      std::memcpy(piece.iov_base, bytes.data() + taken, piece.iov_len);
      taken += piece.iov_len;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process.
    const auto* const control = reinterpret_cast<const ControlBlock*>(task.control.address);
    if (task.control.key != KeyFor(control)) {
      task.read.status = absl::PermissionDeniedError("a wrong key of the control block");
    }
    task.read.control = Read::Control{control->generation.load(), control->life.load()};
  }

  const int event_;
  bool ready_ = false;
  absl::Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> asked_ ABSL_GUARDED_BY(mu_);
  std::deque<Task> ended_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

class OwnMemory final : public ServedMemory {
 public:
  absl::StatusOr<std::string> Offer() override { return std::string("offer"); }
  absl::StatusOr<std::string> HandleAnswer(absl::string_view answer) override {
    if (answer != "answer") return absl::InvalidArgumentError("an answer that makes no sense");
    return std::string("reply");
  }
  std::optional<uint32_t> KeyOf(const iovec& piece) override { return KeyFor(piece.iov_base); }
};

class LateMedium final : public Medium {
 public:
  absl::string_view name() const override { return "late"; }
  absl::string_view thread_name() const override { return "th-late"; }
  absl::Status Reach(const Endpoint&) const override { return absl::OkStatus(); }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    return SocketAddress::Parse(endpoint.address);
  }
  void Tune(int) const override {}
  std::unique_ptr<ServedMemory> Serve(int) const override { return std::make_unique<OwnMemory>(); }
  std::unique_ptr<RemoteMemory> Read(const ReadSetup&) const override {
    return std::make_unique<LateMemory>();
  }
};

class LateWorld : public testing::ConformanceWorld {
 public:
  std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) override {
    absl::StatusOr<Socket> listener = ListenOn(*SocketAddress::Parse("127.0.0.1:0"));
    EXPECT_OK(listener.status());
    const Endpoint endpoint{.address = SocketAddress::OfSelf(listener->fd()).ToString(),
                            .transport = "late",
                            .site = ""};
    auto transport = StreamTransport::Start(std::make_shared<LateMedium>(), *std::move(listener),
                                            {endpoint}, limits);
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  Endpoint DeadEndpoint() override {
    const Socket gone = *ListenOn(*SocketAddress::Parse("127.0.0.1:0"));
    return {
        .address = SocketAddress::OfSelf(gone.fd()).ToString(), .transport = "late", .site = ""};
  }
};

std::unique_ptr<testing::ConformanceWorld> NewLateWorld() { return std::make_unique<LateWorld>(); }

}  // namespace
}  // namespace th::stream

namespace th::testing {

// A soft end: what the source had located before its last word is read, counted and answered.
class LateMemoryTest : public TransportConformanceTest {};

TEST_P(LateMemoryTest, WhatIsBeingReadWhenTheSourceSaysItsLastWordCounts) {
  limits_.data_threads = 1;  // so that what the source says reaches the reader in its order
  SetMaxSegmentsQueued(limits_.max_segments_queued);
  stream::LateMemory::Hold(true);
  auto pull = Open(&sink_);
  sink_.AwaitAdmitted();
  pull->Ask({SegmentIndex(0), SegmentIndex(4)});
  sink_.AwaitBegun(4);
  source_->FinishTransfer(holder_.admitted()[0]);
  // Once this one is admitted the last word has come.
  TestSink second(&received_);
  auto another = Open(&second);
  second.AwaitAdmitted();
  stream::LateMemory::Hold(false);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kClosed);
  EXPECT_THAT(sink_.segments(), ::testing::SizeIs(4));
  holder_.AwaitReleased(1);
  another->Close();
  second.AwaitClosed();
}

INSTANTIATE_TEST_SUITE_P(LateMemory, LateMemoryTest, ::testing::Values(&stream::NewLateWorld));
INSTANTIATE_TEST_SUITE_P(LateMemory, TransportConformanceTest,
                         ::testing::Values(&stream::NewLateWorld));
INSTANTIATE_TEST_SUITE_P(LateMemory, HeldReaderConformanceTest,
                         ::testing::Values(&stream::NewLateWorld));

}  // namespace th::testing
