// One segment and two sources: every state of the segment against everything that can happen to it,
// with what is answered and the state after.
#include <iterator>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "th/pipeline_replicator/pipeline_replicator.h"

namespace th {
namespace {

constexpr SourceIndex kA(0), kB(1), kProbe(2);
constexpr SegmentIndex kSegment(0);
constexpr SegmentChecksum kChecksum = 77;
const absl::Time kNow = absl::UnixEpoch();

enum class State { kMissing, kRequestedOfA, kWrittenByA, kHeld, kCorruptFromA };
enum class Event {
  kAskA,
  kAskB,
  kBeginA,
  kBeginB,
  kGoodFromA,
  kGoodFromB,
  kCorruptFromA,
  kDiscardedFromA,
  kRetireA,
  kRemoveA,
};

class OneSegment {
 public:
  OneSegment() {
    fill_.AddSource(kA, kNow);
    fill_.AddSource(kB, kNow);
  }

  void Reach(State state) {
    if (state == State::kMissing) return;
    Do(Event::kAskA);
    if (state == State::kWrittenByA) Do(Event::kBeginA);
    if (state == State::kHeld) Do(Event::kGoodFromA);
    if (state == State::kCorruptFromA) Do(Event::kCorruptFromA);
  }

  std::string Do(Event event) {
    switch (event) {
      case Event::kAskA:
        return Ask(kA);
      case Event::kAskB:
        return Ask(kB);
      case Event::kBeginA:
        return YesOrNo(fill_.BeginSegment(kA, kSegment));
      case Event::kBeginB:
        return YesOrNo(fill_.BeginSegment(kB, kSegment));
      case Event::kGoodFromA:
        return Give(kA, kChecksum);
      case Event::kGoodFromB:
        return Give(kB, kChecksum);
      case Event::kCorruptFromA:
        return Give(kA, kChecksum ^ 1);
      case Event::kDiscardedFromA:
        return YesOrNo(fill_.HandleDiscarded(kA, kSegment, kNow));
      case Event::kRetireA:
        fill_.RetireSource(kA);
        return "-";
      case Event::kRemoveA:
        fill_.RemoveSource(kA);
        return "-";
    }
    return "";
  }

  // The state of the segment as a newcomer finds it. The last thing that is done to this fill.
  std::string Probe() {
    if (fill_.held().Contains(kSegment)) return "held";
    fill_.AddSource(kProbe, kNow);
    if (Ask(kProbe) == "asked") return "missing";
    fill_.RetireSource(kA);
    fill_.RetireSource(kB);
    return Ask(kProbe) == "asked" ? "requested" : "being written";
  }

 private:
  static std::string YesOrNo(bool yes) { return yes ? "yes" : "no"; }
  std::string Ask(SourceIndex source) {
    return fill_.PollRequest(source, kNow).has_value() ? "asked" : "nothing";
  }
  std::string Give(SourceIndex source, SegmentChecksum computed) {
    using Verdict = PipelineReplicator::SegmentVerdict;
    switch (fill_.HandleSegment(source, kSegment, kChecksum, computed, kNow)) {
      case Verdict::kAccepted:
        return "accepted";
      case Verdict::kDuplicate:
        return "duplicate";
      case Verdict::kCorrupt:
        return "corrupt";
      case Verdict::kUnexpected:
        return "unexpected";
    }
    return "";
  }

  PipelineReplicator fill_{{.segment_count = 1, .segment_bytes = 8, .total_bytes = 8}, {}};
};

struct Step {
  State from;
  Event event;
  const char* answer;
  const char* after;
};

class SegmentStepsTest : public ::testing::TestWithParam<Step> {};

TEST_P(SegmentStepsTest, AnswersAndBecomes) {
  OneSegment segment;
  segment.Reach(GetParam().from);
  EXPECT_EQ(segment.Do(GetParam().event), GetParam().answer);
  EXPECT_EQ(segment.Probe(), GetParam().after);
}

// clang-format off
constexpr Step kSteps[] = {
    {State::kMissing, Event::kAskA, "asked", "requested"},
    {State::kMissing, Event::kAskB, "asked", "requested"},
    {State::kMissing, Event::kBeginA, "no", "missing"},
    {State::kMissing, Event::kBeginB, "no", "missing"},
    {State::kMissing, Event::kGoodFromA, "unexpected", "missing"},
    {State::kMissing, Event::kGoodFromB, "unexpected", "missing"},
    {State::kMissing, Event::kCorruptFromA, "unexpected", "missing"},
    {State::kMissing, Event::kDiscardedFromA, "no", "missing"},
    {State::kMissing, Event::kRetireA, "-", "missing"},
    {State::kMissing, Event::kRemoveA, "-", "missing"},

    {State::kRequestedOfA, Event::kAskA, "nothing", "requested"},
    {State::kRequestedOfA, Event::kAskB, "nothing", "requested"},
    {State::kRequestedOfA, Event::kBeginA, "yes", "being written"},
    {State::kRequestedOfA, Event::kBeginB, "no", "requested"},
    {State::kRequestedOfA, Event::kGoodFromA, "accepted", "held"},
    {State::kRequestedOfA, Event::kGoodFromB, "unexpected", "requested"},
    {State::kRequestedOfA, Event::kCorruptFromA, "corrupt", "missing"},
    {State::kRequestedOfA, Event::kDiscardedFromA, "yes", "missing"},
    {State::kRequestedOfA, Event::kRetireA, "-", "missing"},
    {State::kRequestedOfA, Event::kRemoveA, "-", "missing"},

    {State::kWrittenByA, Event::kAskA, "nothing", "being written"},
    {State::kWrittenByA, Event::kAskB, "nothing", "being written"},
    {State::kWrittenByA, Event::kBeginA, "yes", "being written"},
    {State::kWrittenByA, Event::kBeginB, "no", "being written"},
    {State::kWrittenByA, Event::kGoodFromA, "accepted", "held"},
    {State::kWrittenByA, Event::kGoodFromB, "unexpected", "being written"},
    {State::kWrittenByA, Event::kCorruptFromA, "corrupt", "missing"},
    {State::kWrittenByA, Event::kDiscardedFromA, "yes", "being written"},
    {State::kWrittenByA, Event::kRetireA, "-", "being written"},
    {State::kWrittenByA, Event::kRemoveA, "-", "missing"},

    {State::kHeld, Event::kAskA, "nothing", "held"},
    {State::kHeld, Event::kAskB, "nothing", "held"},
    {State::kHeld, Event::kBeginA, "no", "held"},
    {State::kHeld, Event::kBeginB, "no", "held"},
    {State::kHeld, Event::kGoodFromA, "unexpected", "held"},
    {State::kHeld, Event::kGoodFromB, "unexpected", "held"},
    {State::kHeld, Event::kCorruptFromA, "unexpected", "held"},
    {State::kHeld, Event::kDiscardedFromA, "no", "held"},
    {State::kHeld, Event::kRetireA, "-", "held"},
    {State::kHeld, Event::kRemoveA, "-", "held"},

    {State::kCorruptFromA, Event::kAskA, "nothing", "missing"},
    {State::kCorruptFromA, Event::kAskB, "asked", "requested"},
    {State::kCorruptFromA, Event::kBeginA, "no", "missing"},
    {State::kCorruptFromA, Event::kBeginB, "no", "missing"},
    {State::kCorruptFromA, Event::kGoodFromA, "unexpected", "missing"},
    {State::kCorruptFromA, Event::kGoodFromB, "unexpected", "missing"},
    {State::kCorruptFromA, Event::kCorruptFromA, "unexpected", "missing"},
    {State::kCorruptFromA, Event::kDiscardedFromA, "no", "missing"},
    {State::kCorruptFromA, Event::kRetireA, "-", "missing"},
    {State::kCorruptFromA, Event::kRemoveA, "-", "missing"},
};
// clang-format on

INSTANTIATE_TEST_SUITE_P(All, SegmentStepsTest, ::testing::ValuesIn(kSteps));

// So that no step can be left out of the table.
TEST(SegmentStepsTableTest, HasEveryStepOnce) {
  int row = 0;
  for (int from = 0; from <= static_cast<int>(State::kCorruptFromA); ++from) {
    for (int event = 0; event <= static_cast<int>(Event::kRemoveA); ++event, ++row) {
      ASSERT_LT(row, static_cast<int>(std::size(kSteps)));
      EXPECT_EQ(std::tuple(static_cast<int>(kSteps[row].from), static_cast<int>(kSteps[row].event)),
                std::tuple(from, event));
    }
  }
  EXPECT_EQ(row, static_cast<int>(std::size(kSteps)));
}

}  // namespace
}  // namespace th
