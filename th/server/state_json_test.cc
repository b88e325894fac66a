#include "th/server/state_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace th {
namespace {

using Json = nlohmann::json;

CatalogRank RankOf(const std::string& group, uint32_t rank, const std::string& host_name) {
  return {.name = {group, Rank(rank)},
          .location = {.site = "eu", .rack = "r7", .host = "boot-id", .host_name = host_name},
          .bytes = 1000,
          .bytes_held = 250};
}

StatusSnapshot Sample() {
  StatusSnapshot snapshot{.workers = 5,
                          .wall = absl::FromUnixMillis(1'700'000'000'125),
                          .uptime = absl::Seconds(90.5),
                          .address = "10.0.0.1:7077",
                          .version = "0.1"};
  snapshot.epoch = Epoch(3);
  CatalogModel model{.key = {"r1", "m"}, .keep_latest = 2};
  CatalogReplica filling{.group = "rollout",
                         .buffer_name = "weights",
                         .form = "hf",
                         .state = "filling",
                         .event = EventId::Of(Epoch(3), 17),
                         .operation = OperationKind::kUpdate,
                         .operation_since = absl::Seconds(3.5)};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    filling.ranks.push_back(RankOf("rollout", rank, absl::StrCat("node-", rank)));
    filling.ranks.back().sources = {{"trainer", Rank(rank)}, {"trainer", Rank(rank + 2)}};
    filling.ranks.back().transports.names = {"tcp"};
  }
  filling.ranks[1].sources.push_back({"rollout-2", Rank(1)});
  filling.ranks[1].connected = false;
  model.versions.push_back(
      {.info = {.sequence = VersionSequence::Of(Epoch(3), 2), .label = VersionLabel::FromStep(8)},
       .published = true,
       .bytes = 4096,
       .pins = {{.owner = "eval"}},
       .lost_forms = {"fp8"},
       .replicas = {filling}});
  model.idle.push_back({.group = "late", .state = "idle"});
  model.totals.stall[static_cast<size_t>(StallPhase::kTransfer)] = absl::Milliseconds(1500);
  snapshot.catalog.models.push_back(model);
  snapshot.events.events.push_back({.number = 1,
                                    .id = EventId::Of(Epoch(3), 17),
                                    .kind = EventKind::kUpdateBegan,
                                    .at = absl::FromUnixMillis(1'700'000'000'125),
                                    .key = model.key,
                                    .who = "rollout",
                                    .what = "to 8"});
  return snapshot;
}

TEST(StateJsonTest, TheServerDescribesItself) {
  EXPECT_EQ(Json::parse(RenderStateJson(Sample()))["server"],
            Json({{"address", "10.0.0.1:7077"},
                  {"version", "0.1"},
                  {"epoch", 3},
                  {"uptime_s", 90.5},
                  {"time", "2023-11-14T22:13:20.125Z"},
                  {"workers", 5},
                  {"models_left_out", 0},
                  {"recovering", false}}));
}

TEST(StateJsonTest, AReplicaIsTheSumOfItsRanks) {
  const Json model = Json::parse(RenderStateJson(Sample()))["models"][0];
  EXPECT_EQ(
      model["replicas"][0],
      Json({{"group", "rollout"},
            {"buffer", "weights"},
            {"form", "hf"},
            {"role", "primary"},
            {"state", "filling"},
            {"version", "3.2"},
            {"label", "8"},
            {"publisher", false},
            {"ranks", 2},
            {"connected", 1},
            {"bytes", 2000},
            {"held", 500},
            {"site", "eu"},
            {"rack", "r7"},
            {"hosts", {"node-0", "node-1"}},
            {"readers", 0},
            {"sources", Json::array({Json::array({"rollout-2", 1}), Json::array({"trainer", 2})})},
            {"transports", {"tcp"}},
            {"operation", "update"},
            {"operation_s", 3.5},
            {"event", "3-17"}}));
  EXPECT_EQ(model["replicas"][1]["group"], "late");
  EXPECT_EQ(model["replicas"][1]["version"], "") << "it holds nothing";
  EXPECT_EQ(model["stall_s"]["transfer"], 1.5);
}

TEST(StateJsonTest, TheRanksThatWaitedLongestAreListedByPhase) {
  StatusSnapshot snapshot = Sample();
  CatalogReplica& rollout = snapshot.catalog.models[0].versions[0].replicas[0];
  rollout.ranks[1].stall[static_cast<size_t>(StallPhase::kQueue)] = absl::Seconds(2);
  for (uint32_t rank = 0; rank < kMaxStalledRanksInState; ++rank) {
    snapshot.catalog.models[0].idle[0].ranks.push_back(RankOf("late", rank, "node"));
    snapshot.catalog.models[0].idle[0].ranks.back().stall[0] = absl::Seconds(10 + rank);
  }
  Json longest = Json::parse(RenderStateJson(snapshot))["models"][0]["longest_stalls"];
  EXPECT_EQ(longest.size(), kMaxStalledRanksInState) << "the shortest is left out";
  EXPECT_EQ(longest[0]["rank"], "late/15");
  EXPECT_EQ(longest[0]["stall_s"]["resolve"], 25);

  snapshot.catalog.models[0].idle[0].ranks.clear();
  longest = Json::parse(RenderStateJson(snapshot))["models"][0]["longest_stalls"];
  ASSERT_EQ(longest.size(), 1u) << "who has not waited is not listed";
  EXPECT_EQ(longest[0]["rank"], "rollout/1");
  EXPECT_EQ(longest[0]["stall_s"]["queue"], 2);
}

TEST(StateJsonTest, OfTooManyModelsThoseThatAreUsedAreListed) {
  StatusSnapshot snapshot = Sample();
  const CatalogModel used = snapshot.catalog.models[0];
  snapshot.catalog.models.clear();
  for (size_t i = 0; i < kMaxModelsInState + 5; ++i) {
    snapshot.catalog.models.push_back({.key = {"gone", absl::StrCat("m", i)}});
  }
  snapshot.catalog.models.push_back(used);
  const Json state = Json::parse(RenderStateJson(snapshot));
  EXPECT_EQ(state["models"].size(), kMaxModelsInState);
  EXPECT_EQ(state["models"][0]["run"], "r1");
  EXPECT_EQ(state["server"]["models_left_out"], 6);
}

TEST(StateJsonTest, VersionsAndEventsAreThere) {
  const Json state = Json::parse(RenderStateJson(Sample()));
  EXPECT_EQ(state["models"][0]["versions"][0], Json({{"number", "3.2"},
                                                     {"label", "8"},
                                                     {"bytes", 4096},
                                                     {"published", true},
                                                     {"withdrawn", false},
                                                     {"lost", true},
                                                     {"pins", 1}}));
  EXPECT_EQ(state["events"][0], Json({{"n", 1},
                                      {"time", "2023-11-14T22:13:20.125Z"},
                                      {"kind", "update began"},
                                      {"id", "3-17"},
                                      {"run", "r1"},
                                      {"model", "m"},
                                      {"who", "rollout"},
                                      {"what", "to 8"}}));
}

TEST(StateJsonTest, ReplicasThatSpreadOverRacksAreInNone) {
  StatusSnapshot snapshot = Sample();
  snapshot.catalog.models[0].versions[0].replicas[0].ranks[0].location.rack = "r8";
  const Json replica = Json::parse(RenderStateJson(snapshot))["models"][0]["replicas"][0];
  EXPECT_EQ(replica["rack"], "");
  EXPECT_EQ(replica["site"], "eu");
}

TEST(StateJsonTest, WhatIsBeyondTheLimitsIsCounted) {
  StatusSnapshot snapshot = Sample();
  CatalogModel& model = snapshot.catalog.models[0];
  model.versions[0].replicas.resize(kMaxReplicasInState + 3, {.group = "g", .state = "complete"});
  model.versions.resize(kMaxVersionsInState + 1, model.versions[0]);
  for (size_t i = 1; i < model.versions.size(); ++i) model.versions[i].replicas.clear();
  const Json state = Json::parse(RenderStateJson(snapshot))["models"][0];
  EXPECT_EQ(state["replicas"].size(), kMaxReplicasInState);
  EXPECT_EQ(state["left_out"], 4) << "the idle one too";
  EXPECT_EQ(state["versions"].size(), kMaxVersionsInState);
}

TEST(StateJsonTest, BytesThatAreNoTextAreReplaced) {
  StatusSnapshot snapshot = Sample();
  snapshot.events.events[0].what = "\xff";
  EXPECT_EQ(Json::parse(RenderStateJson(snapshot))["events"][0]["what"], "\xef\xbf\xbd");
}

}  // namespace
}  // namespace th
