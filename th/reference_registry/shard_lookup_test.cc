// Which shard a streaming reader is told, and that telling it costs no list of the model.
#include "th/reference_registry/shard_lookup.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

ShardQuery OnlyShard(const std::string& form = kDefaultForm) {
  return {.key = TestModel(), .form = form};
}

ShardQuery LikeRank(const std::string& group, uint32_t rank = 0,
                    const std::string& form = kDefaultForm) {
  return {.key = TestModel(), .form = form, .group = group, .rank = Rank(rank)};
}

class ShardLookupTest : public ::testing::Test {
 protected:
  absl::StatusOr<FoundShard> Find(const ShardQuery& query) {
    return hub_.registry().FindShard(query);
  }

  RegistryHarness hub_;
};

TEST_F(ShardLookupTest, TheOnlyShardNeedsNoChoice) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank fused(hub_, "fused", 0, 1, LayoutNamed("fused"));
  fused.form = "engine";
  fused.JoinAndRegister();
  ASSERT_OK_AND_ASSIGN(const FoundShard found, Find(OnlyShard()));
  EXPECT_EQ(found.layout, trainer.layout.digest());
}

TEST_F(ShardLookupTest, OfSeveralShardsOneHasToBeChosen) {
  std::vector<TestRank> trainer = JoinedGroup(hub_, "trainer", 2);
  PublishWhole(trainer, "one");
  EXPECT_THAT(Find(OnlyShard()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("trainer (2 ranks)")));
  ASSERT_OK_AND_ASSIGN(const FoundShard found, Find(LikeRank("trainer", 1)));
  EXPECT_EQ(found.layout, trainer[1].layout.digest());
}

TEST_F(ShardLookupTest, ARankThatHoldsNothingTellsItsLayoutToo) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank late(hub_, "late", 0, 1, LayoutNamed("other"));
  late.JoinAndRegister();
  ASSERT_OK_AND_ASSIGN(const FoundShard found, Find(LikeRank("late")));
  EXPECT_EQ(found.layout, late.layout.digest());
}

TEST_F(ShardLookupTest, WhatARankHoldsComesBeforeWhatItHasIdle) {
  TestRank idle(hub_, "trainer", 0, 1, LayoutNamed("idle"));
  idle.buffer_name = "a-first-by-name";
  idle.JoinAndRegister();
  AnnouncedBuffer second = idle.Announced();
  second.buffer = BufferId(2);
  second.buffer_name = "weights";
  const ShardLayout layout = LayoutNamed("w");
  second.layout = layout.digest();
  idle.Say(RegisterBuffer{second});
  idle.Say(LayoutUpload{layout});
  ASSERT_OK(idle.Heard<BufferRegistered>().status);
  idle.buffer = BufferId(2);
  idle.Publish("one");
  idle.Finished();
  ASSERT_OK_AND_ASSIGN(const FoundShard found, Find(LikeRank("trainer")));
  EXPECT_EQ(found.layout, layout.digest());
}

TEST_F(ShardLookupTest, AnUnknownRankIsToldWithTheGroupsThereAre) {
  TestRank trainer = Trainer(hub_, "one");
  EXPECT_THAT(
      Find(LikeRank("trainer", 3)).status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("trainer/3 has no buffer of form hf; "
                                                      "these groups have: trainer (1 rank)")));
  EXPECT_THAT(Find(LikeRank("trainer", 0, "engine")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no group")));
}

TEST_F(ShardLookupTest, AModelThatNobodyHasIsNotFound) {
  EXPECT_THAT(Find(LikeRank("trainer")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(TestModel().ToString())));
}

TEST_F(ShardLookupTest, WhatIsNotPublishedOrHasGoneIsNotAvailable) {
  TestRank trainer(hub_, "trainer", 0, 1);
  trainer.JoinAndRegister();
  ASSERT_OK_AND_ASSIGN(FoundShard found, Find(OnlyShard()));
  EXPECT_EQ(found.not_available, NotAvailableReason::kNotPublished);
  trainer.Publish("one");
  trainer.Seal(trainer.Finished().version.sequence, "one");
  ASSERT_OK_AND_ASSIGN(found, Find(OnlyShard("engine")));
  EXPECT_EQ(found.not_available, NotAvailableReason::kGone);
  trainer.Unpublish();
  trainer.Done();
  ASSERT_OK(trainer.Finished().status);
  ASSERT_OK_AND_ASSIGN(found, Find(OnlyShard()));
  EXPECT_EQ(found.not_available, NotAvailableReason::kGone);
}

TEST_F(ShardLookupTest, NothingIsGuessedWhileRanksMayStillComeBack) {
  std::vector<TestRank> trainer = JoinedGroup(hub_, "trainer", 2);
  const VersionInfo version = PublishWhole(trainer, "one");
  hub_.Restart();
  ASSERT_TRUE(trainer[0].Resume({trainer[0].Holding(version, true, "one")}));
  hub_.Advance(absl::Seconds(2));  // past the recovery window
  EXPECT_THAT(Find(OnlyShard()).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Find(LikeRank("trainer", 1)).status(), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK_AND_ASSIGN(const FoundShard found, Find(LikeRank("trainer", 0)));
  EXPECT_EQ(found.layout, trainer[0].layout.digest());
}

TEST_F(ShardLookupTest, AStreamingReaderIsNobodysModel) {
  TestRank trainer = Trainer(hub_, "one");
  TestRank streamer(hub_, "engine", 0, 1);
  streamer.buffer_name = "stream-1.1";
  streamer.role = BufferRole::kStreaming;
  streamer.JoinAndRegister();
  EXPECT_THAT(Find(LikeRank("engine")).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ShardLookupTest, ALayoutIsEncodedOnceForAll) {
  TestRank trainer = Trainer(hub_, "one");
  ASSERT_OK_AND_ASSIGN(const auto first, hub_.registry().EncodedLayout(trainer.layout.digest()));
  ASSERT_OK_AND_ASSIGN(const auto again, hub_.registry().EncodedLayout(trainer.layout.digest()));
  EXPECT_EQ(first.get(), again.get());
  EXPECT_EQ(*first, trainer.layout.Encode());
}

}  // namespace
}  // namespace th
