// Readers that stand still while others want the staging slots that they keep.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/status_matchers.h"
#include "th/transfer/cuda_test_device.h"
#include "th/transfer/device_staging.h"
#include "th/transfer/same_host/same_host_transport.h"
#include "th/transfer/stream/stall_watch.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::stream::kKeptTime;
using ::th::stream::kStalledTime;

constexpr uint64_t kShardBytes = 48 << 20;
enum class Carrier : uint8_t { kTcp, kSameHost };

// A slow reader takes a segment this often: well within the time in which one is taken for stopped.
constexpr int64_t kTakesEveryMs = 125;
constexpr absl::Duration kTakesEvery = absl::Milliseconds(kTakesEveryMs);

// Takes segments slowly until it is let go on.
template <int64_t kEachMs>
class PacedSink : public TestSink {
 public:
  using TestSink::TestSink;
  void GoOn() { go_on_.Notify(); }
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override {
    go_on_.WaitForNotificationWithTimeout(absl::Milliseconds(kEachMs));
    return TestSink::OnSegmentBegins(segment, iov);
  }

 private:
  absl::Notification go_on_;
};
using SlowSink = PacedSink<kTakesEveryMs>;

template <typename Sink>
struct ReaderWith {
  ReaderWith(std::unique_ptr<Transport> transport, const TestShard::Spec& spec)
      : shard(spec), sink(&shard), transport(std::move(transport)) {}

  TestShard shard;
  Sink sink;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Pull> pull;
};
// A reader that stands still at its first segment, until it is let go on.
using Reader = ReaderWith<GatedSink>;

class StoppedReadersTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Transport> NewTransport(Carrier carrier) {
    TransportLimits limits = PatientLimits();
    limits.data_threads = 1;
    limits.connections_per_pull = 1;
    auto transport = carrier == Carrier::kTcp ? NewTcpTransport({.limits = limits})
                                              : NewSameHostTransport({.limits = limits});
    EXPECT_OK(transport.status());
    return *std::move(transport);
  }

  // The source's slots are `slots` segments of `segment_bytes`.
  void Serve(Carrier carrier, uint64_t segment_bytes, uint64_t slots) {
    Serve(carrier, {.tensor_bytes = {kShardBytes}, .segment_bytes = segment_bytes}, slots);
  }
  void Serve(Carrier carrier, const TestShard::Spec& spec, uint64_t slots) {
    carrier_ = carrier;
    staging_ = SharedDeviceStaging({.outgoing_bytes = slots * spec.segment_bytes});
    spec_ = spec;
    TestShard::Spec on_device = spec_;
    on_device.device = &device_;
    source_ = std::make_unique<TestShard>(on_device);
    source_->FillWith(1);
    source_->store()->Publish(BufferGeneration(1));
    holder_ = std::make_unique<TestHolder>(source_->store());
    transport_ = NewTransport(carrier);
    transport_->AddHolder(kHolderWorker, holder_.get());
  }
  void TearDown() override { transport_->RemoveHolder(kHolderWorker); }

  // Has asked for the first `count` segments, and taken none.
  template <typename Sink = GatedSink>
  std::unique_ptr<ReaderWith<Sink>> StartReader(uint64_t count) {
    auto reader = std::make_unique<ReaderWith<Sink>>(NewTransport(carrier_), spec_);
    reader->pull = reader->transport->Open(
        holder_->Target(transport_->endpoints()[0], source_->store()->shared_layout()),
        &reader->sink);
    reader->sink.AwaitAdmitted();
    reader->pull->Ask({SegmentIndex(0), SegmentIndex(count)});
    return reader;
  }
  // Until the first slot is taken.
  void AwaitSlotTaken() {
    const absl::Time last = absl::Now() + kPatience;
    while (staging_->outgoing_bytes() == 0 && absl::Now() < last) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_GT(staging_->outgoing_bytes(), 0);
  }
  // Until a segment waits for a slot, which all of them are in use.
  void AwaitShortage() {
    const absl::Time last = absl::Now() + kPatience;
    while (!staging_->IsOutgoingSlotAwaited() && absl::Now() < last) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(staging_->IsOutgoingSlotAwaited());
  }
  // Waits until the reader has taken everything, or its pull has ended.
  void AwaitAllOrEnd(Reader& reader) {
    const absl::Time last = absl::Now() + kPatience;
    while (!reader.sink.closed() && reader.sink.segments().size() < source_->segment_count() &&
           absl::Now() < last) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_LT(absl::Now(), last);
  }
  template <typename Sink>
  static void Close(ReaderWith<Sink>& reader) {
    reader.pull->Close();
    reader.sink.AwaitClosed();
  }

  const FakeCuda fake_;
  CudaTestDevice device_;
  Carrier carrier_ = Carrier::kTcp;
  std::shared_ptr<DeviceStaging> staging_;
  TestShard::Spec spec_;
  std::unique_ptr<TestShard> source_;
  std::unique_ptr<TestHolder> holder_;
  std::unique_ptr<Transport> transport_;
};

// A socket between processes of one host takes less than a segment here: what the stopped readers
// wait for is all staged, and stays.
TEST_F(StoppedReadersTest, GiveBackWhatIsAheadAndGetItLater) {
  Serve(Carrier::kSameHost, /*segment_bytes=*/256 << 10, /*slots=*/12);
  const uint64_t all = source_->segment_count();
  const auto first = StartReader(all), second = StartReader(all);
  AwaitShortage();
  const auto third = StartReader(4);
  third->sink.GoOn();
  third->sink.AwaitSegments(4);
  Close(*third);
  // At once: one that goes on awaits slots, and would have the other cut if it took its time.
  for (Reader* const stopped : {first.get(), second.get()}) stopped->sink.GoOn();
  for (Reader* const stopped : {first.get(), second.get()}) {
    stopped->sink.AwaitSegments(all);
    EXPECT_TRUE(stopped->shard.Equals(*source_));
    Close(*stopped);
  }
}

// Each of two stopped readers comes to keep the slot of a segment that it has begun.
TEST_F(StoppedReadersTest, AreCutWhereWhatIsBegunTakesAllSlots) {
  Serve(Carrier::kTcp, /*segment_bytes=*/2 << 20, /*slots=*/2);
  const uint64_t all = source_->segment_count();
  const auto first = StartReader(all), second = StartReader(all);
  const auto third = StartReader(all);
  third->sink.GoOn();
  third->sink.AwaitSegments(all);
  EXPECT_TRUE(third->shard.Equals(*source_));
  Close(*third);
  holder_->AwaitReleased(2);  // the third, and one that was cut
  std::vector<std::string> heard;
  for (Reader* const stopped : {first.get(), second.get()}) {
    stopped->sink.GoOn();
    AwaitAllOrEnd(*stopped);
    if (stopped->sink.closed()) heard.push_back(stopped->sink.AwaitClosed().second);
    Close(*stopped);
  }
  EXPECT_GE(heard.size(), 1);
  EXPECT_THAT(heard, Each(AllOf(HasSubstr("in the middle of segment"),
                                HasSubstr("took none of its bytes for "))));
  holder_->AwaitReleased(3);
  EXPECT_THAT(holder_->whys(), AllOf(SizeIs(heard.size()), Each(HasSubstr("took no bytes for "))));
}

// While it takes bytes, however few, it is no stopped reader.
TEST_F(StoppedReadersTest, ASlowReaderIsNotCutBesideAStoppedOne) {
  Serve(Carrier::kTcp, /*segment_bytes=*/2 << 20, /*slots=*/2);
  const uint64_t all = source_->segment_count();
  // In longer than it takes to be cut.
  constexpr uint64_t kTakenSlowly = 20;
  EXPECT_GT(kTakenSlowly * kTakesEvery, kStalledTime + 1.5 * kKeptTime);
  ASSERT_LT(kTakenSlowly, all);
  const auto slow = StartReader<SlowSink>(all);
  const auto stopped = StartReader(all);
  const auto third = StartReader(all);
  third->sink.GoOn();
  third->sink.AwaitSegments(all);
  Close(*third);
  holder_->AwaitReleased(2);  // the third, and the stopped one, as it keeps a slot
  slow->sink.AwaitSegments(kTakenSlowly);
  slow->sink.GoOn();
  slow->sink.AwaitSegments(all);
  EXPECT_TRUE(slow->shard.Equals(*source_));
  EXPECT_THAT(holder_->whys(), SizeIs(1));
  stopped->sink.GoOn();
  Close(*slow);
  Close(*stopped);
}

// Bytes that it reads by itself, out of the source's memory, count as taken, too.
TEST_F(StoppedReadersTest, AReaderThatIsSlowToReadWhatWasLocatedIsNotCut) {
  constexpr uint64_t kSegmentBytes = 512 << 10;
  // In the host's memory: located all at once, as they are less than a reader may be told of.
  constexpr uint64_t kLocated = 7;
  // The reader says what it has read of these once a MiB, so each second one.
  constexpr int64_t kEachMs = 320;
  EXPECT_GT(kLocated * absl::Milliseconds(kEachMs), kStalledTime + 1.5 * kKeptTime);
  Serve(Carrier::kSameHost,
        {.tensor_bytes = {kLocated * kSegmentBytes, 2 * kSegmentBytes},
         .segment_bytes = kSegmentBytes,
         .every_other_on_host = true},
        /*slots=*/1);
  // The slot holds the first segment of the GPU, which the socket does not take whole.
  const auto slow = StartReader<PacedSink<kEachMs>>(kLocated + 1);
  AwaitSlotTaken();
  const auto other = StartReader(kLocated + 2);
  other->sink.GoOn();
  AwaitShortage();
  slow->sink.AwaitSegments(kLocated + 1);
  other->sink.AwaitSegments(kLocated + 2);
  EXPECT_TRUE(other->shard.Equals(*source_));
  EXPECT_THAT(holder_->whys(), ::testing::IsEmpty());
  Close(*slow);
  Close(*other);
}

}  // namespace
}  // namespace th::testing
