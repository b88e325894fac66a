// Segments that land before they are in the buffer: what becomes of them, of their sources and of
// the fill in between.
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/pipeline_replicator/replicator_harness.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LandedSegmentsTest : public ReplicatorHarness {
 protected:
  LandedSegmentsTest() {
    fill_.AddSource(kA, At(0));
    Ask(kA);
  }
  void Land(SourceIndex source, uint64_t i, absl::Time now = At(0)) {
    ASSERT_TRUE(fill_.BeginSegment(source, S(i)));
    ASSERT_TRUE(fill_.HandleLanded(source, S(i), now));
  }
};

TEST_F(LandedSegmentsTest, CountsOnceItIsInPlace) {
  Land(kA, 0);
  EXPECT_FALSE(fill_.held().Contains(S(0)));
  EXPECT_EQ(fill_.landed(), 1);
  EXPECT_EQ(Give(kA, 0), Verdict::kAccepted);
  EXPECT_TRUE(fill_.held().Contains(S(0)));
  EXPECT_EQ(fill_.landed(), 0);
}

TEST_F(LandedSegmentsTest, IsAskedOfNobodyElseThoughItsSourceIsGone) {
  Land(kA, 0);
  fill_.RemoveSource(kA);
  fill_.AddSource(kB, At(0));
  const std::vector<SegmentRange> asked = Ask(kB);
  ASSERT_FALSE(asked.empty());
  EXPECT_EQ(asked[0].begin, S(1));
  EXPECT_FALSE(fill_.WantsSegment(kB, S(0)));
  EXPECT_EQ(Give(kA, 0), Verdict::kAccepted);
  EXPECT_EQ(fill_.bytes_from(kA), kSegmentBytes);
}

TEST_F(LandedSegmentsTest, SourceThatOwesNothingMoreIsNotSilent) {
  PipelineReplicator fill(SpecOf(1), SmallRequests());
  fill.AddSource(kA, At(0));
  ASSERT_TRUE(fill.PollRequest(kA, At(0)).has_value());
  ASSERT_TRUE(fill.BeginSegment(kA, S(0)));
  ASSERT_TRUE(fill.HandleLanded(kA, S(0), At(1)));
  // However long the device takes.
  EXPECT_THAT(fill.PollLost(At(100'000)), IsEmpty());
}

TEST_F(LandedSegmentsTest, CountsInTheWindowOfItsSource) {
  // Four requests of four segments are open.
  for (uint64_t i = 0; i < 16; ++i) Land(kA, i);
  EXPECT_THAT(Ask(kA), IsEmpty());
  for (uint64_t i = 0; i < 4; ++i) Give(kA, i);
  EXPECT_THAT(Ask(kA), ElementsAre(R(16, 20)));
}

TEST_F(LandedSegmentsTest, CorruptOneIsAskedForAgain) {
  Land(kA, 0);
  EXPECT_EQ(GiveCorrupt(kA, 0), Verdict::kCorrupt);
  EXPECT_EQ(fill_.corrupt_from(kA), 1);
  fill_.AddSource(kB, At(0));
  EXPECT_EQ(Ask(kB)[0].begin, S(0));
}

TEST_F(LandedSegmentsTest, CorruptOneOfASourceThatIsGoneIsAskedForAgain) {
  Land(kA, 0);
  fill_.RemoveSource(kA);
  EXPECT_EQ(GiveCorrupt(kA, 0), Verdict::kCorrupt);
  fill_.AddSource(kB, At(0));
  EXPECT_EQ(Ask(kB)[0].begin, S(0));
}

TEST_F(LandedSegmentsTest, OnlyWhatWasBegunCanLand) {
  EXPECT_FALSE(fill_.HandleLanded(kA, S(0), At(0)));
  fill_.AddSource(kB, At(0));
  ASSERT_TRUE(fill_.BeginSegment(kA, S(0)));
  EXPECT_FALSE(fill_.HandleLanded(kB, S(0), At(0)));
}

// ---- of a whole fill

class LandedSessionTest : public ::testing::Test {
 protected:
  LandedSessionTest() {
    AssignedSource source;
    source.buffer = {WorkerId(7), BufferId(1)};
    source.endpoints = {{.address = "a:1"}};
    fill_.SetSources(AssignmentId(1), {source}, At(0));
    Outputs();
    fill_.HandleAdmitted(kA, At(0));
    while (fill_.PollRequest(kA, At(0)).has_value()) continue;
    EXPECT_TRUE(fill_.BeginSegment(kA, S(0), At(0)));
    EXPECT_TRUE(fill_.HandleLanded(kA, S(0), At(0)));
  }
  static FillSession::Spec Spec() {
    FillSession::Spec spec;
    spec.replicator = SpecOf(2);
    spec.reach = [](const Endpoint&) { return absl::OkStatus(); };
    return spec;
  }
  std::vector<FillOutput> Outputs() {
    std::vector<FillOutput> outputs;
    while (auto output = fill_.PollOutput(At(0))) outputs.push_back(*std::move(output));
    return outputs;
  }
  template <typename Output>
  bool Says() {
    for (const FillOutput& output : Outputs()) {
      if (std::holds_alternative<Output>(output)) return true;
    }
    return false;
  }

  FillSession fill_{Spec(), SmallRequests(), At(0)};
};

TEST_F(LandedSessionTest, StopWaitsForWhatHasLanded) {
  fill_.Stop();
  fill_.HandleClosed(kA, SourceFailure::kClosed, "");
  EXPECT_FALSE(Says<FillStopped>());
  fill_.HandleLandedDropped();
  EXPECT_TRUE(Says<FillStopped>());
}

TEST_F(LandedSessionTest, LostMemoryFailsTheFillAndBlamesNoSource) {
  fill_.HandleLandedLost(absl::FailedPreconditionError("freed"));
  std::optional<absl::Status> why;
  for (const FillOutput& output : Outputs()) {
    EXPECT_FALSE(std::holds_alternative<FillSourceFailed>(output));
    if (const auto* failed = std::get_if<FillFailed>(&output)) why = failed->why;
  }
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->message(), "freed");
  fill_.HandleClosed(kA, SourceFailure::kClosed, "");
  EXPECT_FALSE(Says<FillSourceFailed>());
  fill_.Stop();
  EXPECT_TRUE(Says<FillStopped>());
}

TEST_F(LandedSessionTest, IsCompleteWhenAllIsInPlace) {
  EXPECT_TRUE(fill_.BeginSegment(kA, S(1), At(0)));
  EXPECT_TRUE(fill_.HandleLanded(kA, S(1), At(0)));
  EXPECT_FALSE(Says<FillReceived>());
  fill_.HandleSegment(kA, S(1), ChecksumFor(1), ChecksumFor(1), At(0));
  EXPECT_FALSE(Says<FillReceived>());
  fill_.HandleSegment(kA, S(0), ChecksumFor(0), ChecksumFor(0), At(0));
  EXPECT_TRUE(Says<FillReceived>());
}

TEST_F(LandedSessionTest, SegmentWithoutRoomIsAskedForAgainOnceThereIsRoom) {
  fill_.HandleNoRoom(kA, S(1), At(0));
  EXPECT_EQ(fill_.PollRequest(kA, At(0)), std::nullopt);
  EXPECT_FALSE(Says<AskPull>());
  fill_.HandleRoom();
  EXPECT_TRUE(fill_.has_output());
  EXPECT_EQ(fill_.PollRequest(kA, At(0)), SegmentRange({S(1), S(2)}));
  EXPECT_EQ(fill_.status(At(0)).reread_bytes, kSegmentBytes);
}

}  // namespace
}  // namespace th
