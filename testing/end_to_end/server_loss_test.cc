// Transfers outlive their server, and a restarted one knows what there is.
#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/status_matchers.h"
#include "th/status/status_macros.h"

namespace th::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUplink = uint64_t{8} << 20;  // 16 MiB in 2 s

// The epoch in a version's text, such as "v1 (#12.1)"; 0 where it has none.
uint64_t EpochOf(const std::string& version) {
  const size_t begin = version.find("(#");
  return begin == std::string::npos ? 0 : std::stoull(version.substr(begin + 2));
}

class ServerLossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start());
    ASSERT_OK_AND_ASSIGN(
        trainer_,
        cluster_->Join({.group = "trainer", .uplink_bytes_per_second = kUplink, .load = true}));
    ASSERT_OK_AND_ASSIGN(checksum_, cluster_->ChecksumOf(trainer_));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v1")));
    ASSERT_OK_AND_ASSIGN(reader_, Reader("rollout-0"));
  }
  absl::StatusOr<RankProcess*> Reader(const std::string& group) {
    return cluster_->Join({.group = group, .uplink_bytes_per_second = kUplink});
  }
  void ExpectMoved(RankProcess* reader) {
    ASSERT_OK(reader->answer().status());
    EXPECT_EQ((*reader->answer())["outcome"], "moved");
    EXPECT_THAT(cluster_->ChecksumOf(reader), IsOkAndHolds(checksum_));
  }

  std::unique_ptr<Cluster> cluster_;
  RankProcess* trainer_ = nullptr;
  RankProcess* reader_ = nullptr;
  std::string checksum_;
};

TEST_F(ServerLossTest, TransferEndsUndisturbedByARestart) {
  ASSERT_OK_AND_ASSIGN(RankProcess * undisturbed, Reader("undisturbed"));
  ASSERT_OK(cluster_->SendToRanks({undisturbed}, Update("latest")));
  const double seconds = (*undisturbed->answer())["seconds"];
  ASSERT_OK(cluster_->SendToRanks({undisturbed}, nlohmann::json{{"do", "leave"}}));

  reader_->Send(Update("latest"));
  ASSERT_OK(cluster_->AwaitFraction(reader_, 0.3));
  ASSERT_OK(cluster_->RestartServer());
  ASSERT_OK(cluster_->Await({reader_}, "the update"));
  const nlohmann::json answer = *reader_->answer();
  ExpectMoved(reader_);
  EXPECT_EQ(answer["reroutes"], 0);
  // The bytes did not wait; the group's word needs the new server, at most 3 s after its start.
  EXPECT_LE(answer["seconds"].get<double>(), seconds + 3.0);
}

TEST_F(ServerLossTest, NewUpdateWorksWithinThreeSecondsOfARestart) {
  ASSERT_OK(cluster_->RestartServer());
  ASSERT_OK(cluster_->SendToRanks({reader_}, Update("latest")));
  const nlohmann::json answer = *reader_->answer();
  ExpectMoved(reader_);
  EXPECT_LE(answer["stall_seconds"].get<double>(), 3.0 + 2.0);  // the transfer itself takes 2 s
}

TEST_F(ServerLossTest, SequenceRisesOverARestart) {
  const uint64_t before = EpochOf((*trainer_->answer())["version"]);
  ASSERT_OK(cluster_->RestartServer());
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Change(2)));
  ASSERT_OK_AND_ASSIGN(checksum_, cluster_->ChecksumOf(trainer_));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v2")));
  EXPECT_GT(EpochOf((*trainer_->answer())["version"]), before);
  ASSERT_OK(cluster_->SendToRanks({reader_}, Update("latest")));
  ExpectMoved(reader_);
}

TEST_F(ServerLossTest, LatestDoesNotFallBehindTheMarkWhenItsHolderIsGone) {
  ASSERT_OK(cluster_->SendToRanks({reader_}, Update("latest")));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Change(2)));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v2")));
  // v2 dies with the trainer and the server; v1 lives on in the reader.
  ASSERT_OK(cluster_->KillServer());
  trainer_->process().Signal(SIGKILL);
  ASSERT_OK(trainer_->process().AwaitEnd(kPatience));
  ASSERT_OK(cluster_->StartServer());
  ASSERT_OK_AND_ASSIGN(RankProcess * late, Reader("late"));
  ASSERT_OK(cluster_->SendToRanks({late}, Update("latest")));
  EXPECT_EQ((*late->answer())["outcome"], "not available");
  ASSERT_OK(cluster_->SendToRanks({late}, Update("v1")));
  ExpectMoved(late);
}

TEST_F(ServerLossTest, ServerThatStaysAwayEndsAnUpdateAtItsDeadline) {
  ASSERT_OK(cluster_->KillServer());
  reader_->Send(UpdateWithin("latest", absl::Seconds(1)));
  const absl::Status status = cluster_->Await({reader_}, "the update");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank=rollout-0/0"));
}

TEST_F(ServerLossTest, UnpublishWorksWithoutAServer) {
  ASSERT_OK(cluster_->KillServer());
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
  EXPECT_LE((*trainer_->answer())["seconds"].get<double>(), 10.0);
}

// A stopped server hears nobody; when it goes on, nobody has been silent but itself.
TEST(ServerPauseTest, AServerThatIsStoppedForLongerThanTheLeaseLosesNobody) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Cluster> cluster, Cluster::Start({"--lease=1s"}));
  RankOptions options{.group = "trainer",
                      .model_bytes = uint64_t{32} << 20,  // 4 s
                      .uplink_bytes_per_second = kUplink,
                      .load = true};
  ASSERT_OK_AND_ASSIGN(RankProcess * trainer, cluster->Join(options));
  ASSERT_OK_AND_ASSIGN(const std::string checksum, cluster->ChecksumOf(trainer));
  ASSERT_OK(cluster->SendToRanks({trainer}, Publish("v1")));
  options.group = "rollout-0";
  options.load = false;
  ASSERT_OK_AND_ASSIGN(RankProcess * reader, cluster->Join(options));

  reader->Send(Update("latest"));
  ASSERT_OK(cluster->AwaitFraction(reader, 0.2));
  cluster->server()->process().Signal(SIGSTOP);
  ASSERT_OK(cluster->AwaitFraction(reader, 0.8));  // more than two leases later
  cluster->server()->process().Signal(SIGCONT);
  ASSERT_OK(cluster->Await({reader}, "the update"));
  EXPECT_EQ((*reader->answer())["outcome"], "moved");
  EXPECT_EQ((*reader->answer())["reroutes"], 0);
  EXPECT_THAT(cluster->ChecksumOf(reader), IsOkAndHolds(checksum));
  // A rank that had lost its membership could do nothing more.
  ASSERT_OK(cluster->SendToRanks({trainer}, Unpublish()));
  ASSERT_OK(cluster->SendToRanks({reader}, Unpublish()));
}

}  // namespace
}  // namespace th::testing
