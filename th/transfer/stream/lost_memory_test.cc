// A pull one of whose connections loses its way to the source's memory goes on over the others.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/stream/medium.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/stream/stream_transport.h"
#include "th/transfer/test_peers.h"
#include "th/transfer/transport.h"
#include "th/weights/checksum.h"

namespace th::stream {
namespace {

using ::th::testing::kHolderWorker;
using ::th::testing::PatientLimits;
using ::th::testing::TestHolder;
using ::th::testing::TestShard;
using ::th::testing::TestSink;

constexpr BufferGeneration kFilled(1);

// Says how the second connection of a pull behaves, and counts what it does.
struct SecondConnection {
  std::atomic<int> reads{0};
  std::atomic<bool> lost{false};  // from now on it reads nothing
  std::atomic<bool> ends{true};   // false: a GPU is at what it has read
  absl::Notification asked_to_end;
};

// Both ends are in this process: reads as soon as it is asked.
class NearMemory final : public RemoteMemory {
 public:
  explicit NearMemory(SecondConnection* second) : second_(second) {}

  absl::StatusOr<std::string> HandleOffer(absl::string_view) override {
    ready_ = true;
    return std::string("answer");
  }
  bool ready() const override { return ready_; }
  int fd() const override { return -1; }
  void Start(absl::Span<const Located::Piece> from, absl::Span<const iovec> into,
             const ControlPlace& place) override {
    std::string bytes;
    for (const Located::Piece& piece : from) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process.
      bytes.append(reinterpret_cast<const char*>(piece.address), piece.bytes);
    }
    size_t taken = 0;
    for (const iovec& piece : into) {
      std::memcpy(piece.iov_base, bytes.data() + taken, piece.iov_len);
      taken += piece.iov_len;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process.
    const auto* const control = reinterpret_cast<const ControlBlock*>(place.address);
    ended_.push_back({.status = absl::OkStatus(),
                      .control = Read::Control{control->generation.load(), control->life.load()}});
  }
  absl::StatusOr<std::optional<Read>> Poll() override {
    if (second_ != nullptr && second_->lost) return absl::UnavailableError("the device has failed");
    if (ended_.empty()) return std::optional<Read>();
    if (second_ != nullptr) ++second_->reads;
    Read read = std::move(ended_.front());
    ended_.pop_front();
    return std::make_optional(std::move(read));
  }
  bool End(bool /*hangs*/) override {
    if (second_ == nullptr) return true;
    if (!second_->asked_to_end.HasBeenNotified()) second_->asked_to_end.Notify();
    return second_->ends;
  }

 private:
  SecondConnection* const second_;  // null for the others; outlives the transports
  bool ready_ = false;
  std::deque<Read> ended_;
};

class OwnMemory final : public ServedMemory {
 public:
  absl::StatusOr<std::string> Offer() override { return std::string("offer"); }
  absl::StatusOr<std::string> HandleAnswer(absl::string_view) override { return std::string(); }
  std::optional<uint32_t> KeyOf(const iovec&) override { return 1; }
};

class NearMedium final : public Medium {
 public:
  explicit NearMedium(SecondConnection* second) : second_(second) {}
  absl::string_view name() const override { return "near"; }
  absl::string_view thread_name() const override { return "th-near"; }
  absl::Status Reach(const Endpoint&) const override { return absl::OkStatus(); }
  absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const override {
    return SocketAddress::Parse(endpoint.address);
  }
  void Tune(int) const override {}
  std::unique_ptr<ServedMemory> Serve(int) const override { return std::make_unique<OwnMemory>(); }
  std::unique_ptr<RemoteMemory> Read(const ReadSetup& setup) const override {
    return std::make_unique<NearMemory>(setup.number == 1 ? second_ : nullptr);
  }

 private:
  SecondConnection* const second_;
};

class LostMemoryTest : public ::testing::Test {
 protected:
  LostMemoryTest() {
    source_->AddHolder(kHolderWorker, &holder_);
    published_.FillWith(1);
    published_.store()->BeginFill(kFilled, {});
  }
  ~LostMemoryTest() override {
    reader_.reset();
    source_.reset();
  }

  std::unique_ptr<Transport> NewTransport() {
    Socket listener = *ListenOn(*SocketAddress::Parse("127.0.0.1:0"));
    const Endpoint endpoint{.address = SocketAddress::OfSelf(listener.fd()).ToString(),
                            .transport = "near",
                            .site = ""};
    auto transport = StreamTransport::Start(std::make_shared<NearMedium>(&second_),
                                            std::move(listener), {endpoint}, PatientLimits());
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }
  void Arrives(uint64_t segment) {
    const SegmentIndex index(segment);
    published_.store()->MarkHeld(index, published_.ChecksumOf(index));
  }
  // The first connection owes `first`, so that the next are asked of the second once it is there.
  // Returns when segment 0 has come over that, after how many segments in all.
  size_t AwaitSecondConnection(Pull& pull, SegmentRange first) {
    sink_.AwaitAdmitted();
    pull.Ask(first);
    Arrives(0);
    size_t received = 0;
    while (second_.reads == 0) {
      pull.Ask({SegmentIndex(0), SegmentIndex(1)});
      sink_.AwaitSegments(++received);
    }
    return received;
  }

  SecondConnection second_;
  // Large enough for two connections.
  const TestShard::Spec spec_{.tensor_bytes = {9 << 20}, .segment_bytes = 16 << 10};
  TestShard published_{spec_}, received_{spec_};
  TestHolder holder_{published_.store()};
  TestSink sink_{&received_};
  std::unique_ptr<Transport> source_ = NewTransport(), reader_ = NewTransport();
};

TEST_F(LostMemoryTest, WhatMovesToAnotherConnectionIsNoMoreThanItsSourceTakes) {
  const uint64_t last = published_.segment_count() - 1;
  constexpr uint64_t kHoles = 100;  // each is a request of its own
  static_assert(kHoles > ServingLimits().max_requests_queued);
  auto pull = reader_->Open(
      holder_.Target(source_->endpoints()[0], received_.store()->shared_layout()), &sink_);
  size_t received = AwaitSecondConnection(*pull, {SegmentIndex(last), SegmentIndex(last + 1)});
  pull->Ask({SegmentIndex(1), SegmentIndex(1 + 2 * kHoles)});
  for (uint64_t i = 0; i < kHoles; ++i) Arrives(1 + 2 * i);
  sink_.AwaitSegments(received += kHoles);
  second_.lost = true;
  // The second connection hears of the first hole, and cannot read it.
  for (uint64_t i = 0; i < kHoles; ++i) {
    Arrives(2 + 2 * i);
    sink_.AwaitSegments(++received);
    ASSERT_FALSE(sink_.closed()) << sink_.AwaitClosed().second;
  }
  Arrives(last);
  sink_.AwaitSegments(++received);
  EXPECT_FALSE(sink_.closed());
  pull->Close();
  sink_.AwaitClosed();
}

// It would not answer, and what it owes is asked of others only once it is closed.
TEST_F(LostMemoryTest, AConnectionThatWaitsForItsGpuIsAskedForNothingMore) {
  const uint64_t last = published_.segment_count() - 1;
  auto pull = reader_->Open(
      holder_.Target(source_->endpoints()[0], received_.store()->shared_layout()), &sink_);
  // The first connection owes more than the second ever does.
  size_t received = AwaitSecondConnection(*pull, {SegmentIndex(last - 9), SegmentIndex(last + 1)});
  pull->Ask({SegmentIndex(1), SegmentIndex(2)});
  second_.ends = false;
  second_.lost = true;
  Arrives(1);
  second_.asked_to_end.WaitForNotification();
  Arrives(2);
  pull->Ask({SegmentIndex(2), SegmentIndex(3)});
  sink_.AwaitSegments(++received);
  EXPECT_EQ(sink_.segments().back().first, SegmentIndex(2));
  second_.ends = true;
  sink_.AwaitSegments(++received);
  EXPECT_EQ(sink_.segments().back().first, SegmentIndex(1)) << "the other one is asked for it";
  for (uint64_t i = last - 9; i <= last; ++i) Arrives(i);
  sink_.AwaitSegments(received + 10);
  EXPECT_FALSE(sink_.closed());
  pull->Close();
  sink_.AwaitClosed();
}

}  // namespace
}  // namespace th::stream
