#include "th/client/shard_choice.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr VersionSequence kSeven(7);

Digest LayoutNumber(uint8_t number) {
  Digest digest;
  digest.bytes[0] = number;
  return digest;
}

CatalogReplica Replica(const std::string& group, const std::vector<uint8_t>& layouts,
                       const std::string& state, const std::string& form = kDefaultForm) {
  CatalogReplica replica{.group = group, .form = form, .state = state};
  for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
    CatalogRank listed;
    listed.name = {group, Rank(rank)};
    listed.layout = LayoutNumber(layouts[rank]);
    replica.ranks.push_back(listed);
  }
  return replica;
}

CatalogModel Model(std::vector<CatalogReplica> replicas) {
  CatalogVersion version;
  version.info.sequence = kSeven;
  version.replicas = std::move(replicas);
  CatalogModel model;
  model.versions = {version};
  return model;
}

TEST(ShardChoiceTest, TheOnlyShardNeedsNoChoice) {
  const CatalogModel model =
      Model({Replica("trainer", {1}, "published"), Replica("rollout", {1}, "complete"),
             Replica("fused", {9}, "published", "engine")});
  ASSERT_OK_AND_ASSIGN(const Digest layout,
                       ChooseShard(model, {.form = kDefaultForm, .version = kSeven}));
  EXPECT_EQ(layout, LayoutNumber(1));
}

TEST(ShardChoiceTest, OfSeveralShardsOneHasToBeChosen) {
  const CatalogModel model = Model({Replica("trainer", {1, 2}, "published")});
  EXPECT_THAT(ChooseShard(model, {.form = kDefaultForm, .version = kSeven}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("trainer (2 ranks)")));
}

TEST(ShardChoiceTest, LikeARankOfAGroup) {
  const CatalogModel model = Model({Replica("trainer", {1, 2}, "published")});
  ASSERT_OK_AND_ASSIGN(const Digest layout,
                       ChooseShard(model, {.form = kDefaultForm, .group = "trainer", .rank = 1}));
  EXPECT_EQ(layout, LayoutNumber(2));
}

TEST(ShardChoiceTest, WhatARankHoldsComesBeforeWhatItFillsOrHasIdle) {
  CatalogModel model =
      Model({Replica("trainer", {3}, "filling"), Replica("trainer", {1}, "published")});
  model.idle = {Replica("trainer", {4}, "idle"), Replica("late", {5}, "idle")};
  ASSERT_OK_AND_ASSIGN(Digest layout,
                       ChooseShard(model, {.form = kDefaultForm, .group = "trainer"}));
  EXPECT_EQ(layout, LayoutNumber(1));
  ASSERT_OK_AND_ASSIGN(layout, ChooseShard(model, {.form = kDefaultForm, .group = "late"}));
  EXPECT_EQ(layout, LayoutNumber(5));
}

TEST(ShardChoiceTest, AnUnknownRankIsToldWithTheGroupsThereAre) {
  const CatalogModel model = Model({Replica("trainer", {1}, "published")});
  EXPECT_THAT(
      ChooseShard(model, {.form = kDefaultForm, .group = "trainer", .rank = 3}).status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("trainer/3 has no buffer of form hf; these "
                                                      "groups have: trainer (1 rank)")));
}

TEST(ShardChoiceTest, AFormThatNobodyHoldsIsNotFound) {
  const CatalogModel model = Model({Replica("trainer", {1}, "published")});
  EXPECT_THAT(ChooseShard(model, {.form = "engine", .version = kSeven}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("in form engine")));
}

}  // namespace
}  // namespace th
