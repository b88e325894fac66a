#include "th/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/identifiers/identifiers.h"
#include "th/scheduler/fill_paths.h"
#include "th/topology/location.h"

namespace th {
namespace {

using ::testing::ElementsAre;

BufferAddress At(uint64_t worker) { return {WorkerId(worker), BufferId(1)}; }

Location OnHost(const std::string& host, const std::string& rack = "r1",
                const std::string& site = "s1") {
  return {.site = site, .rack = rack, .host = host};
}

// A holder of the graph; one that is not available is no candidate.
struct Held : SchedulerHolder {
  Location where;
  std::vector<BufferAddress> sources;
  bool available = true;
};

Held Complete(uint64_t worker, const std::string& host = "elsewhere") {
  Held holder;
  holder.buffer = At(worker);
  holder.where = OnHost(host);
  holder.complete = true;
  return holder;
}

Held Filling(uint64_t worker, std::vector<uint64_t> sources,
             const std::string& host = "elsewhere") {
  Held holder = Complete(worker, host);
  holder.complete = false;
  for (uint64_t source : sources) holder.sources.push_back(At(source));
  return holder;
}

class GraphOf : public FillGraph {
 public:
  explicit GraphOf(const std::vector<Held>& holders) : holders_(holders) {}
  Holder At(const BufferAddress& buffer) const override {
    looked_at.push_back(buffer.worker.value);
    for (const Held& held : holders_) {
      if (held.buffer == buffer) return {held.complete, held.sources};
    }
    return {};
  }

  mutable std::vector<uint64_t> looked_at;

 private:
  const std::vector<Held>& holders_;  // outlives this
};

enum class Notes { kTrue, kNone };  // of the chains above the holders; kNone: all are 0

SchedulerSnapshot SnapshotOf(const std::vector<Held>& holders, Notes notes = Notes::kTrue) {
  const GraphOf graph(holders);
  FillPaths paths(graph, BufferAddress());
  SchedulerSnapshot snapshot;
  for (const Held& held : holders) {
    if (!held.available) continue;
    snapshot.holders.push_back(held);
    snapshot.holders.back().location = &held.where;
    if (notes == Notes::kNone) continue;
    snapshot.holders.back().chain = paths.ChainAbove(held.buffer).value_or(0);
  }
  return snapshot;
}

std::vector<SchedulerChoice> ChoicesOf(const std::vector<Held>& holders,
                                       const SchedulerDemand& demand, const SchedulerLimits& limits,
                                       Notes notes = Notes::kTrue) {
  const GraphOf graph(holders);
  FillPaths paths(graph, demand.reader);
  return Schedule(SnapshotOf(holders, notes), demand, limits, paths);
}

Held With(Held holder, void (*change)(Held&)) {
  change(holder);
  return holder;
}

// The reader is worker 100 on host "here".
constexpr uint64_t kReader = 100;
constexpr uint64_t kShardBytes = 400;

struct ScheduleCase {
  std::string name;
  std::vector<Held> holders;
  std::vector<uint64_t> expected;  // workers, best first
  std::vector<uint64_t> excluded = {};
  SchedulerLimits limits = {};
};

std::vector<uint64_t> Chosen(const std::vector<Held>& holders,
                             const std::vector<uint64_t>& excluded, const SchedulerLimits& limits,
                             Notes notes = Notes::kTrue) {
  SchedulerDemand demand{.reader = At(kReader), .location = OnHost("here"), .bytes = kShardBytes};
  for (uint64_t worker : excluded) demand.excluded.push_back(At(worker));
  std::vector<uint64_t> workers;
  for (const SchedulerChoice& choice : ChoicesOf(holders, demand, limits, notes)) {
    workers.push_back(choice.source.worker.value);
  }
  return workers;
}

class ScheduleTest : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleTest, ChoosesByTheRulesWhateverTheOrderOfHolders) {
  ScheduleCase c = GetParam();
  EXPECT_EQ(Chosen(c.holders, c.excluded, c.limits), c.expected);
  EXPECT_EQ(Chosen(c.holders, c.excluded, c.limits, Notes::kNone), c.expected)
      << "with notes of chains that are too short";
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

Held OnRack(Held holder, const std::string& rack) {
  holder.where.rack = rack;
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
Held Own() {
  Held holder = Complete(kReader, "here");
  holder.buffer.buffer = BufferId(2);
  return holder;
}

// So many readers that have nothing yet.
template <uint32_t readers>
void Load(Held& holder) {
  holder.readers = readers;
  holder.outstanding_bytes = readers * kShardBytes;
}
constexpr auto Load1 = Load<1>;
constexpr auto Load2 = Load<2>;
constexpr auto Load4 = Load<4>;
template <uint32_t readers, uint64_t bytes>
void Lack(Held& holder) {
  holder.readers = readers;
  holder.outstanding_bytes = bytes;
}
template <uint64_t held>
void Has(Held& holder) {
  holder.segments = 100;
  holder.segments_held = held;
}
void Publisher(Held& holder) { holder.publisher = true; }
void Suspect(Held& holder) { holder.suspected = true; }
void Leaves(Held& holder) { holder.leaving = true; }
void Away(Held& holder) { holder.available = false; }
void LoadedPublisher(Held& holder) {
  holder.publisher = true;
  Load1(holder);
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
        ScheduleCase{"ReadersThatLackLittleBeforeOneThatLacksAll",
                     {With(Complete(1), Load1), With(Complete(2), Lack<3, 150>)},
                     {2}},
        ScheduleCase{"LessThanAQuarterOfTheShardIsNoDifference",
                     {With(Complete(1), Lack<1, 399>), With(Complete(2), Lack<1, 301>),
                      With(Complete(3), Lack<2, 401>)},
                     {1}},
        ScheduleCase{"ReadersThatTakeNothingAreNoLoad",
                     {With(Complete(1), Lack<1, 1>), With(Complete(2), Lack<2, 0>)},
                     {2}},
        ScheduleCase{"ReadersCountForTheLimitWhateverTheyLack",
                     {With(Complete(1), Lack<4, 0>), With(Complete(2), Load1)},
                     {2}},
        ScheduleCase{"ASecondOneWhoseReadersTakeNothing",
                     {Complete(1, "a"), With(Complete(2, "b"), Lack<1, 0>)},
                     {1, 2}},
        ScheduleCase{"NoSecondOneWhoseWorkerSendsSomethingElse",
                     {Complete(1, "a"), With(Complete(2, "b"), Lack<0, 1>)},
                     {1}},
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
  std::vector<Held> holders;
  for (uint64_t worker = 1; worker <= 4; ++worker) holders.push_back(Complete(worker));
  std::map<uint64_t, int> readers_of;
  for (uint64_t reader = 100; reader < 500; ++reader) {
    const SchedulerDemand demand{.reader = At(reader)};
    const auto choices = ChoicesOf(holders, demand, By(SchedulerPolicy::kRandom));
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

Held AtSite(Held holder, const std::string& site) {
  holder.where.site = site;
  holder.where.rack = site + "-r1";
  return holder;
}

TEST(ScheduleTest, AHolderAtALimitInTheOwnSiteComesBeforeACrossing) {
  SchedulerLimits limits;
  limits.max_readers_per_source = 1;
  limits.max_chain = 2;
  const Held far = AtSite(Complete(1), "s2");
  Held busy = AtSite(Complete(2), "s1");
  busy.readers = 7;
  EXPECT_THAT(Chosen({far, busy}, {}, limits), ElementsAre(2));
  Held silent = busy;
  silent.suspected = true;
  EXPECT_THAT(Chosen({far, silent}, {}, limits), ElementsAre(2));
  // The end of a chain that is too long.
  EXPECT_THAT(Chosen({far, AtSite(Filling(2, {1}), "s1"), AtSite(Filling(3, {2}), "s1"),
                      AtSite(Filling(4, {3}), "s1")},
                     {2, 3}, limits),
              ElementsAre(4));
}

TEST(ScheduleTest, WithNobodyInTheOwnSiteWhoCanFeedItAReaderCrosses) {
  const Held far = AtSite(Complete(1), "s2");
  EXPECT_THAT(Chosen({far}, {}, {}), ElementsAre(1));
  // Excluded, away, unfed, and filling from the reader itself.
  Held away = AtSite(Complete(3), "s1");
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
  const SchedulerDemand demand{.reader = At(kReader), .location = OnHost("here")};
  EXPECT_THAT(ChoicesOf({Complete(1, "here")}, demand, {}),
              ElementsAre(SchedulerChoice{At(1), Distance::kSameHost}));
}

// ---- what is looked at

// Two racks of chains below one publisher; the reader's own rack has an idle holder at its end.
TEST(ScheduleTest, OnlyTheChainAboveTheChosenIsLookedAt) {
  std::vector<Held> holders = {With(Complete(1), LoadedPublisher)};
  for (uint64_t worker = 2; worker <= 20; ++worker) {
    holders.push_back(OnRack(Filling(worker, {worker % 10 == 1 ? 1 : worker - 1}, "a"), "r2"));
    if (worker % 10 != 0) Load1(holders.back());
  }
  holders.push_back(Filling(30, {3}, "b"));
  const SchedulerSnapshot snapshot = SnapshotOf(holders);
  const GraphOf graph(holders);
  FillPaths paths(graph, At(kReader));
  const SchedulerDemand demand{.reader = At(kReader), .location = OnHost("here")};
  const auto choices = Schedule(snapshot, demand, {}, paths);
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].source, At(30));
  EXPECT_EQ(choices[0].chain, 3u);
  EXPECT_THAT(graph.looked_at, ElementsAre(30, 3, 2, 1));
}

TEST(ScheduleTest, ANoteThatIsTooShortDoesNotLetAChainGrowBeyondItsLimit) {
  const std::vector<Held> holders = {With(Complete(1), LoadedPublisher),
                                     With(Filling(2, {1}), Load1), Filling(3, {2})};
  EXPECT_EQ(Chosen(holders, {}, Chain(2), Notes::kNone), std::vector<uint64_t>{2});
}

TEST(ScheduleTest, ANoteThatIsTooLongMakesAHolderComeLater) {
  const std::vector<Held> holders = {With(Complete(9), Away), Filling(1, {9}), Filling(2, {9})};
  SchedulerSnapshot snapshot = SnapshotOf(holders);
  snapshot.holders.front().chain = 7;
  const GraphOf graph(holders);
  FillPaths paths(graph, At(kReader));
  const auto choices = Schedule(snapshot, {.reader = At(kReader)}, {}, paths);
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].source, At(2));
  EXPECT_EQ(choices[0].chain, 1u);
}

TEST(FillPathsTest, AHolderIsLookedAtOnceHoweverManyFillFromIt) {
  const std::vector<Held> holders = {Complete(1), Filling(2, {1}), Filling(3, {1, 2}),
                                     Filling(4, {2, 3})};
  const GraphOf graph(holders);
  FillPaths paths(graph, At(kReader));
  EXPECT_EQ(paths.ChainAbove(At(4)), 3u) << "the longest counts";
  EXPECT_EQ(paths.ChainAbove(At(2)), 1u);
  EXPECT_EQ(graph.looked_at.size(), 4u);
}

// Buffer i fills from buffer i + 1; the last one is complete.
class Line : public FillGraph {
 public:
  explicit Line(uint64_t hops) {
    above_.reserve(hops);
    for (uint64_t i = 0; i < hops; ++i) above_.push_back({WorkerId(i + 1), BufferId(1)});
  }
  Holder At(const BufferAddress& buffer) const override {
    const uint64_t i = buffer.worker.value;
    if (i == above_.size()) return {.complete = true};
    return {.sources = absl::MakeConstSpan(&above_[i], 1)};
  }

 private:
  std::vector<BufferAddress> above_;
};

TEST(FillPathsTest, ALongChainTakesNoStack) {
  constexpr uint64_t kHops = 200'000;
  const Line line(kHops);
  FillPaths paths(line, At(kHops + 1));
  EXPECT_EQ(paths.ChainAbove(At(0)), kHops);
}

// ---- many readers

// Readers that ask one after the other, with nothing done yet.
std::vector<Held> Fleet(size_t readers, const SchedulerLimits& limits) {
  std::vector<Held> holders = {With(Complete(1), Publisher)};
  for (uint64_t reader = 2; reader < 2 + readers; ++reader) {
    Held filling = Filling(reader, {});
    const SchedulerDemand demand{
        .reader = At(reader), .location = filling.where, .bytes = kShardBytes};
    for (const SchedulerChoice& choice : ChoicesOf(holders, demand, limits)) {
      filling.sources.push_back(choice.source);
      Held& source = holders[choice.source.worker.value - 1];
      source.readers++;
      source.outstanding_bytes += kShardBytes;
    }
    holders.push_back(filling);
  }
  return holders;
}

TEST(ScheduleTest, ReadersThatAskAtOnceCostThePublisherOneCopy) {
  for (const Held& holder : Fleet(8, {})) EXPECT_LE(holder.readers, 1u);
}

TEST(ScheduleTest, ALargeFleetStaysWithinBothLimits) {
  const SchedulerLimits limits;
  for (const Held& holder : Fleet(300, limits)) {
    EXPECT_LE(holder.readers, limits.max_readers_per_source);
  }
}

bool IsAcyclic(const std::vector<Held>& holders) {
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
    std::vector<Held> holders = {Complete(1), Complete(2)};
    for (uint64_t worker = 3; worker <= 12; ++worker) holders.push_back(Filling(worker, {}));
    for (int step = 0; step < 60; ++step) {
      Held& reader = holders[2 + random() % 10];
      const SchedulerDemand demand{
          .reader = reader.buffer, .location = reader.where, .excluded = {At(1 + random() % 12)}};
      reader.sources.clear();
      std::vector<SchedulerChoice> choices = ChoicesOf(holders, demand, AtOnce(1 + random() % 3));
      for (const SchedulerChoice& choice : choices) reader.sources.push_back(choice.source);
      for (Held& holder : holders) holder.readers = random() % 6;
      ASSERT_TRUE(IsAcyclic(holders)) << "seed " << seed << " step " << step;
    }
  }
}

// ---- links

Held Behind(double rate, Held holder) {
  holder.link_limit = rate;
  return holder;
}

std::vector<uint64_t> ChosenBehind(std::optional<double> limit, const std::vector<Held>& holders) {
  const SchedulerDemand demand{
      .reader = At(kReader), .location = OnHost("here"), .bytes = kShardBytes, .link_limit = limit};
  std::vector<uint64_t> workers;
  for (const SchedulerChoice& choice : ChoicesOf(holders, demand, AtOnce(1))) {
    workers.push_back(choice.source.worker.value);
  }
  return workers;
}

TEST(LinkLimitTest, AHolderBehindASlowerLinkComesLastEvenIfItIsIdleAndNearer) {
  Held loaded = Complete(1, "far");
  loaded.where.rack = "another";
  loaded.readers = 1;
  loaded.outstanding_bytes = kShardBytes;
  const Held slow = Behind(25, Filling(2, {1}));
  EXPECT_THAT(ChosenBehind(std::nullopt, {loaded, slow}), ElementsAre(1));
  EXPECT_THAT(ChosenBehind(100, {loaded, slow}), ElementsAre(1));
  EXPECT_THAT(ChosenBehind(std::nullopt, {With(loaded, Away), slow}), ElementsAre(2))
      << "there is nobody else";
}

TEST(LinkLimitTest, AReaderBehindALinkAsSlowTakesIt) {
  Held loaded = Complete(1);
  loaded.readers = 1;
  loaded.outstanding_bytes = kShardBytes;
  const Held slow = Behind(25, Filling(2, {1}));
  EXPECT_THAT(ChosenBehind(25, {loaded, slow}), ElementsAre(2));
  EXPECT_THAT(ChosenBehind(10, {loaded, slow}), ElementsAre(2));
  EXPECT_THAT(ChosenBehind(30, {loaded, slow}), ElementsAre(2)) << "about as slow";
}

TEST(LinkLimitTest, AHolderOfTheReadersOwnHostSharesItsLink) {
  const Held slow = Behind(25, Filling(2, {1}, "here"));
  EXPECT_THAT(ChosenBehind(std::nullopt, {Complete(1), slow}), ElementsAre(2));
}

TEST(LinkLimitTest, AVersionStillComesIntoASiteOnce) {
  Held far = Complete(1);
  far.where.site = "s2";
  const Held slow = Behind(25, Filling(2, {1}));
  EXPECT_THAT(ChosenBehind(std::nullopt, {far, slow}), ElementsAre(2));
}

}  // namespace
}  // namespace th
