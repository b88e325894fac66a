#include "th/registry_state/costs.h"

#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::th::registry::CheckCost;
using ::th::testing::StatusIs;

constexpr uint64_t kShardBytes = 1000;

RankCost GoodCost() {
  return {.resolve = absl::Milliseconds(1),
          .queue = absl::Milliseconds(2),
          .transfer = absl::Milliseconds(30),
          .verify = absl::Milliseconds(4),
          .fill = {.received = {{"tcp", Distance::kSameRack, true, 600},
                                {"tcp", Distance::kSameHost, false, 400}},
                   .rerouted_bytes = 400,
                   .reread_bytes = 70,
                   .reroutes = 1}};
}

// ---- what is believed

struct Absurd {
  std::string name;
  std::function<void(RankCost&)> change;
  std::string says;
};

class AbsurdCostTest : public ::testing::TestWithParam<Absurd> {};

TEST_P(AbsurdCostTest, IsRefusedAndSaysWhy) {
  RankCost cost = GoodCost();
  EXPECT_OK(CheckCost(cost, kShardBytes, absl::Hours(1)));
  GetParam().change(cost);
  EXPECT_THAT(CheckCost(cost, kShardBytes, absl::Hours(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().says)));
}

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Claims, AbsurdCostTest,
    ::testing::Values(
        Absurd{"NegativeStall", [](RankCost& c) { c.verify = -absl::Seconds(1); }, "negative"},
        Absurd{"EndlessStall", [](RankCost& c) { c.queue = absl::InfiniteDuration(); }, "longer"},
        Absurd{"LongStall", [](RankCost& c) { c.transfer = absl::Minutes(61); }, "longer"},
        Absurd{"ManyBytes", [](RankCost& c) { c.fill.received[0].bytes = 16'001; }, "16401 bytes"},
        Absurd{"BytesThatWrap",
               [](RankCost& c) {
                 c.fill.received[0].bytes = kMost;
                 c.fill.received[1].bytes = kMost;
               },
               "bytes received"},
        Absurd{"MoreReroutedThanReceived", [](RankCost& c) { c.fill.rerouted_bytes = 1001; },
               "1001 of them after a re-route"},
        Absurd{"ManyReread", [](RankCost& c) { c.fill.reread_bytes = 64'001; },
               "64001 received again"},
        Absurd{"ManyReroutes", [](RankCost& c) { c.fill.reroutes = 1'000'001; }, "re-routes"},
        Absurd{"ManyKinds", [](RankCost& c) { c.fill.received.resize(33, c.fill.received[0]); },
               "33 kinds"},
        Absurd{"ManyPassedOver", [](RankCost& c) { c.fill.passed_over.resize(17); },
               "17 transports passed over"},
        Absurd{"LongTransport",
               [](RankCost& c) {
                 c.fill.received[0].transport = std::string(kMaxTransportNameBytes + 1, 'x');
               },
               "transport"},
        Absurd{"NoTransport", [](RankCost& c) { c.fill.received[0].transport.clear(); },
               "transport"}),
    [](const auto& param) { return param.param.name; });

// ---- what is added up

// One trainer that has published, one rollout that is about to be done.
class CostsTest : public ::testing::Test {
 protected:
  CostsTest() : trainer_(Trainer(hub_, "step-1")), rollout_(Rollout(hub_, "rollout")) {
    rollout_.Update();
    rollout_.Ready();
  }
  void Done(RankCost cost) { rollout_.Say(RankDone{rollout_.key(), 0, std::move(cost)}); }
  ModelTotals totals() { return hub_.List().models.at(0).totals; }
  // The rollout's rank, as the newest version's holder.
  CatalogRank Listed() {
    const Catalog catalog = hub_.List();
    for (const CatalogReplica& replica : catalog.models.at(0).versions.at(0).replicas) {
      if (replica.group == "rollout") return replica.ranks.at(0);
    }
    ADD_FAILURE() << "the rollout is not listed";
    return {};
  }

  // Returns that of the group's first rank, whether it holds a version or nothing.
  StallByPhase StallListedOf(const std::string& group) {
    const CatalogModel model = hub_.List().models.at(0);
    std::vector<CatalogReplica> replicas = model.idle;
    for (const CatalogVersion& version : model.versions) {
      replicas.insert(replicas.end(), version.replicas.begin(), version.replicas.end());
    }
    for (const CatalogReplica& replica : replicas) {
      if (replica.group == group) return replica.ranks.at(0).stall;
    }
    ADD_FAILURE() << group << " is not listed";
    return {};
  }

  RegistryHarness hub_;
  TestRank trainer_, rollout_;
};

TEST_F(CostsTest, ACopyForRetentionIsNoneThatThePublisherSent) {
  TestRank copy = trainer_;
  copy.buffer = BufferId(7);
  copy.buffer_name = "weights.offload-1";
  copy.number = OperationNumber();
  AnnouncedBuffer announced = copy.Announced();
  announced.role = BufferRole::kOffload;
  copy.Say(RegisterBuffer{announced});
  copy.Update();
  copy.Ready();
  RankCost cost{.transfer = absl::Seconds(5)};
  cost.fill.received = {{"tcp", Distance::kSameHost, true, copy.layout.bytes()}};
  copy.Say(RankDone{copy.key(), 0, cost});
  EXPECT_EQ(totals().moves, 1u);
  EXPECT_EQ(SumOf(totals().stall), absl::ZeroDuration()) << "nobody waits for it";
  EXPECT_EQ(totals().copies_published, 0);
  EXPECT_EQ(totals().fill.received[0].bytes, copy.layout.bytes());
}

TEST_F(CostsTest, AClaimIsAddedUpByCauseAndKind) {
  const uint64_t bytes = rollout_.layout.bytes();
  RankCost cost = GoodCost();
  cost.fill.received = {{"tcp", Distance::kSameRack, true, bytes / 4},
                        {"tcp", Distance::kSameHost, false, bytes - bytes / 4}};
  cost.fill.rerouted_bytes = 1;
  Done(cost);
  const ModelTotals totals = this->totals();
  EXPECT_EQ(totals.stall_of(StallPhase::kTransfer), absl::Milliseconds(30));
  EXPECT_EQ(SumOf(totals.stall), absl::Milliseconds(37));
  EXPECT_EQ(StallListedOf("rollout"), totals.stall);
  EXPECT_EQ(SumOf(StallListedOf("trainer")), absl::ZeroDuration());
  EXPECT_EQ(totals.fill, cost.fill);
  EXPECT_EQ(totals.moves, 1u);
  EXPECT_EQ(totals.publishes, 1u);
  EXPECT_NEAR(totals.copies_published, 0.25, 0.01);
  EXPECT_NEAR(totals.copies_relayed, 0.75, 0.01);
}

TEST_F(CostsTest, TransportsAndWhyOthersWereNotUsedAreListedAndNoted) {
  RankCost cost = GoodCost();
  cost.fill.received = {{"tcp", Distance::kSameRack, true, 1},
                        {"tcp", Distance::kSameHost, false, 2},
                        {"ibverbs", Distance::kSameRack, false, 3}};
  cost.fill.rerouted_bytes = 0;
  cost.fill.passed_over = {{"same_host", "on another host", 2}};
  Done(cost);
  EXPECT_EQ(totals().fill.passed_over, cost.fill.passed_over);
  EXPECT_THAT(hub_.Log(), HasSubstr("over ibverbs, tcp (same_host: on another host)"));
  EXPECT_THAT(Listed().transports.names, ElementsAre("tcp", "ibverbs"));
  EXPECT_EQ(Listed().transports.passed_over, cost.fill.passed_over);
  // The next content came over the transport that brought it.
  trainer_.Unpublish();
  trainer_.Done();
  trainer_.Publish("step-2");
  rollout_.Update();
  rollout_.Ready();
  Done({.fill = {.received = {{"same_host", Distance::kSameHost, true, 3}}}});
  EXPECT_THAT(Listed().transports.names, ElementsAre("same_host"));
  EXPECT_TRUE(Listed().transports.passed_over.empty());
}

TEST_F(CostsTest, WhatAFillIsReadOverIsListedWhileItGoesOn) {
  const auto say = [&](std::optional<TransportsUsed> transports) {
    rollout_.Say(FillProgress{
        rollout_.key(), hub_.model().high_water, SegmentSet(), {}, std::move(transports)});
  };
  say(TransportsUsed{.names = {"tcp"}, .passed_over = {{"same_host", "on another host"}}});
  EXPECT_EQ(Listed().transports.ToString(), "tcp (same_host: on another host)");
  say(std::nullopt);
  EXPECT_EQ(Listed().transports.ToString(), "tcp (same_host: on another host)");
  say(TransportsUsed{.names = {"tcp", "ibverbs"}});
  EXPECT_EQ(Listed().transports.ToString(), "ibverbs, tcp");
  const uint64_t refused = hub_.registry().counters().messages_refused;
  const std::string longest(kMaxTransportNameBytes, 'x');  // that a source can have joined with
  say(TransportsUsed{.names = {longest}, .passed_over = {{longest, "no"}}});
  EXPECT_EQ(Listed().transports.ToString(), absl::StrCat(longest, " (", longest, ": no)"));
  EXPECT_EQ(hub_.registry().counters().messages_refused, refused);
  say(TransportsUsed{.names = {"tcp", "ibverbs"}});
  say(TransportsUsed{.names = {""}});
  say(TransportsUsed{.names = {std::string(kMaxTransportNameBytes + 1, 'x')}});
  say(TransportsUsed{.names = std::vector<std::string>(9, "tcp")});
  say(TransportsUsed{.passed_over = std::vector<PassedOver>(17, {"tcp", "no"})});
  say(TransportsUsed{.passed_over = {{"tcp", std::string(161, 'x')}}});
  EXPECT_EQ(hub_.registry().counters().messages_refused, refused + 5);
  EXPECT_EQ(Listed().transports.ToString(), "ibverbs, tcp");
  Done({.fill = {.received = {{"same_host", Distance::kSameHost, true, 3}}}});
  EXPECT_EQ(Listed().transports.ToString(), "same_host");
}

// Once a reason, while the fill goes on; again only where an update between did without it.
TEST_F(CostsTest, AnEventSaysWhyATransportIsPassedOverWhenTheReasonIsNew) {
  constexpr absl::string_view kEvent = "rollout/0: transport passed over: ";
  const auto count = [&] {
    const std::vector<std::string> parts = absl::StrSplit(hub_.Log(), kEvent);
    return parts.size() - 1;
  };
  const TransportsUsed by_tcp{.names = {"tcp"}, .passed_over = {{"ibverbs", "the link is down"}}};
  const auto say = [&](const TransportsUsed& used) {
    rollout_.Say(FillProgress{rollout_.key(), hub_.model().high_water, SegmentSet(), {}, used});
  };
  const auto done = [&](const TransportsUsed& used) {
    Done({.fill = {.received = {{"tcp", Distance::kSameRack, true, 3}},
                   .passed_over = used.passed_over}});
  };
  const auto update_to = [&](const std::string& label) {
    trainer_.Unpublish();
    trainer_.Done();
    trainer_.Publish(label);
    rollout_.Update();
    rollout_.Ready();
  };
  say(by_tcp);
  EXPECT_THAT(hub_.Log(),
              HasSubstr(absl::StrCat(kEvent, "ibverbs: the link is down (read over tcp) event=")));
  say(by_tcp);
  done(by_tcp);
  EXPECT_EQ(count(), 1);
  update_to("step-2");
  done(by_tcp);  // as before
  EXPECT_EQ(count(), 1);
  update_to("step-3");
  done({});
  update_to("step-4");
  done(by_tcp);  // it had been well meanwhile
  EXPECT_EQ(count(), 2);
}

TEST_F(CostsTest, AnAbsurdClaimIsCountedAsRefusedAndTheUpdateMovesAllTheSame) {
  RankCost cost = GoodCost();
  cost.fill.received[0].bytes = kMost;
  Done(cost);
  EXPECT_EQ(rollout_.Finished().outcome, UpdateOutcome::kMoved);
  const ModelTotals totals = this->totals();
  EXPECT_EQ(totals.claims_refused, 1u);
  EXPECT_EQ(SumOf(totals.stall), absl::ZeroDuration());
  EXPECT_EQ(totals.bytes_received(), 0u);
  EXPECT_THAT(hub_.Log(), HasSubstr("claim refused: it claims"));
}

TEST_F(CostsTest, ARepeatedClaimCountsOnce) {
  Done(GoodCost());
  Done(GoodCost());  // refused: the operation has ended
  EXPECT_EQ(totals().moves, 1u);
  EXPECT_EQ(SumOf(totals().stall), absl::Milliseconds(37));
}

TEST_F(CostsTest, AFailureIsCountedByKindAndCodeWithItsTime) {
  hub_.Advance(absl::Seconds(2));
  rollout_.Fail(absl::DataLossError("torn"));
  const ModelTotals totals = this->totals();
  EXPECT_THAT(totals.failures,
              ElementsAre(FailureCount{.kind = static_cast<uint8_t>(OperationKind::kUpdate),
                                       .code = static_cast<int>(absl::StatusCode::kDataLoss),
                                       .count = 1}));
  EXPECT_EQ(totals.stall_of(StallPhase::kFailed), absl::Seconds(2));
  EXPECT_EQ(StallListedOf("rollout"), totals.stall);
}

TEST_F(CostsTest, APublishThatFailsTakesNoBufferAwayAndIsNoStall) {
  TestRank half(hub_, "half", 0, 2), other(hub_, "half", 1, 2);
  half.JoinAndRegister();
  other.JoinAndRegister();
  StartOperation impatient = half.PublishRequest("step-2");
  impatient.timeout = absl::Seconds(1);
  half.Start(impatient);
  hub_.Advance(absl::Seconds(2));
  EXPECT_FALSE(half.Finished().status.ok());
  EXPECT_EQ(totals().failures.size(), 1u);
  EXPECT_EQ(totals().stall_of(StallPhase::kFailed), absl::ZeroDuration());
  const SecondsHistogram stalls = hub_.registry().Figures().at(0).stall_seconds;
  EXPECT_EQ(std::accumulate(stalls.counts.begin(), stalls.counts.end(), uint64_t{0}), 0u);
}

TEST_F(CostsTest, ADrainIsCountedWithTheReadersThatItCut) {
  trainer_.Unpublish();
  trainer_.Say(RankDone{trainer_.key(), 3, {.queue = absl::Seconds(5)}});
  EXPECT_EQ(totals().drains, 1u);
  EXPECT_EQ(totals().readers_cut, 3u);
  EXPECT_EQ(totals().stall_of(StallPhase::kDrain), absl::Seconds(5));
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer/0: readers cut: 3 readers"));
}

TEST_F(CostsTest, AnExpiredLeaseIsCountedAndNoted) {
  rollout_.Disconnect();
  hub_.Advance(absl::Seconds(4));
  trainer_.Say(Heartbeat{});
  hub_.Advance(absl::Seconds(2));
  EXPECT_EQ(totals().leases_expired, 1u);
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("rollout/0: lease expired: worker "),
                                HasSubstr(" on host host-rollout: its lease has ended")));
}

// ---- one id from the server to every rank, and to sources

TEST_F(CostsTest, AllThatIsSaidOfAnOperationNamesOneEvent) {
  const EventId event = rollout_.Heard<OperationResolved>().event;
  EXPECT_EQ(event.epoch(), hub_.epoch());
  const AssignSources assigned = rollout_.Heard<AssignSources>();
  EXPECT_EQ(assigned.event, event);
  ASSERT_EQ(assigned.sources.size(), 1u);
  EXPECT_EQ(EventOf(assigned.sources[0].capability.claims), event);
  Done(GoodCost());
  EXPECT_EQ(rollout_.Finished().event, event);
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("update began: to "), HasSubstr("update moved: "),
                                HasSubstr(EventSuffix(event))));
}

TEST_F(CostsTest, ARerouteKeepsTheEvent) {
  const AssignSources first = rollout_.Heard<AssignSources>();
  rollout_.assignment = first.assignment;
  TestRank other = Rollout(hub_, "other");
  other.Update();
  other.FillWhole();
  rollout_.Report(first.sources.at(0), SourceFailure::kStalled, "silent for 0.5 s");
  const AssignSources second = rollout_.Heard<AssignSources>();
  EXPECT_EQ(second.event, first.event);
  EXPECT_GT(second.assignment, first.assignment);
  EXPECT_THAT(hub_.Log(), AllOf(HasSubstr("rollout/0: source failed: step-1 from trainer/0, which "
                                          "fell silent: silent for 0.5 s" +
                                          EventSuffix(first.event)),
                                HasSubstr("re-routed: fills ")));
  EXPECT_EQ(totals().sources_failed, 1u);
}

TEST_F(CostsTest, AnOperationUnderWayIsListedWithItsEvent) {
  const EventId event = rollout_.Heard<OperationResolved>().event;
  hub_.Advance(absl::Seconds(1));
  const Catalog catalog = hub_.List();
  for (const CatalogReplica& replica : catalog.models.at(0).versions.at(0).replicas) {
    const bool fills = replica.group == "rollout";
    EXPECT_EQ(replica.event, fills ? event : EventId()) << replica.group;
    if (!fills) continue;
    EXPECT_EQ(replica.operation, OperationKind::kUpdate);
    EXPECT_EQ(replica.operation_since, absl::Seconds(1));
  }
}

TEST_F(CostsTest, FiguresCountVersionsAndReplicasByState) {
  const std::vector<ModelFigures> figures = hub_.registry().Figures();
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].versions, 1u);
  EXPECT_EQ(figures[0].replicas,
            (std::map<std::string, uint64_t>{{"filling", 1}, {"idle", 0}, {"published", 1}}));
  EXPECT_EQ(figures[0].totals, totals());
}

TEST_F(CostsTest, UpdatesAndStallsAreInHistograms) {
  hub_.Advance(absl::Seconds(2));
  Done(GoodCost());  // 37 ms of the rank's
  const ModelFigures figures = hub_.registry().Figures().at(0);
  EXPECT_EQ(figures.update_seconds.sum, absl::Seconds(2));
  EXPECT_THAT(figures.update_seconds.counts, ElementsAre(0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(figures.stall_seconds.sum, absl::Milliseconds(37));
  EXPECT_THAT(figures.stall_seconds.counts, ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(RankStallTest, ARankThatCameLateHasWaitedSinceThen) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  PublishWhole(trainer, "step-1");
  std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
  rollout[0].Update();
  PassAlive(hub, {&rollout[0], &rollout[1], &trainer[0], &trainer[1]}, absl::Seconds(20));
  rollout[1].Update();
  hub.Advance(absl::Seconds(1));
  rollout[0].Fail(absl::DataLossError("torn"));
  const CatalogModel model = hub.List().models.at(0);
  std::vector<CatalogReplica> replicas = model.idle;
  for (const CatalogVersion& version : model.versions) {
    replicas.insert(replicas.end(), version.replicas.begin(), version.replicas.end());
  }
  for (const CatalogReplica& replica : replicas) {
    if (replica.group != "rollout") continue;
    EXPECT_EQ(SumOf(replica.ranks.at(0).stall), absl::Seconds(21));
    EXPECT_EQ(SumOf(replica.ranks.at(1).stall), absl::Seconds(1));
  }
  EXPECT_EQ(SumOf(model.totals.stall), absl::Seconds(22));
}

// Each rank's stall in one operation is one sample, also if it was done before the operation ended.
TEST(RankStallTest, ARankThatWaitsForTheOthersHasOneSampleHoweverItEnds) {
  for (const bool fails : {false, true}) {
    RegistryHarness hub;
    std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
    PublishWhole(trainer, "step-1");
    std::vector<TestRank> rollout = JoinedGroup(hub, "rollout", 2);
    for (TestRank& rank : rollout) rank.Update();
    for (TestRank& rank : rollout) rank.Ready();
    rollout[0].Say(RankDone{rollout[0].key(), 0, {.transfer = absl::Seconds(1)}});
    hub.Advance(absl::Seconds(2));
    if (fails) {
      rollout[1].Fail(absl::DataLossError("torn"));
    } else {
      rollout[1].Say(RankDone{rollout[1].key(), 0, {.transfer = absl::Seconds(3)}});
    }
    const ModelFigures figures = hub.registry().Figures().at(0);
    const auto& counts = figures.stall_seconds.counts;
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), uint64_t{0}), 2u) << fails;
    // The first waited 1 s and then 2 s for the other; that one 3 s, or 2 s for nothing.
    EXPECT_EQ(figures.stall_seconds.sum, absl::Seconds(fails ? 5 : 6)) << fails;
  }
}

TEST_F(CostsTest, AnUpdateThatFailsIsAStallOfItsRanksAndCountsItsReroutes) {
  const AssignSources first = rollout_.Heard<AssignSources>();
  rollout_.assignment = first.assignment;
  TestRank other = Rollout(hub_, "other");
  other.Update();
  other.FillWhole();
  rollout_.Report(first.sources.at(0), SourceFailure::kStalled, "silent for 0.5 s");
  rollout_.Heard<AssignSources>();
  EXPECT_EQ(totals().fill.reroutes, 0u);
  const uint64_t before = hub_.registry().Figures().at(0).stall_seconds.counts.back();
  hub_.Advance(absl::Seconds(1));
  rollout_.Fail(absl::CancelledError("enough"));
  EXPECT_EQ(totals().fill.reroutes, 1u);
  EXPECT_EQ(before, 0u);
  EXPECT_EQ(hub_.registry().Figures().at(0).stall_seconds.counts[5], 1u);  // up to 1 s
}

TEST_F(CostsTest, FiguresSayHowFarGroupsAreBehindAndWhenTheyPublished) {
  const auto of = [&](const std::string& name) {
    const ModelFigures figures = hub_.registry().Figures().at(0);
    for (const GroupFigures& group : figures.groups) {
      if (group.group == name) return group;
    }
    return GroupFigures();
  };
  EXPECT_EQ(of("rollout").versions_behind, 1u) << "it fills step-1 and holds none";
  EXPECT_EQ(of("rollout").published_at, std::nullopt);
  EXPECT_EQ(of("trainer").versions_behind, 0u);
  const std::optional<absl::Time> published = of("trainer").published_at;
  ASSERT_TRUE(published.has_value());
  Done(GoodCost());
  EXPECT_EQ(of("rollout").versions_behind, 0u);
  hub_.Advance(absl::Seconds(1));
  trainer_.Unpublish();
  trainer_.Done();
  trainer_.Publish("step-2");
  EXPECT_EQ(of("rollout").versions_behind, 1u);
  EXPECT_EQ(of("trainer").published_at, *published + absl::Seconds(1));
  EXPECT_EQ(hub_.registry().Figures().at(0).most_versions_behind, 1u);
}

TEST_F(CostsTest, GroupsBeyondTheLimitAreCountedOnly) {
  std::vector<std::unique_ptr<TestRank>> ranks;
  for (size_t i = 0; i < kMaxGroupFiguresOfModel; ++i) {
    ranks.push_back(std::make_unique<TestRank>(hub_, absl::StrCat("g", i), 0, 1));
    ranks.back()->JoinAndRegister();
  }
  const ModelFigures figures = hub_.registry().Figures().at(0);
  EXPECT_EQ(figures.groups.size(), kMaxGroupFiguresOfModel);
  EXPECT_EQ(figures.groups_left_out, 2u);
}

TEST_F(CostsTest, ARetainedVersionThatIsDroppedIsNoted) {
  EXPECT_OK(hub_.Command({"k", SetRetention{1}}).status);
  rollout_.Fail(absl::CancelledError("enough"));
  trainer_.Unpublish();
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("retained version lost"))) << "it drains";
  trainer_.Done();
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer: retained version lost: step-1"));
}

}  // namespace
}  // namespace th
