// A worker with a notice: its readers are moved, and what it holds is copied if it must stay.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Preempt kNotice{absl::Seconds(30)};

// One trainer and one relay that both hold the version.
class NoticeTest : public ::testing::Test {
 protected:
  NoticeTest() : trainer_(Trainer(hub_, "step-1")), relay_(Rollout(hub_, "relay")) {
    relay_.Update();
    relay_.FillWhole();
    version_ = relay_.Finished().version;
  }
  TestRank Reader(const std::string& group = "reader") {
    TestRank reader = Rollout(hub_, group);
    reader.Update();
    return reader;
  }
  CatalogReplica Listed(const std::string& group) {
    const Catalog catalog = hub_.List();
    for (const CatalogReplica& replica : catalog.models[0].versions[0].replicas) {
      if (replica.group == group) return replica;
    }
    return {};
  }
  void Retain() { ASSERT_OK(hub_.Command({"keep", SetRetention{.keep_latest = 1}}).status); }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank relay_;
  VersionInfo version_;
};

TEST_F(NoticeTest, ANewReaderIsGivenSomebodyElse) {
  relay_.Say(kNotice);
  EXPECT_EQ(Reader().Fill().buffer, trainer_.address());
}

TEST_F(NoticeTest, ReadersAreMovedAtOnceWhereAnotherCanServe) {
  TestRank reader = Reader();
  ASSERT_EQ(reader.Fill().buffer, relay_.address());
  relay_.Say(kNotice);
  const AssignSources moved = reader.Heard<AssignSources>();
  ASSERT_EQ(moved.sources.size(), 1u);
  EXPECT_EQ(moved.sources[0].buffer, trainer_.address());
  EXPECT_EQ(hub_.registry().counters().sources_failed, 0u);
  EXPECT_EQ(hub_.registry().counters().notices, 1u);
}

TEST_F(NoticeTest, WhoHasNobodyElseIsServedOn) {
  trainer_.Say(Leave{});
  TestRank reader = Reader();
  ASSERT_EQ(reader.Fill().buffer, relay_.address());
  relay_.Say(kNotice);
  for (const AssignSources& again : hub_.TakeAll<AssignSources>(reader.connection)) {
    ASSERT_EQ(again.sources.size(), 1u);
    EXPECT_EQ(again.sources[0].buffer, relay_.address());
  }
  reader.Done();
  EXPECT_EQ(reader.Finished().outcome, UpdateOutcome::kMoved);
}

TEST_F(NoticeTest, WhoHadNobodyElseIsMovedAsSoonAsThereIsSomebody) {
  trainer_.Say(Leave{});
  TestRank reader = Reader();
  relay_.Say(kNotice);
  ASSERT_EQ(reader.Fill().buffer, relay_.address());
  TestRank twin = Rollout(hub_, "twin");
  twin.Publish("step-1");
  const VersionInfo version = twin.Finished().version;
  twin.Seal(version.sequence, "step-1");
  const AssignSources moved = reader.Heard<AssignSources>();
  ASSERT_EQ(moved.sources.size(), 1u);
  EXPECT_EQ(moved.sources[0].buffer, twin.address());
}

TEST_F(NoticeTest, TheOnlyHolderIsGivenToANewReaderAllTheSame) {
  trainer_.Say(Leave{});
  relay_.Say(kNotice);
  EXPECT_EQ(Reader().Fill().buffer, relay_.address());
}

TEST_F(NoticeTest, ADeadlineThatHasPassedIsRefused) {
  relay_.Say(Preempt{absl::ZeroDuration()});
  EXPECT_EQ(hub_.registry().counters().messages_refused, 1u);
  EXPECT_EQ(Listed("relay").state, "complete");
  EXPECT_EQ(Listed("relay").ranks[0].leaves_in, absl::InfiniteDuration());
}

TEST_F(NoticeTest, IsListed) {
  relay_.Say(kNotice);
  relay_.Say(Preempt{absl::Minutes(2)});  // the earlier one counts
  hub_.Advance(absl::Seconds(1));
  EXPECT_EQ(Listed("relay").state, "leaving");
  EXPECT_EQ(Listed("relay").ranks[0].leaves_in, absl::Seconds(29));
  EXPECT_EQ(Listed("trainer").state, "published");
}

TEST_F(NoticeTest, IsToldAgainWithEveryJoin) {
  TestRank other(hub_, "other", 0, 1);
  JoinRequest request = other.Request();
  request.leaves_in = absl::Seconds(30);
  ASSERT_TRUE(other.Join(request));
  ASSERT_OK(other.Register());
  const Catalog catalog = hub_.List();
  ASSERT_EQ(catalog.models[0].idle.size(), 1u);
  EXPECT_EQ(catalog.models[0].idle[0].ranks[0].leaves_in, absl::Seconds(30));
}

TEST_F(NoticeTest, OneThatIsOnlyHeardWithAJoinMovesReadersToo) {
  TestRank reader = Reader();
  ASSERT_EQ(reader.Fill().buffer, relay_.address());
  relay_.Disconnect();
  JoinRequest request = relay_.Request();
  request.resume = relay_.Claim();
  request.buffers = {relay_.Holding(version_, /*publisher=*/false, "step-1")};
  request.leaves_in = absl::Seconds(30);
  ASSERT_TRUE(relay_.Join(request));
  const AssignSources moved = reader.Heard<AssignSources>();
  ASSERT_EQ(moved.sources.size(), 1u);
  EXPECT_EQ(moved.sources[0].buffer, trainer_.address());
  EXPECT_EQ(hub_.registry().counters().notices, 1u);
}

TEST_F(NoticeTest, ANewIncarnationHasNone) {
  relay_.Say(kNotice);
  relay_.Say(Leave{});
  TestRank again = Rollout(hub_, "relay");
  again.Update();
  again.FillWhole();
  EXPECT_EQ(again.Finished().outcome, UpdateOutcome::kMoved);
  EXPECT_EQ(Listed("relay").state, "complete");
  EXPECT_EQ(Reader().Fill().buffer, again.address());
}

// ---- retention

TEST_F(NoticeTest, AReplicaThatLeavesDoesNotStay) {
  Retain();
  relay_.Say(kNotice);
  StartOperation unpublish = trainer_.UnpublishRequest();
  unpublish.keep_retained = true;
  trainer_.Start(unpublish);
  EXPECT_TRUE(trainer_.Finished().must_offload);
}

TEST_F(NoticeTest, TheLastReplicaOfARetainedVersionIsSpokenOfBeforeAndAfterItGoes) {
  Retain();
  relay_.Say(kNotice);
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("holds the last replica")));
  trainer_.Say(kNotice);
  EXPECT_THAT(hub_.Log(), HasSubstr("retained version at risk: holds the last replica of step-1"));
  relay_.Say(Leave{});
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("is lost")));
  trainer_.Say(Leave{});
  EXPECT_THAT(hub_.Log(), HasSubstr("is lost: it is retained, and its last replica has left"));
  EXPECT_EQ(hub_.registry().counters().retained_lost, 1u);
}

// Its copy goes when it leaves, and whoever asks until then saves the version.
TEST_F(NoticeTest, WhoLeavesAndUnpublishesBeforeStaysFetchableUntilThen) {
  Retain();
  relay_.Say(Leave{});
  trainer_.Say(Leave{});
  TestRank last(hub_, "last", 0, 1);
  JoinRequest request = last.Request();
  request.offload_limit_bytes = uint64_t{1} << 40;
  ASSERT_TRUE(last.Join(request));
  ASSERT_OK(last.Register());
  last.Publish("step-2");
  last.Seal(last.Finished().version.sequence, "step-2");
  last.Say(kNotice);
  EXPECT_THAT(hub_.Log(), HasSubstr("holds the last replica of step-2"));
  StartOperation unpublish = last.UnpublishRequest();
  unpublish.keep_retained = true;
  last.Start(unpublish);
  EXPECT_TRUE(last.Finished().must_offload);
  EXPECT_THAT(hub_.Log(), Not(HasSubstr("retained version lost: step-2")));
}

TEST_F(NoticeTest, WhoLeavesAndDropsItIsSpokenOfWhenItDoes) {
  Retain();
  relay_.Say(Leave{});
  trainer_.Say(kNotice);
  trainer_.Unpublish();
  trainer_.Done();
  EXPECT_THAT(hub_.Log(), HasSubstr("trainer: retained version lost: step-1"));
}

}  // namespace
}  // namespace th
