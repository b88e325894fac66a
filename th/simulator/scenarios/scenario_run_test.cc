#include "th/simulator/scenarios/scenario_run.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::th::testing::IsOk;

constexpr double kSegment = 0.01;    // a segment over a link, seconds
constexpr double kRequests = 0.005;  // what the agreement's messages may cost

// A trainer and `readers` groups of one rank, a host each: a shard takes a second over a link.
std::string Fleet(int readers, const std::string& network = "") {
  return absl::StrCat(R"(site here
latency same_site=100us
hosts t site=here up=1GB/s down=1GB/s inside=10GB/s
hosts r site=here count=)",
                      readers + 1, R"( up=1GB/s down=1GB/s inside=10GB/s
weights rank_bytes=1GB segment=10MB copy=2GB/s
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 count=)",
                      readers, " on=r\n", network, "\nend 100s\n");
}

Scenario Parsed(const std::string& text) {
  const auto scenario = ParseScenario("f.scenario", text, {});
  EXPECT_THAT(scenario, IsOk());
  return *scenario;
}

ScenarioResult RunWell(const std::string& text, ScenarioPolicy policy = ScenarioPolicy::kNearest) {
  auto result = RunScenario(Parsed(text), policy, {});
  EXPECT_THAT(result, IsOk());
  EXPECT_THAT(result->violations, IsEmpty());
  EXPECT_EQ(result->updates_failed, 0u);
  EXPECT_EQ(result->calls_open, 0u);
  return *std::move(result);
}

double Seconds(absl::Duration time) { return absl::ToDoubleSeconds(time); }

constexpr char kOnce[] = "train trainer first=1s\nupdate reader after=publish\n";

TEST(ScenarioRunTest, OneReaderTakesBytesOverRate) {
  const ScenarioResult result = RunWell(Fleet(1) + kOnce);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 1, kRequests);
  EXPECT_NEAR(Seconds(result.RolloutStall().of(StallCause::kBytes)), 1, kRequests);
  EXPECT_LT(Seconds(result.TrainerStall().total()), kRequests);
  EXPECT_DOUBLE_EQ(result.CopiesSent(), 1);
  ASSERT_THAT(result.versions, SizeIs(1));
  EXPECT_EQ(result.versions[0].groups, 1u);
  EXPECT_NEAR(Seconds(result.versions[0].last_reader), 1, kRequests);
}

// Each hop is a segment later than the one before it.
TEST(ScenarioRunTest, AChainOfFourCostsASegmentAHop) {
  const ScenarioResult result = RunWell(Fleet(4) + kOnce);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 1 + 3 * kSegment, kRequests);
  EXPECT_DOUBLE_EQ(result.CopiesSent(), 1);
  EXPECT_EQ(result.bytes_over[static_cast<size_t>(Distance::kSameSite)], 4'000'000'000u);
}

// Deep in the chain little has arrived when throughputs are told first: that is nobody's fault.
TEST(ScenarioRunTest, NobodyLeavesItsSourceInALongChain) {
  for (int readers : {16, 24, 32}) {
    const ScenarioResult result = RunWell(Fleet(readers) + kOnce);
    EXPECT_NEAR(Seconds(result.SlowestRead()), 1 + (readers - 1) * kSegment, 2 * kSegment)
        << readers << " readers";
  }
}

TEST(ScenarioRunTest, AStaggerLetsAFamilysGroupsAskOneAfterTheOther) {
  const ScenarioResult result = RunWell(
      Fleet(3) + "train trainer first=1s\nupdate reader after=publish delay=1s stagger=2s\n");
  ASSERT_THAT(result.reads, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.reads[i].group, absl::StrCat("reader-", i + 1));
    EXPECT_NEAR(Seconds(result.reads[i].began), 2.0 + 2.0 * static_cast<double>(i), kRequests);
  }
}

TEST(ScenarioRunTest, DirectReadersShareThePublishersLink) {
  const ScenarioResult result = RunWell(Fleet(4) + kOnce, ScenarioPolicy::kDirect);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 4, 4 * kRequests);
  EXPECT_DOUBLE_EQ(result.CopiesSent(), 4);
}

TEST(ScenarioRunTest, AChainPolicyIsAChainAcrossDistances) {
  const ScenarioResult result = RunWell(Fleet(4) + kOnce, ScenarioPolicy::kChain);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 1 + 3 * kSegment, kRequests);
}

TEST(ScenarioRunTest, ABroadcastHoldsEverybodyUntilTheLastHasIt) {
  const ScenarioResult result = RunWell(Fleet(4) + kOnce, ScenarioPolicy::kBroadcast);
  const double round = 1 + 3 * kSegment;
  EXPECT_NEAR(Seconds(result.TrainerStall().of(StallCause::kMembers)), round, kRequests);
  EXPECT_NEAR(Seconds(result.RolloutStall().total()), 4 * round, 4 * kRequests);
}

TEST(ScenarioRunTest, ASnapshotHoldsTheTrainerForACopyOnly) {
  const ScenarioResult result = RunWell(Fleet(4) + kOnce, ScenarioPolicy::kSnapshotBroadcast);
  EXPECT_NEAR(Seconds(result.TrainerStall().total()), 0.5, 1e-9);
  EXPECT_NEAR(Seconds(result.RolloutStall().total()), 4 * (1 + 3 * kSegment), 4 * kRequests);
}

TEST(ScenarioRunTest, ASnapshotThatIsStillSentHoldsTheNextOne) {
  const std::string course =
      "train trainer first=1s step=400ms steps=2\nupdate reader after=publish\n";
  const ScenarioResult result = RunWell(Fleet(1) + course, ScenarioPolicy::kSnapshotBroadcast);
  EXPECT_NEAR(Seconds(result.TrainerStall().of(StallCause::kCopy)), 2 * 0.5, 1e-9);
  EXPECT_NEAR(Seconds(result.TrainerStall().of(StallCause::kMembers)), 1 - 0.4, kRequests);
  EXPECT_THAT(result.versions, SizeIs(2));
}

TEST(ScenarioRunTest, ASnapshotNeedsTheRateOfItsCopy) {
  std::string text = Fleet(1) + kOnce;
  text.replace(text.find(" copy=2GB/s"), 11, "");
  const auto result = RunScenario(Parsed(text), ScenarioPolicy::kSnapshotBroadcast, {});
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("needs 'copy'"));
}

// The first publish at 1 s; its reader is cut by the drain and finds no other source until 2 s.
TEST(ScenarioRunTest, ATrainerThatWaitsForReadersStallsInTheDrain) {
  const std::string course =
      "train trainer first=1s step=500ms write=0s steps=2 drain=5s\nupdate reader after=publish\n";
  const ScenarioResult result = RunWell(Fleet(1) + course);
  EXPECT_NEAR(Seconds(result.TrainerStall().of(StallCause::kDrain)), 0.5, 2 * kRequests);
  EXPECT_THAT(result.versions, SizeIs(2));
  EXPECT_EQ(result.versions[1].groups, 1u);
}

TEST(ScenarioRunTest, ASlowUplinkSlowsItsReader) {
  const std::string course = "at 1s slow t to=50% side=up\n";
  const ScenarioResult result = RunWell(Fleet(1) + kOnce + course);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 2, kRequests);
}

TEST(ScenarioRunTest, ASiteLinkIsCrossedOnceByGroupsOfTheOtherSite) {
  const std::string text = R"(site a
site b
link a b rate=100MB/s latency=10ms
hosts t site=a up=1GB/s down=1GB/s inside=10GB/s
hosts r site=b count=4 up=1GB/s down=1GB/s inside=10GB/s
weights rank_bytes=1GB segment=10MB
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 count=4 on=r
end 100s
)";
  const ScenarioResult near = RunWell(text + kOnce);
  EXPECT_EQ(near.bytes_over[static_cast<size_t>(Distance::kOtherSite)], 1'000'000'000u);
  EXPECT_NEAR(Seconds(near.SlowestRead()), 10 + 3 * kSegment, 0.2);
  const ScenarioResult direct = RunWell(text + kOnce, ScenarioPolicy::kDirect);
  EXPECT_EQ(direct.bytes_over[static_cast<size_t>(Distance::kOtherSite)], 4'000'000'000u);
  EXPECT_NEAR(Seconds(direct.SlowestRead()), 40, 0.5);
}

TEST(ScenarioRunTest, ASlowSiteLinkSlowsWhatCrossesItUntilItIsMended) {
  const std::string text = R"(site a
site b
link a b rate=100MB/s latency=1ms
hosts t site=a up=1GB/s down=1GB/s inside=10GB/s
hosts r site=b up=1GB/s down=1GB/s inside=10GB/s
weights rank_bytes=1GB segment=10MB
group trainer role=trainer ranks=1 on=t
group reader role=rollout ranks=1 on=r
train trainer first=1s
update reader after=publish
at 1s slow_link a b to=10% for=10s
end 100s
)";
  // Ten seconds at a tenth of the rate, then the nine tenths that are left.
  EXPECT_NEAR(Seconds(RunWell(text).SlowestRead()), 10 + 9, 0.2);
}

TEST(ScenarioRunTest, AnEventMakesOneGroupUpdate) {
  const ScenarioResult result =
      RunWell(Fleet(2) + "train trainer first=1s\nat 5s update reader-2\n");
  ASSERT_THAT(result.reads, SizeIs(1));
  EXPECT_EQ(result.reads[0].group, "reader-2");
  EXPECT_NEAR(Seconds(result.reads[0].began), 5, 1e-9);
}

TEST(ScenarioRunTest, GroupsThatJoinLaterUpdateWhenTheyAreThere) {
  const ScenarioResult result =
      RunWell(Fleet(3) + "train trainer first=1s\nat 5s join reader 2\nat 7s join reader 1\n");
  ASSERT_THAT(result.reads, SizeIs(3));
  EXPECT_NEAR(Seconds(result.reads[0].began), 5, kRequests);
  EXPECT_NEAR(Seconds(result.reads[2].began), 7, kRequests);
  EXPECT_EQ(result.reads[2].group, "reader-3");
}

TEST(ScenarioRunTest, NobodyIsCalledBeforeItIsThere) {
  const ScenarioResult result =
      RunWell(Fleet(2) + "train trainer first=0s\nupdate reader after=publish\n");
  EXPECT_THAT(result.reads, SizeIs(2));
}

TEST(ScenarioRunTest, APollingGroupMovesOnceAVersion) {
  const ScenarioResult result =
      RunWell(Fleet(1) + "train trainer first=1s step=10s steps=2\nupdate reader every=300ms\n");
  ASSERT_THAT(result.reads, SizeIs(2));
  EXPECT_EQ(result.reads[0].label, "step-1");
  EXPECT_EQ(result.reads[1].label, "step-2");
}

// ---- staging: within a host a shard takes a tenth of a second, over a link a whole one

constexpr double kApply = 0.1;
constexpr char kStaged[] = "train trainer first=1s\nupdate reader after=publish stage=yes\n";

TEST(ScenarioRunTest, OfAStagedVersionOnlyTheApplyIsAStall) {
  const ScenarioResult result = RunWell(Fleet(1) + kStaged);
  EXPECT_NEAR(Seconds(result.RolloutStall().total()), kApply, 2 * kRequests);
  EXPECT_NEAR(Seconds(result.RolloutStall().of(StallCause::kBytes)), kApply, 2 * kRequests);
  ASSERT_THAT(result.reads, SizeIs(1));
  EXPECT_NEAR(Seconds(result.reads[0].stall), kApply, 2 * kRequests);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 1 + kApply, 2 * kRequests) << "both halves";
  EXPECT_NEAR(Seconds(result.versions[0].last_reader), 1 + kApply, 2 * kRequests);
  EXPECT_DOUBLE_EQ(result.CopiesSent(), 1);
}

TEST(ScenarioRunTest, AnUpdateInPlaceIsAStallAllAlong) {
  const ScenarioResult result = RunWell(Fleet(1) + kOnce);
  ASSERT_THAT(result.reads, SizeIs(1));
  EXPECT_EQ(result.reads[0].stall, result.reads[0].ended - result.reads[0].began);
}

// A staged version comes from the rank's own memory, and its picture shows both halves.
TEST(ScenarioRunTest, WhatIsStagedIsReceivedOnceAndMovedInFromTheRanksOwnMemory) {
  const ScenarioResult result = RunWell(Fleet(1) + kStaged);
  const RankResult& reader = result.ranks[1];
  EXPECT_EQ(reader.bytes_from.at("trainer/0"), 1'000'000'000u);
  EXPECT_EQ(reader.bytes_from.at("reader/0"), 1'000'000'000u);
  ASSERT_THAT(reader.spans, SizeIs(2));
  EXPECT_NEAR(Seconds(reader.spans[0].began), 1, kRequests);
  EXPECT_NEAR(Seconds(reader.spans[1].ended - reader.spans[1].began), kApply, 2 * kRequests);
}

TEST(ScenarioRunTest, StagedCopiesRelayToTheNextGroup) {
  const ScenarioResult result = RunWell(Fleet(4) + kStaged);
  EXPECT_DOUBLE_EQ(result.CopiesSent(), 1);
  EXPECT_EQ(result.versions[0].groups, 4u);
  EXPECT_NEAR(Seconds(result.RolloutStall().total()), 4 * kApply, 8 * kRequests);
}

TEST(ScenarioRunTest, APollingGroupStagesEachVersionOnceAndAsksWithoutAStall) {
  const ScenarioResult result = RunWell(
      Fleet(1) + "train trainer first=1s step=10s steps=2\nupdate reader every=300ms stage=yes\n");
  ASSERT_THAT(result.reads, SizeIs(2));
  EXPECT_NEAR(Seconds(result.RolloutStall().total()), 2 * kApply, 4 * kRequests);
}

TEST(ScenarioRunTest, AVersionThatComesWhileOneIsStagedIsStagedNext) {
  const ScenarioResult result =
      RunWell(Fleet(1) +
              "train trainer first=1s step=500ms steps=2\nupdate reader after=publish stage=yes\n");
  ASSERT_FALSE(result.reads.empty());
  EXPECT_EQ(result.reads.back().label, "step-2");
  EXPECT_LT(Seconds(result.RolloutStall().total()), 2 * kApply + 4 * kRequests);
}

// A group that joins, or comes back, has nothing that it could work with meanwhile.
TEST(ScenarioRunTest, AGroupWithoutWeightsReceivesItsFirstVersionInPlace) {
  const ScenarioResult joined =
      RunWell(Fleet(1) +
              "train trainer first=1s step=10s steps=2\n"
              "update reader after=publish stage=yes\nat 5s join reader 1\n");
  ASSERT_THAT(joined.reads, SizeIs(2));
  EXPECT_NEAR(Seconds(joined.reads[0].stall), 1, 2 * kRequests);
  EXPECT_NEAR(Seconds(joined.reads[1].stall), kApply, 2 * kRequests);
  const ScenarioResult replaced = RunWell(Fleet(1) + kStaged + "at 10s replace reader after=1s\n");
  ASSERT_THAT(replaced.reads, SizeIs(2));
  EXPECT_NEAR(Seconds(replaced.reads[1].stall), 1, 2 * kRequests);
}

TEST(ScenarioRunTest, ModelsOfOthersStageNothing) {
  for (const ScenarioPolicy policy : {ScenarioPolicy::kDirect, ScenarioPolicy::kBroadcast}) {
    const ScenarioResult staged = RunWell(Fleet(2) + kStaged, policy);
    const ScenarioResult plain = RunWell(Fleet(2) + kOnce, policy);
    EXPECT_EQ(staged.RolloutStall().total(), plain.RolloutStall().total());
  }
}

TEST(ScenarioRunTest, ARankThatDiesWhileItStagesEndsTheGroupsUpdateAndNobodyElses) {
  const auto result = RunScenario(Parsed(Fleet(2) + kStaged + "at 1500ms kill reader-1\n"),
                                  ScenarioPolicy::kNearest, {});
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(result->violations, IsEmpty());
  EXPECT_EQ(result->updates_failed, 1u);
  ASSERT_THAT(result->reads, SizeIs(1));
  EXPECT_NEAR(Seconds(result->RolloutStall().total()), kApply, 2 * kRequests);
}

// Eight readers in a chain, of which the third sends at a tenth of its rate.
TEST(ScenarioRunTest, AReaderLeavesASlowUplinkAndNobodyWaitsTwiceAsLong) {
  const ScenarioResult well = RunWell(Fleet(8) + kOnce);
  const ScenarioResult slow = RunWell(Fleet(8) + kOnce + "at 0s slow r-3 side=up to=10%\n");
  EXPECT_NEAR(Seconds(well.SlowestRead()), 1 + 7 * kSegment, 0.02);
  EXPECT_LT(slow.SlowestRead(), 2 * well.SlowestRead());
}

// From the second version on everybody knows, and takes it last.
TEST(ScenarioRunTest, ASlowUplinkIsTheEndOfTheNextChain) {
  const ScenarioResult result = RunWell(Fleet(8) +
                                        "train trainer first=1s step=20s write=1s steps=2\n"
                                        "update reader after=publish\n"
                                        "at 0s slow r-3 side=up to=10%\n");
  ASSERT_THAT(result.versions, SizeIs(2));
  EXPECT_LT(Seconds(result.versions[1].slowest_update), 1.3);
}

TEST(ScenarioRunTest, AFleetThatIsSlowAsAWholeStaysAsItIs) {
  std::string slow = Fleet(8) + kOnce;
  for (int host = 1; host <= 8; ++host) {
    slow += absl::StrCat("at 0s slow r-", host, " side=up to=10%\n");
  }
  slow += "at 0s slow t side=up to=10%\n";
  const ScenarioResult result = RunWell(slow);
  EXPECT_NEAR(Seconds(result.SlowestRead()), 10 + 70 * kSegment, 0.2);
  for (const RankResult& rank : result.ranks) EXPECT_LE(rank.bytes_from.size(), 1u) << rank.name;
}

TEST(ScenarioRunTest, AReaderWhoseOwnDownlinkIsSlowMovesOnceAtMost) {
  const ScenarioResult result = RunWell(Fleet(8) + kOnce + "at 0s slow r-8 side=down to=10%\n");
  EXPECT_NEAR(Seconds(result.SlowestRead()), 10, 0.5);
  for (const RankResult& rank : result.ranks) EXPECT_LE(rank.bytes_from.size(), 2u) << rank.name;
}

TEST(ScenarioRunTest, AKilledSourceIsReplacedAndTheReaderGoesOn) {
  // reader-2 is the second in the chain and loses reader-1 in the middle.
  auto result = RunScenario(Parsed(Fleet(2) + kOnce + "at 1500ms kill reader-1\n"),
                            ScenarioPolicy::kNearest, {});
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(result->violations, IsEmpty());
  EXPECT_EQ(result->updates_failed, 1u);
  ASSERT_THAT(result->reads, SizeIs(1));
  EXPECT_EQ(result->reads[0].group, "reader-2");
  EXPECT_LT(Seconds(result->SlowestRead()), 1.2);
  const auto& spans = result->ranks[2].spans;
  ASSERT_THAT(spans, SizeIs(2));
  EXPECT_EQ(spans[0].source, "reader-1/0");
  EXPECT_EQ(spans[1].source, "trainer/0");
}

TEST(ScenarioRunTest, AGroupThatIsReplacedReadsAgain) {
  const ScenarioResult result = RunWell(Fleet(2) + kOnce + "at 10s replace reader after=2s\n");
  ASSERT_THAT(result.reads, SizeIs(3));
  EXPECT_NEAR(Seconds(result.reads[2].began), 12, kRequests);
  const ScenarioResult again = RunWell(Fleet(2) + kOnce + "at 10s replace reader after=2s\n");
  EXPECT_EQ(again.reads[2].group, result.reads[2].group);
}

TEST(ScenarioRunTest, WhoeverLeavesStopsOrIsCutOffDoesNotHoldTheOthers) {
  for (const char* event : {"leave reader-1", "preempt reader-1 notice=200ms", "crash reader-1",
                            "stop reader-1 for=3s", "cut r-1 for=3s"}) {
    const auto result = RunScenario(Parsed(absl::StrCat(Fleet(3), kOnce, "at 1500ms ", event)),
                                    ScenarioPolicy::kNearest, {});
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->violations, IsEmpty()) << event;
    int others = 0;
    for (const ReadResult& read : result->reads) {
      if (read.group == "reader-1") continue;
      ++others;
      EXPECT_LT(Seconds(read.ended - read.began), 2.6) << event;
    }
    EXPECT_EQ(others, 2) << event;
  }
}

TEST(ScenarioRunTest, ADeadMemberEndsItsPartOfABroadcast) {
  const auto result = RunScenario(Parsed(absl::StrCat(Fleet(3), kOnce, "at 1500ms kill reader-3")),
                                  ScenarioPolicy::kBroadcast, {});
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(result->reads, SizeIs(2));
  EXPECT_LT(Seconds(result->TrainerStall().total()), 1.2);
}

std::string TraceOf(const Scenario& scenario) {
  std::string text;
  ScenarioRunOptions options;
  options.trace = [&text](const std::string& line) { absl::StrAppend(&text, line, "\n"); };
  EXPECT_THAT(RunScenario(scenario, ScenarioPolicy::kNearest, options), IsOk());
  return text;
}

TEST(ScenarioRunTest, ASeedIsOneRunForEver) {
  std::string text = Fleet(3) + kOnce + "at 10s replace reader after=2s\n";
  text.replace(text.find("same_site=100us"), 15, "same_site=100us jitter=2ms");
  Scenario scenario = Parsed(text);
  const std::string trace = TraceOf(scenario);
  EXPECT_FALSE(trace.empty());
  EXPECT_EQ(trace, TraceOf(scenario));
  scenario.seed = 2;
  EXPECT_NE(trace, TraceOf(scenario));
}

}  // namespace
}  // namespace th
