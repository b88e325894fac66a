// The progress of one update costs a bounded number of bytes, however long it takes.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

constexpr OperationNumber kFirst(1);
constexpr uint64_t kSegments = 524'288;  // 2 TB in segments of 4 MiB
constexpr int kSeconds = 2'000;

std::shared_ptr<const ShardLayout> LongLayout() {
  TensorSpec tensor;
  tensor.name = "w";
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(kSegments * kMinSegmentBytes)};
  ShardLayout::Spec spec;
  spec.tensors = {tensor};
  spec.segment_bytes = kMinSegmentBytes;
  return std::make_shared<ShardLayout>(ShardLayout::Build(std::move(spec)).value());
}

uint64_t VarintBytes(uint64_t value) {
  uint64_t bytes = 1;
  for (; value >= 128; value >>= 7) ++bytes;
  return bytes;
}

// As protobuf lays it out: gaps and lengths as varints, the keys and framing rounded up.
uint64_t WireBytes(const FillProgress& progress) {
  uint64_t bytes = 48;
  uint64_t end = 0;
  for (const SegmentRange& range : progress.segments.ranges()) {
    bytes += VarintBytes(range.begin.value - end) + VarintBytes(range.count());
    end = range.end.value;
  }
  return bytes;
}

// How the segments of a fill arrive.
struct Arrival {
  const char* name;
  uint64_t holes;  // that stay open until the last second
  size_t least_messages;
  int reported_after;  // something is told later than this second, before the end
};

class ProgressBudgetTest : public ::testing::TestWithParam<Arrival> {
 protected:
  void SetUp() override {
    worker_.Join();
    const auto buffer = worker_.BufferOf(event::RegisterBuffer{"weights", "hf", LongLayout()});
    ASSERT_OK(buffer);
    buffer_ = *buffer;
    worker_.Say(BufferRegistered{buffer_, absl::OkStatus()});
    const OperationKey key{buffer_, kFirst};
    const VersionInfo version = Version(7, "step-1");
    ASSERT_OK(
        worker_.Handle(event::Update{CallId(1), buffer_, {.timeout = absl::Hours(2)}}).status);
    worker_.Say(OperationResolved{key, version, std::nullopt});
    worker_.Say(worker_.Assignment(key, 1, version.sequence, {7}));
    ASSERT_EQ(worker_.session.buffer_state(buffer_), BufferState::kFilling);
    worker_.Drop();
  }
  // The segments that have arrived by `second`: the beginning, with holes evenly in it.
  SegmentSet HeldAt(int second) const {
    const uint64_t end = kSegments * second / kSeconds;
    std::vector<SegmentRange> ranges;
    uint64_t begin = 0;
    for (uint64_t hole = 1; hole <= GetParam().holes; ++hole) {
      const uint64_t at = kSegments * hole / (GetParam().holes + 1);
      if (at >= end) break;
      ranges.push_back({SegmentIndex(begin), SegmentIndex(at)});
      begin = at + 1;
    }
    if (begin < end) ranges.push_back({SegmentIndex(begin), SegmentIndex(end)});
    return SegmentSet::FromRanges(std::move(ranges));
  }

  SessionHarness worker_;
  BufferId buffer_;
};

TEST_P(ProgressBudgetTest, IsKeptOverTwoThousandSecondsAndTheEndIsTold) {
  uint64_t bytes = 0;
  size_t messages = 0;
  int last = 0;
  for (int second = 1; second < kSeconds; ++second) {
    const SegmentSet held = HeldAt(second);
    worker_.Handle(event::FillProgressed{buffer_, {held, held.count() * kMinSegmentBytes}});
    worker_.Pass(absl::Seconds(1));
    for (const FillProgress& reported : worker_.TakeSent<FillProgress>()) {
      bytes += WireBytes(reported);
      ++messages;
      last = second;
    }
    worker_.Drop();  // heartbeats
  }
  worker_.Handle(event::AllReceived{buffer_});
  worker_.Handle(event::FillCompleted{buffer_, TestRoot(9)});
  const auto end = worker_.TakeSent<FillProgress>();
  ASSERT_FALSE(end.empty());
  EXPECT_EQ(end.back().segments, SegmentSet::AllOf(kSegments));
  for (const FillProgress& reported : end) bytes += WireBytes(reported);
  EXPECT_LE(bytes, uint64_t{32} << 10);
  EXPECT_GE(messages, GetParam().least_messages);
  EXPECT_GE(last, GetParam().reported_after);
}

INSTANTIATE_TEST_SUITE_P(All, ProgressBudgetTest,
                         ::testing::Values(Arrival{"Watermark", 0, 300, 1'500},
                                           Arrival{"SomeHoles", 30, 50, 1'000},
                                           Arrival{"ManyHoles", 1'000, 4, 100},
                                           Arrival{"MoreHolesThanOneMessageCarries", 5'000, 2, 1}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace th
