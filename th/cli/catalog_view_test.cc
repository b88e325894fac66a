#include "th/cli/catalog_view.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::StatusIs;

CatalogRank ARank(std::string group, uint32_t rank, uint64_t held) {
  return {.name = {.group = std::move(group), .rank = Rank(rank)},
          .worker = WorkerId(7),
          .buffer_name = "weights",
          .endpoints = {{.address = "10.0.0.7:4711"}},
          .layout = Sha256("layout"),
          .bytes = 1000,
          .bytes_held = held,
          .since_heard = absl::Milliseconds(200)};
}

CatalogReplica AReplica(std::string group, std::string state, uint64_t held) {
  return {.group = group,
          .buffer_name = "weights",
          .form = "hf",
          .state = std::move(state),
          .ranks = {ARank(group, 0, held)}};
}

CatalogVersion AVersion(uint32_t number, const std::string& label) {
  CatalogVersion version{.published = true, .sealed = true, .bytes = 1000};
  version.info.sequence = VersionSequence::Of(Epoch(1), number);
  version.info.label = *VersionLabel::Parse(label);
  return version;
}

CatalogModel AModel() {
  CatalogModel model{.key = {.run = "r1", .model = "qwen"}};
  CatalogVersion newest = AVersion(2, "step-2");
  newest.info.attributes = {{"loss", "0.5"}};
  newest.pins = {{.owner = "eval"}};
  newest.shards = {{.layout = Sha256("layout"), .root = Sha256("root")}};
  newest.replicas = {AReplica("trainer", "published", 1000), AReplica("rollout-1", "filling", 999)};
  newest.replicas[0].publisher = true;
  newest.replicas[1].ranks[0].sources = {{.group = "trainer", .rank = Rank(0)}};
  newest.replicas[1].ranks[0].transports = {.names = {"tcp"},
                                            .passed_over = {{"same_host", "on another host"}}};
  CatalogVersion withdrawn = AVersion(1, "step-1");
  withdrawn.withdrawn = true;
  model.versions = {newest, withdrawn};
  model.idle = {AReplica("rollout-2", "idle", 0)};
  return model;
}

TEST(CatalogTableTest, SaysWhenThereIsNothing) {
  EXPECT_EQ(CatalogTable({}), "nothing is published and nobody has joined\n");
}

TEST(CatalogTableTest, HasALineAReplicaAndOneForWhoHoldsNothing) {
  EXPECT_EQ(CatalogTable({.models = {AModel()}}),
            "RUN  MODEL  VERSION        STATE           GROUP      FORM  HOLDS                 "
            "RANKS   HELD    BYTES  OVER\n"
            "r1   qwen   step-2 (#1.2)  sealed, pinned  trainer    hf    published, publisher      "
            "1  100 %  1.00 kB  -\n"
            "r1   qwen   step-2 (#1.2)  sealed, pinned  rollout-1  hf    filling                   "
            "1   99 %  1.00 kB  tcp (same_host: on another host)\n"
            "r1   qwen   step-1 (#1.1)  withdrawn       nobody\n"
            "r1   qwen   -              -               rollout-2  hf    idle                      "
            "1      -  1.00 kB  -\n");
}

TEST(CatalogTableTest, IsLimitedToTheNewestVersionsOfEachModel) {
  Catalog catalog{.models = {AModel(), AModel()}};
  ASSERT_EQ(catalog.models[0].versions.size(), 2u);
  EXPECT_EQ(LimitVersions(2, catalog), 0u);
  EXPECT_EQ(LimitVersions(1, catalog), 2u);
  for (const CatalogModel& model : catalog.models) {
    ASSERT_EQ(model.versions.size(), 1u);
    EXPECT_EQ(model.versions[0].info.label.text(), "step-2");
    EXPECT_FALSE(model.idle.empty());
  }
}

TEST(CatalogTableTest, SaysThatTheServerHasRestartedWhileRanksMayComeBack) {
  EXPECT_THAT(CatalogTable({.recovering = true}), HasSubstr("ranks may still come back"));
  EXPECT_EQ(ToJson(Catalog{.recovering = true})["recovering"], true);
}

TEST(CatalogTableTest, WhatIsRetainedAndNobodyHasIsLost) {
  CatalogModel model{.key = {.run = "r1", .model = "qwen"}};
  CatalogVersion& lost = model.versions.emplace_back();  // as after a restart: without a label
  lost.info.sequence = VersionSequence::Of(Epoch(1), 2);
  lost.pins = {{.owner = "eval"}};
  lost.lost_forms = {""};
  EXPECT_THAT(CatalogTable({.models = {model}}), HasSubstr("#1.2     LOST, pinned  nobody"));
  EXPECT_THAT(DescribeVersion(model, lost), HasSubstr("LOST\n"));
  EXPECT_THAT(DescribeVersion(model, lost), HasSubstr("th release '#1.2' --owner eval\n"));
  EXPECT_EQ(ToJson(lost)["state"], "LOST");
  lost.replicas = {AReplica("trainer", "published", 1000)};
  lost.published = true;
  lost.lost_forms = {};
  EXPECT_EQ(ToJson(lost)["state"], "published");
}

TEST(CatalogTableTest, NamesTheFormsThatAreLost) {
  CatalogModel model = AModel();
  CatalogVersion& version = model.versions[0];
  version.pins = {{.owner = "eval", .form = "fp8"}};
  version.lost_forms = {"fp8"};
  EXPECT_THAT(CatalogTable({.models = {model}}), HasSubstr("sealed, LOST in form fp8, pinned"));
  const std::string text = DescribeVersion(model, version);
  EXPECT_THAT(text, HasSubstr("nobody holds it in form fp8: publish it again"));
  EXPECT_THAT(text, HasSubstr("th release '#1.2' --owner eval --form fp8\n"));
  version.pins.clear();  // a policy retains it
  EXPECT_THAT(DescribeVersion(model, version), HasSubstr("publish it again\n"));
}

TEST(CatalogTableTest, SaysThatWhatNobodyHasBroughtBackIsAnotherVersionNow) {
  CatalogModel model = AModel();
  CatalogVersion& version = model.versions[0];
  version.pins = {{.owner = "eval"}};
  version.lost_forms = {""};
  EXPECT_THAT(DescribeVersion(model, version),
              HasSubstr("is another version, to be pinned anew; or give this one up:\n"));
}

TEST(DescribeVersionTest, TellsWhenPinsExpire) {
  CatalogModel model = AModel();
  model.versions[0].pins = {{.owner = "eval", .form = "fp8", .expires_in = absl::Seconds(90)}};
  EXPECT_THAT(DescribeVersion(model, model.versions[0]),
              HasSubstr("pinned   by eval in form fp8 for another 1m30s\n"));
  EXPECT_EQ(ToJson(model.versions[0])["pins"][0]["seconds_until_expiry"], 90);
}

TEST(CatalogJsonTest, HoldsModelsVersionsReplicasAndRanks) {
  const nlohmann::json json = ToJson(Catalog{.epoch = Epoch(3), .models = {AModel()}});
  EXPECT_EQ(json["epoch"], 3);
  const nlohmann::json& model = json["models"][0];
  EXPECT_EQ(model["run"], "r1");
  EXPECT_EQ(model["versions"][0]["label"], "step-2");
  EXPECT_EQ(model["versions"][0]["attributes"]["loss"], "0.5");
  const nlohmann::json& filling = model["versions"][0]["replicas"][1]["ranks"][0];
  EXPECT_EQ(filling["sources"][0], "trainer/0");
  EXPECT_EQ(filling["transports"][0], "tcp");
  EXPECT_EQ(filling["passed_over"][0]["reason"], "on another host");
  EXPECT_EQ(model["versions"][1]["withdrawn"], true);
  EXPECT_EQ(model["idle"][0]["group"], "rollout-2");
}

TEST(DescribeVersionTest, TellsPinsAttributesRootsAndWhoFillsFromWhom) {
  const CatalogModel model = AModel();
  const std::string text = DescribeVersion(model, model.versions[0]);
  for (const std::string& part :
       {std::string("run=r1 model=qwen version=step-2 (#1.2)"), std::string("pinned   by eval"),
        std::string("attribute loss=0.5"), Sha256("root").ToHex(),
        std::string("trainer (published, publisher)"), std::string("tcp 10.0.0.7:4711"),
        std::string("0.2 s ago")}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, HasSubstr("rollout-1/0  " + Sha256("layout").ShortHex() +
                              "  999 B  1.00 kB  trainer/0"));
}

TEST(DescribeVersionTest, SaysWhichRanksAreCutOff) {
  CatalogModel model = AModel();
  model.versions[0].replicas[1].ranks[0].connected = false;
  EXPECT_THAT(DescribeVersion(model, model.versions[0]), HasSubstr("disconnected"));
}

TEST(DescribeVersionTest, TellsTheOperationUnderWayWithItsEvent) {
  CatalogModel model = AModel();
  CatalogReplica& filling = model.versions[0].replicas[1];
  filling.event = EventId::Of(Epoch(1), 9);
  filling.operation = OperationKind::kUpdate;
  filling.operation_since = absl::Milliseconds(1500);
  EXPECT_THAT(DescribeVersion(model, model.versions[0]),
              HasSubstr("form hf, update for 1.5 s event=1-9\n"));
  const nlohmann::json json = ToJson(model.versions[0]);
  EXPECT_EQ(json["replicas"][1]["event"], "1-9");
  EXPECT_EQ(json["replicas"][1]["operation_seconds"], 1.5);
  EXPECT_FALSE(json["replicas"][0].contains("event"));
}

TEST(CatalogJsonTest, HasWhatTheModelCost) {
  CatalogModel model = AModel();
  model.totals.stall[static_cast<size_t>(StallPhase::kVerify)] = absl::Milliseconds(250);
  model.totals.fill.received = {{"tcp", Distance::kOtherSite, false, 12}};
  model.totals.fill.reroutes = 3;
  const nlohmann::json totals = ToJson(Catalog{.models = {model}})["models"][0]["totals"];
  EXPECT_EQ(totals["stall_seconds"]["verify"], 0.25);
  EXPECT_EQ(totals["received"][0]["source"], "relay");
  EXPECT_EQ(totals["received"][0]["bytes"], 12);
  EXPECT_EQ(totals["reroutes"], 3);
}

TEST(SelectVersionTest, FindsByLabelSequenceAndLatest) {
  const CatalogModel model = AModel();
  for (const char* name : {"latest", "step-2", "#1.2"}) {
    ASSERT_OK_AND_ASSIGN(const VersionSelector selector, ParseVersionSelector(name));
    ASSERT_OK_AND_ASSIGN(const CatalogVersion* version, SelectVersion(model, selector));
    EXPECT_EQ(version->info.label.text(), "step-2") << name;
  }
}

TEST(SelectVersionTest, FindsAWithdrawnVersionByItsLabelWhereNoOtherHasIt) {
  CatalogModel model = AModel();
  EXPECT_OK(SelectVersion(model, VersionSequence::Of(Epoch(1), 1)));
  const VersionLabel label = *VersionLabel::Parse("step-1");
  ASSERT_OK_AND_ASSIGN(const CatalogVersion* withdrawn, SelectVersion(model, label));
  EXPECT_THAT(DescribeVersion(model, *withdrawn), HasSubstr("a roll-back withdrew it"));
  EXPECT_THAT(SelectVersion(model, *VersionLabel::Parse("step-9")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-9")));

  model.versions.push_back(
      {.info = {.sequence = VersionSequence::Of(Epoch(1), 0), .label = label}, .published = true});
  ASSERT_OK_AND_ASSIGN(const CatalogVersion* stands, SelectVersion(model, label));
  EXPECT_FALSE(stands->withdrawn);
}

TEST(DescribeGroupTest, TellsWhatAGroupHoldsOrThatItHoldsNothing) {
  const CatalogModel model = AModel();
  ASSERT_OK_AND_ASSIGN(const std::string filling, DescribeGroup(model, "rollout-1"));
  EXPECT_THAT(filling, HasSubstr("rollout-1 (step-2 (#1.2), filling)"));
  EXPECT_THAT(filling, Not(HasSubstr("trainer (")));
  ASSERT_OK_AND_ASSIGN(const std::string idle, DescribeGroup(model, "rollout-2"));
  EXPECT_THAT(idle, HasSubstr("holds nothing"));
  EXPECT_THAT(DescribeGroup(model, "nobody"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"nobody\"")));
}

TEST(DescribeGroupTest, TheJsonNamesTheVersionOfEachReplica) {
  ASSERT_OK_AND_ASSIGN(const nlohmann::json json, GroupToJson(AModel(), "trainer"));
  EXPECT_EQ(json["replicas"][0]["version"], "step-2 (#1.2)");
  EXPECT_THAT(GroupToJson(AModel(), "nobody"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace th
