// Processes of one host, which read each other's memory: how the transport is chosen, and what a
// reader sees when the process that it reads from is killed or stopped.
#include <csignal>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/status/status_macros.h"

namespace th::testing {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

class SameHostTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start()); }
  // After an update; keeps its result, as the next answer takes its place.
  void ExpectMoved(RankProcess* reader, const std::string& checksum) {
    ASSERT_OK(reader->answer().status());
    result_ = *reader->answer();
    EXPECT_EQ(result_["outcome"], "moved");
    EXPECT_THAT(cluster_->ChecksumOf(reader), IsOkAndHolds(checksum));
  }
  // The result's account of the source that has this name; empty: there is none.
  json ShareOf(const std::string& name) const {
    for (const json& source : result_["sources"]) {
      if (source["name"] == name) return source;
    }
    return json::object();
  }

  std::unique_ptr<Cluster> cluster_;
  json result_;
};

// ---- the choice

TEST_F(SameHostTest, ProcessesOfOneHostReadEachOthersMemory) {
  ASSERT_OK_AND_ASSIGN(RankProcess * trainer, cluster_->Join({.group = "trainer", .load = true}));
  ASSERT_OK_AND_ASSIGN(const std::string checksum, cluster_->ChecksumOf(trainer));
  ASSERT_OK(cluster_->SendToRanks({trainer}, Publish("v1")));
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, cluster_->Join({.group = "rollout"}));
  ASSERT_OK(cluster_->SendToRanks({reader}, Update("latest")));
  ExpectMoved(reader, checksum);
  EXPECT_EQ(ShareOf("trainer/0")["transport"], "same_host");
  EXPECT_EQ(ShareOf("trainer/0")["passed_over"], "");
}

TEST_F(SameHostTest, AReaderThatDoesNotUseItSaysSo) {
  ASSERT_OK_AND_ASSIGN(RankProcess * trainer, cluster_->Join({.group = "trainer", .load = true}));
  ASSERT_OK_AND_ASSIGN(const std::string checksum, cluster_->ChecksumOf(trainer));
  ASSERT_OK(cluster_->SendToRanks({trainer}, Publish("v1")));
  ASSERT_OK_AND_ASSIGN(RankProcess * reader,
                       cluster_->Join({.group = "rollout", .transports = {"tcp"}}));
  ASSERT_OK(cluster_->SendToRanks({reader}, Update("latest")));
  ExpectMoved(reader, checksum);
  EXPECT_EQ(ShareOf("trainer/0")["transport"], "tcp");
  EXPECT_EQ(ShareOf("trainer/0")["passed_over"], "same_host: this process does not use it");
}

TEST_F(SameHostTest, ASourceWithoutATransportInCommonIsNamedWithTheReasons) {
  ASSERT_OK_AND_ASSIGN(
      RankProcess * trainer,
      cluster_->Join({.group = "trainer", .transports = {"same_host"}, .load = true}));
  ASSERT_OK(cluster_->SendToRanks({trainer}, Publish("v1")));
  ASSERT_OK_AND_ASSIGN(RankProcess * reader,
                       cluster_->Join({.group = "rollout", .transports = {"tcp"}}));
  const absl::Status updated = cluster_->SendToRanks({reader}, Update("latest"));
  EXPECT_THAT(std::string(updated.message()),
              HasSubstr("no transport in common: same_host: this process does not use it"));
}

// ---- losses

// A trainer that can only be read slowly, over TCP; a relay that reads it; and a reader that takes
// out of the relay's memory what has arrived there. So a transfer of this kind lasts long enough to
// be caught in the middle.
class RelayOnTheSameHostTest : public SameHostTest {
 protected:
  static constexpr uint64_t kUplink = uint64_t{10} << 20;  // 16 MiB in 1.6 s

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SameHostTest::SetUp());
    ASSERT_OK_AND_ASSIGN(
        trainer_,
        cluster_->Join({.group = "trainer", .uplink_bytes_per_second = kUplink, .load = true}));
    ASSERT_OK_AND_ASSIGN(checksum_, cluster_->ChecksumOf(trainer_));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v1")));
    ASSERT_OK_AND_ASSIGN(relay_, cluster_->Join({.group = "relay"}));
    ASSERT_OK_AND_ASSIGN(reader_, cluster_->Join({.group = "rollout"}));
    relay_->Send(Update("latest"));
    ASSERT_OK(cluster_->AwaitFraction(relay_, 0.1));
    reader_->Send(Update("latest"));
    ASSERT_OK(cluster_->AwaitFraction(reader_, 0.3));
    ASSERT_EQ(cluster_->SourceOf(reader_), "relay/0");
  }
  void ExpectMovedFromTheTrainerAfter(absl::Duration notice_within) {
    ASSERT_OK(cluster_->Await({reader_}, "the update"));
    ExpectMoved(reader_, checksum_);
    EXPECT_EQ(ShareOf("relay/0")["transport"], "same_host");
    EXPECT_GT(ShareOf("relay/0")["bytes"], 0);
    EXPECT_NE(ShareOf("relay/0")["failure"], "");
    EXPECT_EQ(ShareOf("trainer/0")["transport"], "tcp");
    // Both uplinks' worth of time would be 3.2 s: the reader has kept what it had.
    EXPECT_LT(result_["seconds"], 1.6 + absl::ToDoubleSeconds(notice_within) + 0.5);
  }

  RankProcess* trainer_ = nullptr;
  RankProcess* relay_ = nullptr;
  RankProcess* reader_ = nullptr;
  std::string checksum_;
};

TEST_F(RelayOnTheSameHostTest, WhatArrivesAtTheRelayIsTakenOnFromThere) {
  ASSERT_OK(cluster_->Await({reader_, relay_}, "the updates"));
  ExpectMoved(reader_, checksum_);
  EXPECT_EQ(ShareOf("relay/0")["transport"], "same_host");
  EXPECT_EQ(ShareOf("relay/0")["bytes"], result_["bytes"]);
}

TEST_F(RelayOnTheSameHostTest, AKilledRelayIsReplacedAndNothingIsTorn) {
  relay_->process().Signal(SIGKILL);
  ExpectMovedFromTheTrainerAfter(absl::Milliseconds(100));
}

TEST_F(RelayOnTheSameHostTest, AStoppedRelayIsReplacedAndNothingIsTorn) {
  relay_->process().Signal(SIGSTOP);
  ExpectMovedFromTheTrainerAfter(absl::Milliseconds(500));
  relay_->process().Signal(SIGKILL);
}

}  // namespace
}  // namespace th::testing
