#include "th/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;

BufferAddress At(uint64_t worker) { return {WorkerId(worker), BufferId(1)}; }

Location OnHost(const std::string& host, const std::string& rack = "r1",
                const std::string& site = "s1") {
  return {.site = site, .rack = rack, .host = host};
}

SchedulerHolder Complete(uint64_t worker, const std::string& host = "elsewhere") {
  return {.buffer = At(worker), .location = OnHost(host), .complete = true};
}

SchedulerHolder Filling(uint64_t worker, std::vector<uint64_t> sources,
                        const std::string& host = "elsewhere") {
  SchedulerHolder holder{.buffer = At(worker), .location = OnHost(host)};
  for (uint64_t source : sources) holder.sources.push_back(At(source));
  return holder;
}

SchedulerHolder With(SchedulerHolder holder, void (*change)(SchedulerHolder&)) {
  change(holder);
  return holder;
}

// The reader is worker 100 on host "here".
constexpr uint64_t kReader = 100;

struct ScheduleCase {
  std::string name;
  std::vector<SchedulerHolder> holders;
  std::vector<uint64_t> expected;  // workers, best first
  std::vector<uint64_t> excluded = {};
  SchedulerLimits limits = {};
};

std::vector<uint64_t> Chosen(std::vector<SchedulerHolder> holders,
                             const std::vector<uint64_t>& excluded, const SchedulerLimits& limits) {
  SchedulerDemand demand{.reader = At(kReader), .location = OnHost("here")};
  for (uint64_t worker : excluded) demand.excluded.push_back(At(worker));
  std::vector<uint64_t> workers;
  for (const SchedulerChoice& choice :
       Schedule(SchedulerSnapshot{std::move(holders)}, demand, limits)) {
    workers.push_back(choice.source.worker.value);
  }
  return workers;
}

class ScheduleTest : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleTest, ChoosesByTheRulesWhateverTheOrderOfHolders) {
  ScheduleCase c = GetParam();
  EXPECT_EQ(Chosen(c.holders, c.excluded, c.limits), c.expected);
  std::reverse(c.holders.begin(), c.holders.end());
  EXPECT_EQ(Chosen(c.holders, c.excluded, c.limits), c.expected) << "in reverse order";
}

SchedulerLimits AtOnce(uint32_t max_sources) {
  SchedulerLimits limits;
  limits.max_sources = max_sources;
  return limits;
}

SchedulerLimits By(SchedulerPolicy policy) {
  SchedulerLimits limits;
  limits.policy = policy;
  return limits;
}

SchedulerHolder OnRack(SchedulerHolder holder, const std::string& rack) {
  holder.location.rack = rack;
  return holder;
}

SchedulerLimits Chain(uint32_t max_chain) {
  SchedulerLimits limits;
  limits.max_chain = max_chain;
  return limits;
}

SchedulerLimits Modelled(SchedulerLimits limits, SchedulerPolicy policy) {
  limits.policy = policy;
  return limits;
}

// Another buffer of the reader's own worker.
SchedulerHolder Own() {
  SchedulerHolder holder = Complete(kReader, "here");
  holder.buffer.buffer = BufferId(2);
  return holder;
}

void Load1(SchedulerHolder& holder) { holder.readers = 1; }
void Load2(SchedulerHolder& holder) { holder.readers = 2; }
void Load4(SchedulerHolder& holder) { holder.readers = 4; }
template <uint64_t held>
void Has(SchedulerHolder& holder) {
  holder.segments = 100;
  holder.segments_held = held;
}
void Publisher(SchedulerHolder& holder) { holder.publisher = true; }
void Suspect(SchedulerHolder& holder) { holder.suspected = true; }
void Leaves(SchedulerHolder& holder) { holder.leaving = true; }
void Away(SchedulerHolder& holder) { holder.available = false; }
void LoadedPublisher(SchedulerHolder& holder) {
  holder.publisher = true;
  holder.readers = 1;
}

INSTANTIATE_TEST_SUITE_P(
    Refused, ScheduleTest,
    ::testing::Values(
        ScheduleCase{"NobodyHoldsIt", {}, {}},
        ScheduleCase{"TheReaderItself", {Complete(kReader)}, {}},
        ScheduleCase{"Excluded", {Complete(1)}, {}, {1}},
        ScheduleCase{"Unavailable", {With(Complete(1), Away)}, {}},
        ScheduleCase{"DirectCycle", {With(Complete(1), Away), Filling(2, {kReader, 1})}, {}},
        ScheduleCase{"CycleOverTwoHops",
                     {With(Complete(1), Away), Filling(kReader, {1}), Filling(2, {kReader}),
                      Filling(3, {2, 1})},
                     {}},
        ScheduleCase{"CycleThroughOneOfSeveralSources",
                     {With(Complete(1), Away), Filling(2, {1, kReader}), Filling(3, {1, 2})},
                     {}},
        ScheduleCase{"PartialThatNothingFeeds", {Filling(1, {})}, {}},
        ScheduleCase{"PartialFedByOneThatNothingFeeds", {Filling(1, {}), Filling(2, {1})}, {}},
        ScheduleCase{"PartialFedByAStranger", {Filling(1, {55})}, {}},
        ScheduleCase{"PartialsThatFeedEachOther", {Filling(1, {2}), Filling(2, {1})}, {}}),
    [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Chosen, ScheduleTest,
    ::testing::Values(
        ScheduleCase{"TheOnlyHolder", {Complete(1)}, {1}},
        ScheduleCase{"APartialOneToo", {With(Complete(1), Away), Filling(2, {1})}, {2}},
        ScheduleCase{"NearBeforeFar", {Complete(1), Complete(2, "here")}, {2}},
        ScheduleCase{"WhoLeavesAfterAllOthers",
                     {With(Complete(1, "here"), Leaves), With(Complete(2), Load4)},
                     {2}},
        ScheduleCase{"WhoLeavesWhereThereIsNobodyElse", {With(Complete(1), Leaves)}, {1}},
        ScheduleCase{
            "WhoLeavesIsNoSecondSource", {Complete(1, "a"), With(Complete(2, "b"), Leaves)}, {1}},
        ScheduleCase{
            "NearAndLoadedBeforeFarAndIdle", {Complete(1), With(Complete(2, "here"), Load1)}, {2}},
        ScheduleCase{
            "ItsOwnWorkersBeforeAll", {Complete(1, "here"), With(Own(), Load4)}, {kReader}},
        ScheduleCase{"SuspectedAfterOthersOfItsDistance",
                     {With(Complete(1), Suspect), With(Complete(2), Load1)},
                     {2}},
        ScheduleCase{"SuspectedButNearer", {With(Complete(1, "here"), Suspect), Complete(2)}, {1}},
        ScheduleCase{"SuspectedWhenThereIsNoOther", {With(Complete(1), Suspect)}, {1}},
        ScheduleCase{"LessLoaded", {With(Complete(1), Load1), Complete(2)}, {2}},
        ScheduleCase{"PartialAndIdleBeforeCompleteAndLoaded",
                     {With(Complete(1), LoadedPublisher), Filling(2, {1})},
                     {2}},
        ScheduleCase{"RolloutBeforePublisher", {With(Complete(1), Publisher), Complete(2)}, {2}},
        ScheduleCase{"PublisherBeforeLoadedRollout",
                     {With(Complete(1), Publisher), With(Complete(2), Load1)},
                     {1}},
        ScheduleCase{
            "ShorterChain", {With(Complete(9), Away), Filling(1, {2, 9}), Filling(2, {9})}, {2}},
        ScheduleCase{"LowerAddress", {Complete(2), Complete(1), Complete(3)}, {1}},
        ScheduleCase{"AtItsReaderLimitAfterFartherOnes",
                     {With(Complete(1, "here"), Load4), Complete(2)},
                     {2}},
        ScheduleCase{"AtItsReaderLimitWhenThereIsNoOther", {With(Complete(1), Load4)}, {1}},
        ScheduleCase{"AtOneReaderEachThePartialOneWithAQuarter",
                     {With(Complete(9), Away), With(With(Filling(1, {9}), Load1), Has<24>),
                      With(With(Filling(2, {9}), Load1), Has<25>)},
                     {2}},
        ScheduleCase{"AtTwoReadersEachThePartialOneWithHalf",
                     {With(Complete(9), Away), With(With(Filling(1, {9}), Load2), Has<49>),
                      With(With(Filling(2, {9}), Load2), Has<50>)},
                     {2}},
        ScheduleCase{"LessLoadedBeforeProved",
                     {With(Complete(9), Away), With(With(Filling(1, {9}), Load2), Has<50>),
                      With(With(Filling(2, {9}), Load1), Has<0>)},
                     {2}},
        ScheduleCase{"ChainLimitAfterLoadedOnes",
                     {With(Complete(1), Load1), Filling(2, {1})},
                     {1},
                     {},
                     Chain(1)},
        ScheduleCase{"ChainLimitWhenThereIsNoOther",
                     {With(Complete(1), Away), Filling(2, {1})},
                     {2},
                     {},
                     Chain(1)},
        ScheduleCase{"NoneWhenNoneIsAllowed", {Complete(1)}, {}, {}, AtOnce(0)},
        ScheduleCase{"NoSecondOneByDefaultOnTheSameHost", {Complete(1), Complete(2)}, {1}},
        ScheduleCase{"ASecondOneThatAddsAnUplink", {Complete(1, "a"), Complete(2, "b")}, {1, 2}},
        ScheduleCase{"AsManyUplinksAsAllowed",
                     {Complete(1, "a"), Complete(2, "b"), Complete(3, "c"), Complete(4, "d")},
                     {1, 2, 3},
                     {},
                     AtOnce(3)},
        ScheduleCase{
            "NoSecondOneBesideOneOnTheReadersHost", {Complete(1, "a"), Complete(2, "here")}, {2}},
        ScheduleCase{"NoSecondOneThatIsFarther",
                     {Complete(1, "a"), Complete(2, "b"), OnRack(Complete(3, "c"), "r2")},
                     {1, 2},
                     {},
                     AtOnce(3)},
        ScheduleCase{
            "NoSecondOneThatHasAReader", {Complete(1, "a"), With(Complete(2, "b"), Load1)}, {1}},
        ScheduleCase{"NoSecondOneThatIsPartial", {Complete(1, "a"), Filling(2, {1}, "b")}, {1}},
        ScheduleCase{
            "NoSecondOneOfUnknownHost", {Complete(1, "a"), OnRack(Complete(2, ""), "")}, {1}},
        ScheduleCase{
            "NoPublisherBesideARelay", {Complete(1, "a"), With(Complete(2, "b"), Publisher)}, {1}},
        ScheduleCase{"TwoPublishersAtOnce",
                     {With(Complete(1, "a"), Publisher), With(Complete(2, "b"), Publisher)},
                     {1, 2}},
        ScheduleCase{
            "NoSuspectBeyondTheFirst", {Complete(1, "a"), With(Complete(2, "b"), Suspect)}, {1}}),
    [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Models, ScheduleTest,
    ::testing::Values(
        ScheduleCase{"DirectTakesThePublisherHoweverLoadedAndFar",
                     {Complete(1, "here"), With(With(Complete(2, "far"), Publisher), Load4)},
                     {2},
                     {},
                     By(SchedulerPolicy::kDirect)},
        ScheduleCase{
            "DirectTakesNobodyElse", {Complete(1, "here")}, {}, {}, By(SchedulerPolicy::kDirect)},
        ScheduleCase{"ChainTakesItsEndWhereverItIs",
                     {With(Complete(1, "here"), LoadedPublisher), With(Filling(2, {1}, "a"), Load1),
                      Filling(3, {2}, "b")},
                     {3},
                     {},
                     By(SchedulerPolicy::kChain)},
        ScheduleCase{"ChainHasNoLongestLength",
                     {With(Complete(1), Load1), With(Filling(2, {1}), Load1), Filling(3, {2})},
                     {3},
                     {},
                     Modelled(Chain(1), SchedulerPolicy::kChain)},
        ScheduleCase{"RandomTakesOnlyWhoCouldServe",
                     {With(Complete(1), Away), Complete(2), Filling(3, {})},
                     {2},
                     {},
                     By(SchedulerPolicy::kRandom)}),
    [](const auto& param) { return param.param.name; });

TEST(ScheduleTest, RandomSpreadsReadersOverAllHolders) {
  std::vector<SchedulerHolder> holders;
  for (uint64_t worker = 1; worker <= 4; ++worker) holders.push_back(Complete(worker));
  std::map<uint64_t, int> readers_of;
  for (uint64_t reader = 100; reader < 500; ++reader) {
    const SchedulerDemand demand{.reader = At(reader)};
    const auto choices = Schedule(SchedulerSnapshot{holders}, demand, By(SchedulerPolicy::kRandom));
    ASSERT_EQ(choices.size(), 1u);
    ++readers_of[choices[0].source.worker.value];
  }
  ASSERT_EQ(readers_of.size(), 4u);
  for (const auto& [worker, readers] : readers_of) EXPECT_NEAR(readers, 100, 40) << worker;
}

TEST(SchedulerPolicyTest, NamesGoThereAndBack) {
  for (const char* name : {"nearest", "direct", "chain", "random"}) {
    const auto policy = ParseSchedulerPolicy(name);
    ASSERT_TRUE(policy.ok()) << name;
    EXPECT_EQ(SchedulerPolicyName(*policy), name);
  }
  EXPECT_EQ(ParseSchedulerPolicy("Nearest").status().message(),
            "'Nearest' is no policy; give nearest, direct, chain or random");
}

// ---- rule 3, sites

SchedulerHolder AtSite(SchedulerHolder holder, const std::string& site) {
  holder.location.site = site;
  holder.location.rack = site + "-r1";
  return holder;
}

TEST(ScheduleTest, AHolderAtALimitInTheOwnSiteComesBeforeACrossing) {
  SchedulerLimits limits;
  limits.max_readers_per_source = 1;
  limits.max_chain = 2;
  const SchedulerHolder far = AtSite(Complete(1), "s2");
  SchedulerHolder busy = AtSite(Complete(2), "s1");
  busy.readers = 7;
  EXPECT_THAT(Chosen({far, busy}, {}, limits), ElementsAre(2));
  SchedulerHolder silent = busy;
  silent.suspected = true;
  EXPECT_THAT(Chosen({far, silent}, {}, limits), ElementsAre(2));
  // The end of a chain that is too long.
  EXPECT_THAT(Chosen({far, AtSite(Filling(2, {1}), "s1"), AtSite(Filling(3, {2}), "s1"),
                      AtSite(Filling(4, {3}), "s1")},
                     {2, 3}, limits),
              ElementsAre(4));
}

TEST(ScheduleTest, WithNobodyInTheOwnSiteWhoCanFeedItAReaderCrosses) {
  const SchedulerHolder far = AtSite(Complete(1), "s2");
  EXPECT_THAT(Chosen({far}, {}, {}), ElementsAre(1));
  // Excluded, away, unfed, and filling from the reader itself.
  SchedulerHolder away = AtSite(Complete(3), "s1");
  away.available = false;
  EXPECT_THAT(Chosen({far, AtSite(Complete(2), "s1"), away, AtSite(Filling(4, {}), "s1"),
                      AtSite(Filling(5, {kReader}), "s1")},
                     {2}, {}),
              ElementsAre(1));
}

TEST(ScheduleTest, ASecondSourceIsNeverACrossing) {
  EXPECT_THAT(
      Chosen({AtSite(Complete(1, "a"), "s2"), AtSite(Complete(2, "b"), "s1")}, {}, AtOnce(2)),
      ElementsAre(2));
}

TEST(ScheduleTest, ChoiceNamesTheDistance) {
  const SchedulerSnapshot snapshot{{Complete(1, "here")}};
  const SchedulerDemand demand{.reader = At(kReader), .location = OnHost("here")};
  EXPECT_THAT(Schedule(snapshot, demand, {}),
              ElementsAre(SchedulerChoice{At(1), Distance::kSameHost}));
}

// Readers that ask one after the other, with nothing done yet.
std::vector<SchedulerHolder> Fleet(size_t readers, const SchedulerLimits& limits) {
  std::vector<SchedulerHolder> holders = {With(Complete(1), Publisher)};
  for (uint64_t reader = 2; reader < 2 + readers; ++reader) {
    SchedulerHolder filling = Filling(reader, {});
    const SchedulerDemand demand{.reader = At(reader), .location = filling.location};
    for (const SchedulerChoice& choice : Schedule(SchedulerSnapshot{holders}, demand, limits)) {
      filling.sources.push_back(choice.source);
      holders[choice.source.worker.value - 1].readers++;
    }
    holders.push_back(filling);
  }
  return holders;
}

TEST(ScheduleTest, ReadersThatAskAtOnceCostThePublisherOneCopy) {
  for (const SchedulerHolder& holder : Fleet(8, {})) EXPECT_LE(holder.readers, 1u);
}

TEST(ScheduleTest, ALargeFleetStaysWithinBothLimits) {
  const SchedulerLimits limits;
  for (const SchedulerHolder& holder : Fleet(300, limits)) {
    EXPECT_LE(holder.readers, limits.max_readers_per_source);
  }
}

bool IsAcyclic(const std::vector<SchedulerHolder>& holders) {
  std::vector<size_t> waiting_for(holders.size());
  for (size_t i = 0; i < holders.size(); ++i) waiting_for[i] = holders[i].sources.size();
  for (size_t done = 0, before = 1; before != done;) {
    before = done;
    for (size_t i = 0; i < holders.size(); ++i) {
      if (waiting_for[i] != 0) continue;
      waiting_for[i] = holders.size() + 1;
      ++done;
      for (size_t j = 0; j < holders.size(); ++j) {
        waiting_for[j] -=
            std::count(holders[j].sources.begin(), holders[j].sources.end(), holders[i].buffer);
      }
    }
    if (done == holders.size()) return true;
  }
  return false;
}

TEST(ScheduleTest, RandomReassignmentsNeverCloseACycle) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::vector<SchedulerHolder> holders = {Complete(1), Complete(2)};
    for (uint64_t worker = 3; worker <= 12; ++worker) holders.push_back(Filling(worker, {}));
    for (int step = 0; step < 60; ++step) {
      SchedulerHolder& reader = holders[2 + random() % 10];
      const SchedulerDemand demand{.reader = reader.buffer,
                                   .location = reader.location,
                                   .excluded = {At(1 + random() % 12)}};
      reader.sources.clear();
      std::vector<SchedulerChoice> choices =
          Schedule(SchedulerSnapshot{holders}, demand, AtOnce(1 + random() % 3));
      for (const SchedulerChoice& choice : choices) reader.sources.push_back(choice.source);
      for (SchedulerHolder& holder : holders) holder.readers = random() % 6;
      ASSERT_TRUE(IsAcyclic(holders)) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace th
