#include "th/worker/version_shards.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
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

}  // namespace
}  // namespace th
