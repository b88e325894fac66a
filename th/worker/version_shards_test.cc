#include "th/worker/version_shards.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

const ModelKey kKey = {.run = "r1", .model = "m"};
const VersionSequence kFirst = VersionSequence::Of(Epoch(1), 1);
const Digest kLeft = Sha256("left"), kRight = Sha256("right"), kOther = Sha256("other");

CatalogReplica Replica(std::string group, std::string state, std::vector<Digest> layouts) {
  CatalogReplica replica{
      .group = std::move(group), .buffer_name = "weights", .form = "hf", .state = std::move(state)};
  for (const Digest& layout : layouts) replica.ranks.push_back({.layout = layout, .bytes = 10});
  return replica;
}

Catalog WithReplicas(std::vector<CatalogReplica> replicas) {
  CatalogVersion version{.shards = {{.layout = kLeft, .root = Sha256("root")}},
                         .replicas = std::move(replicas)};
  version.info.sequence = kFirst;
  return {.models = {{.key = kKey, .versions = {version}}}};
}

TEST(FindVersionShardsTest, GivesEachDistinctShardOnceWithItsRoot) {
  const Catalog catalog =
      WithReplicas({Replica("trainer", "published", {kLeft, kRight, kLeft, kRight})});
  ASSERT_OK_AND_ASSIGN(const VersionShards found, FindVersionShards(catalog, kKey, kFirst, "hf"));
  ASSERT_THAT(found.shards, SizeIs(2));
  EXPECT_EQ(found.shards[0].layout, kLeft);
  EXPECT_EQ(found.shards[0].root, Sha256("root"));
  EXPECT_TRUE(found.shards[1].root.empty());
  EXPECT_EQ(found.bytes, 20u);
  EXPECT_EQ(found.buffer_name, "weights");
}

TEST(FindVersionShardsTest, PrefersThePublisherAndNeverTakesAPartialReplica) {
  CatalogReplica publisher = Replica("trainer", "published", {kLeft});
  publisher.publisher = true;
  const Catalog catalog = WithReplicas(
      {Replica("filling", "filling", {kOther}), Replica("copy", "complete", {kRight}), publisher});
  ASSERT_OK_AND_ASSIGN(const VersionShards found, FindVersionShards(catalog, kKey, kFirst, "hf"));
  EXPECT_EQ(found.shards[0].layout, kLeft);
}

TEST(FindVersionShardsTest, AVersionThatNobodyHoldsNamesTheNewestThatIsHeld) {
  Catalog catalog = WithReplicas({Replica("copy", "complete", {kRight})});
  CatalogVersion& held = catalog.models[0].versions[0];
  held.published = true;
  CatalogVersion newest;
  newest.published = true;
  newest.info.sequence = VersionSequence::Of(Epoch(1), 2);
  catalog.models[0].versions.insert(catalog.models[0].versions.begin(), newest);
  const auto why = [&] {
    return std::string(
        FindVersionShards(catalog, kKey, newest.info.sequence, "hf").status().message());
  };
  EXPECT_THAT(why(), HasSubstr("#1.1"));
  EXPECT_THAT(why(), HasSubstr("th rollback"));
  catalog.models[0].versions[1].withdrawn = true;
  EXPECT_THAT(why(), HasSubstr("no other version is held in it either"));
}

TEST(FindVersionShardsTest, TakesACopyOnceThePublisherHasGone) {
  const Catalog catalog = WithReplicas({Replica("copy", "complete", {kRight})});
  ASSERT_OK_AND_ASSIGN(const VersionShards found, FindVersionShards(catalog, kKey, kFirst, "hf"));
  EXPECT_EQ(found.shards[0].layout, kRight);
}

TEST(FindVersionShardsTest, TakesAReplicaThatLeaves) {
  const Catalog catalog = WithReplicas({Replica("trainer", "leaving", {kRight})});
  ASSERT_OK_AND_ASSIGN(const VersionShards found, FindVersionShards(catalog, kKey, kFirst, "hf"));
  EXPECT_EQ(found.shards[0].layout, kRight);
}

TEST(FindVersionShardsTest, NamesWhatIsNotThere) {
  const Catalog catalog = WithReplicas({Replica("filling", "filling", {kLeft})});
  EXPECT_THAT(FindVersionShards(catalog, {.run = "r2", .model = "m"}, kFirst, "hf"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("run=r2")));
  EXPECT_THAT(FindVersionShards(catalog, kKey, VersionSequence::Of(Epoch(1), 2), "hf"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("#1.2")));
  EXPECT_THAT(FindVersionShards(catalog, kKey, kFirst, "hf"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody holds all")));
  EXPECT_THAT(
      FindVersionShards(WithReplicas({Replica("t", "published", {kLeft})}), kKey, kFirst, "fused"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"fused\"")));
}

CatalogReplica Offering(CatalogReplica replica, const std::string& transport) {
  for (CatalogRank& rank : replica.ranks) rank.endpoints.push_back({.transport = transport});
  return replica;
}

TEST(FindHoldersTest, TellsWhoIsConnectedAndOverWhatTheyCanBeRead) {
  CatalogReplica lost = Offering(Replica("lost", "complete", {kLeft, kRight}), "ibverbs");
  lost.ranks[1].connected = false;
  CatalogReplica other_form = Replica("fused", "complete", {kLeft});
  other_form.form = "fused";
  const Catalog catalog = WithReplicas({Offering(Replica("trainer", "published", {kLeft}), "tcp"),
                                        lost, other_form, Replica("filling", "filling", {kLeft})});
  const VersionHolders holders = FindHolders(catalog, kKey, kFirst, "hf");
  EXPECT_THAT(holders.connected, ElementsAre("trainer"));
  EXPECT_THAT(holders.disconnected, ElementsAre("lost"));
  EXPECT_THAT(holders.transports, ElementsAre("tcp"));
}

TEST(FindHoldersTest, OfAVersionThatIsNotThereThereAreNone) {
  EXPECT_THAT(FindHolders({}, kKey, kFirst, "hf").connected, IsEmpty());
}

// Versions 1 to `count`, the newest first, as the server lists them.
Catalog WithVersions(uint64_t count) {
  Catalog catalog{.models = {{.key = kKey}}};
  for (uint64_t number = count; number > 0; --number) {
    CatalogVersion version{.published = true,
                           .replicas = {Replica("trainer", "published", {kLeft})}};
    version.info = {.sequence = VersionSequence::Of(Epoch(1), number),
                    .label = *VersionLabel::Parse("step-" + std::to_string(number))};
    catalog.models[0].versions.push_back(version);
  }
  return catalog;
}

TEST(NameHeldVersionsTest, NamesTheNewestAndCountsTheRest) {
  EXPECT_EQ(NameHeldVersions(WithVersions(2), kKey, "hf"), "held are step-2, step-1");
  EXPECT_EQ(NameHeldVersions(WithVersions(10), kKey, "hf"),
            "held are step-10, step-9, step-8, step-7, step-6, step-5, step-4, step-3 and 2 older "
            "ones");
}

TEST(NameHeldVersionsTest, LeavesOutWhatNobodyCanHave) {
  Catalog catalog = WithVersions(4);
  std::vector<CatalogVersion>& versions = catalog.models[0].versions;
  versions[0].withdrawn = true;
  versions[1].replicas[0].ranks[0].connected = false;
  versions[2].replicas.clear();
  EXPECT_EQ(NameHeldVersions(catalog, kKey, "hf"), "held is step-1");
  EXPECT_EQ(NameHeldVersions(catalog, kKey, "fp8"),
            "no version of the model is held by anybody in form fp8");
  EXPECT_EQ(NameHeldVersions({}, kKey, "hf"),
            "no version of the model is held by anybody in form hf");
}

}  // namespace
}  // namespace th
