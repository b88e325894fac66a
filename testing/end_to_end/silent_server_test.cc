// The server's host loses its link: no connection closes, and no packet arrives. Skipped where
// there are no virtual hosts.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "testing/cluster/cluster.h"
#include "testing/end_to_end/two_hosts.h"
#include "testing/status_matchers.h"
#include "th/processes/virtual_hosts.h"

namespace th::testing {
namespace {

constexpr size_t kServerHost = 0;
// The worker asks after 0.5 s of silence and waits 1 s for the answer; the rest is slack for a
// machine under load.
constexpr double kLongestUnpublishSeconds = 3.0;

class SilentServerTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    if (hosts_ == nullptr) return;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start({}, hosts_.get()));
    ASSERT_OK_AND_ASSIGN(trainer_, cluster_->Join({.group = "trainer", .load = true}));
    ASSERT_OK_AND_ASSIGN(reader_, cluster_->Join({.group = "rollout"}));
    ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v1")));
  }

  std::unique_ptr<Cluster> cluster_;
  RankProcess* trainer_ = nullptr;
  RankProcess* reader_ = nullptr;
};

TEST_F(SilentServerTest, UnpublishEndsWithoutItAndTheNextVersionIsFetched) {
  ASSERT_OK(hosts_->Cut(kServerHost));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
  EXPECT_LE((*trainer_->answer())["seconds"].get<double>(), kLongestUnpublishSeconds);
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Change(2)));
  ASSERT_OK(hosts_->Restore(kServerHost));
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Publish("v2")));
  ASSERT_OK_AND_ASSIGN(const std::string published, cluster_->ChecksumOf(trainer_));
  ASSERT_OK(cluster_->SendToRanks({reader_}, Update("v2")));
  EXPECT_EQ((*reader_->answer())["outcome"], "moved");
  EXPECT_THAT(cluster_->ChecksumOf(reader_), IsOkAndHolds(published));
}

TEST_F(SilentServerTest, AReaderGoesOnFilling) {
  ASSERT_OK_AND_ASSIGN(
      RankProcess * slow,
      cluster_->Join({.group = "slow-trainer", .uplink_bytes_per_second = 8 << 20, .load = true}));
  ASSERT_OK_AND_ASSIGN(const std::string published, cluster_->ChecksumOf(slow));
  // Only the slow trainer is a source of what follows.
  ASSERT_OK(cluster_->SendToRanks({trainer_}, Unpublish()));
  ASSERT_OK(cluster_->SendToRanks({slow}, Publish("v2")));
  reader_->Send(Update("v2"));
  ASSERT_OK(cluster_->AwaitFraction(reader_, 0.2));
  ASSERT_OK(hosts_->Cut(kServerHost));
  ASSERT_OK(cluster_->AwaitFraction(reader_, 0.9));
  ASSERT_OK(hosts_->Restore(kServerHost));
  ASSERT_OK(cluster_->Await({reader_}, "the update"));
  EXPECT_EQ((*reader_->answer())["outcome"], "moved");
  EXPECT_THAT(cluster_->ChecksumOf(reader_), IsOkAndHolds(published));
}

}  // namespace
}  // namespace th::testing
