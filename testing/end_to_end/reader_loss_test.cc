// A dying or stopped reader harms neither its source nor the other readers, and its group hears of
// it.
#include <csignal>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/status/status_macros.h"

namespace th::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUplink = uint64_t{10} << 20;

class ReaderLossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start({"--lease=3s"}));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_OK_AND_ASSIGN(RankProcess * trainer,
                           cluster_->Join({.group = "trainer",
                                           .rank = rank,
                                           .ranks = 2,
                                           .shard = rank,
                                           .shards = 2,
                                           .uplink_bytes_per_second = kUplink,
                                           .load = true}));
      trainers_.push_back(trainer);
      ASSERT_OK_AND_ASSIGN(const std::string checksum, cluster_->ChecksumOf(trainer));
      checksums_.push_back(checksum);
    }
    ASSERT_OK(cluster_->SendToRanks(trainers_, Publish("v1")));
  }

  absl::StatusOr<std::vector<RankProcess*>> ReaderGroup(const std::string& group) {
    std::vector<RankProcess*> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      TH_ASSIGN_OR_RETURN(RankProcess * reader, Rank(group, rank));
      ranks.push_back(reader);
    }
    return ranks;
  }
  absl::StatusOr<RankProcess*> Rank(const std::string& group, uint32_t rank) {
    return cluster_->Join({.group = group,
                           .rank = rank,
                           .ranks = 2,
                           .shard = rank,
                           .shards = 2,
                           .uplink_bytes_per_second = kUplink});
  }
  void ExpectHold(const std::vector<RankProcess*>& ranks) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_THAT(cluster_->ChecksumOf(ranks[rank]), IsOkAndHolds(checksums_[rank]))
          << ranks[rank]->name();
    }
  }
  static void SendAll(const std::vector<RankProcess*>& ranks, const nlohmann::json& command) {
    for (RankProcess* rank : ranks) rank->Send(command);
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<RankProcess*> trainers_;
  std::vector<std::string> checksums_;
};

TEST_F(ReaderLossTest, KilledReaderHarmsNobodyElse) {
  ASSERT_OK_AND_ASSIGN(const auto victims, ReaderGroup("rollout-0"));
  ASSERT_OK_AND_ASSIGN(const auto others, ReaderGroup("rollout-1"));
  SendAll(victims, Update("latest"));
  SendAll(others, Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(victims[0], 0.3));
  for (RankProcess* victim : victims) victim->process().Signal(SIGKILL);
  ASSERT_OK(cluster_->Await(others, "the other group's update"));
  ExpectHold(others);
  EXPECT_OK(cluster_->SendToRanks(trainers_, Unpublish()));
}

TEST_F(ReaderLossTest, StoppedReaderBlocksNeitherOthersNorUnpublish) {
  ASSERT_OK_AND_ASSIGN(const auto victims, ReaderGroup("rollout-0"));
  SendAll(victims, Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(victims[0], 0.3));
  for (RankProcess* victim : victims) victim->process().Signal(SIGSTOP);
  ASSERT_OK_AND_ASSIGN(const auto others, ReaderGroup("rollout-1"));
  ASSERT_OK(cluster_->SendToRanks(others, Update("latest")));
  ExpectHold(others);
  ASSERT_OK(cluster_->SendToRanks(trainers_, Unpublish()));
  // A reader silent for half a second is cut at once; the five seconds of the drain are a ceiling.
  for (RankProcess* trainer : trainers_) {
    EXPECT_LE((*trainer->answer())["seconds"].get<double>(), 3.0) << trainer->name();
  }
}

TEST_F(ReaderLossTest, RankThatDiesEndsItsGroupsUpdateByNameAndAReplacementMakesItWhole) {
  ASSERT_OK_AND_ASSIGN(const auto group, ReaderGroup("rollout-0"));
  SendAll(group, Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(group[1], 0.3));
  group[1]->process().Signal(SIGKILL);
  const absl::Status status = cluster_->Await({group[0]}, "the survivor's update");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rollout-0/1"));

  ASSERT_OK_AND_ASSIGN(RankProcess * replacement, Rank("rollout-0", 1));
  const std::vector<RankProcess*> whole = {group[0], replacement};
  ASSERT_OK(cluster_->SendToRanks(whole, Update("latest")));
  for (RankProcess* rank : whole) EXPECT_EQ((*rank->answer())["outcome"], "moved");
  ExpectHold(whole);
}

TEST_F(ReaderLossTest, ReplacementJoinsAtOnceAndEndsTheOldGenerationsUpdate) {
  ASSERT_OK_AND_ASSIGN(const auto group, ReaderGroup("rollout-0"));
  // The other rank never calls: the update waits for it.
  group[0]->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(group[0], 0.1));
  group[1]->process().Signal(SIGKILL);
  ASSERT_OK(group[1]->process().AwaitEnd(kPatience));
  ASSERT_OK_AND_ASSIGN(RankProcess * replacement, Rank("rollout-0", 1));
  EXPECT_FALSE(cluster_->Await({group[0]}, "the survivor's update").ok());
  const std::vector<RankProcess*> whole = {group[0], replacement};
  ASSERT_OK(cluster_->SendToRanks(whole, Update("latest")));
  ExpectHold(whole);
}

TEST_F(ReaderLossTest, ZombieThatWakesAfterItsReplacementIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto group, ReaderGroup("rollout-0"));
  RankProcess* const zombie = group[1];
  zombie->process().Signal(SIGSTOP);
  // Against a live lease the join is refused, naming the holder; when the lease has run out it
  // works.
  RankProcess* replacement = nullptr;
  absl::Status refused;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);  // a lease is shorter by far
  while (replacement == nullptr && absl::Now() < deadline) {
    absl::StatusOr<RankProcess*> joined = Rank("rollout-0", 1);
    if (joined.ok()) replacement = *joined;
    if (!joined.ok()) refused = joined.status();
  }
  ASSERT_NE(replacement, nullptr) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rollout-0/1"));
  zombie->process().Signal(SIGCONT);
  zombie->Send(Update("latest"));
  EXPECT_FALSE(cluster_->Await({zombie}, "the zombie's update").ok());
  const std::vector<RankProcess*> whole = {group[0], replacement};
  ASSERT_OK(cluster_->SendToRanks(whole, Update("latest")));
  ExpectHold(whole);
}

TEST_F(ReaderLossTest, RankThatNeverCallsIsNamedAtTheDeadline) {
  ASSERT_OK_AND_ASSIGN(const auto group, ReaderGroup("rollout-0"));
  group[0]->Send(UpdateWithin("latest", absl::Seconds(2)));
  const absl::Status status = cluster_->Await({group[0]}, "the update");
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rollout-0/1"));
}

}  // namespace
}  // namespace th::testing
