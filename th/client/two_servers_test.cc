// One process under two reference servers, which number their workers alike.
#include <memory>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"

namespace th {
namespace {

using ::th::testing::Rank;
using ::th::testing::TestServer;
using ::th::testing::TestShard;

struct Member {
  Member(const TestServer& server, std::string group) {
    shard.FillWith(0);
    auto joined = Client::Join(Rank(server, std::move(group)));
    EXPECT_OK(joined.status());
    if (!joined.ok()) return;
    client = *std::move(joined);
    auto registered = client->Register(shard.tensors);
    EXPECT_OK(registered.status());
    if (registered.ok()) buffer = *std::move(registered);
  }

  TestShard shard;
  std::unique_ptr<Client> client;
  WeightBuffer buffer;
};

TEST(TwoServersTest, EachReaderGetsWhatWasPublishedUnderItsServer) {
  TestServer server_a, server_b;
  Member trainer_a(server_a, "trainer"), trainer_b(server_b, "trainer");
  Member rollout_a(server_a, "rollout"), rollout_b(server_b, "rollout");
  trainer_a.shard.FillWith(1);
  trainer_b.shard.FillWith(2);
  ASSERT_OK(trainer_a.buffer.Publish(1));
  ASSERT_OK(trainer_b.buffer.Publish(1));
  ASSERT_OK(trainer_a.buffer.AwaitPublished().status());
  ASSERT_OK(trainer_b.buffer.AwaitPublished().status());
  ASSERT_OK_AND_ASSIGN(const UpdateResult a, rollout_a.buffer.Update(Latest()));
  ASSERT_OK_AND_ASSIGN(const UpdateResult b, rollout_b.buffer.Update(Latest()));
  EXPECT_TRUE(a.moved() && b.moved());
  EXPECT_TRUE(rollout_a.shard.HasContentOf(1));
  EXPECT_TRUE(rollout_b.shard.HasContentOf(2));
  EXPECT_OK(trainer_a.buffer.Unpublish());
  EXPECT_OK(trainer_b.buffer.Unpublish());
}

TEST(TwoServersTest, LeavingOneLeavesTheOthersReadersAlone) {
  TestServer server_a, server_b;
  Member trainer_b(server_b, "trainer");
  {
    Member trainer_a(server_a, "trainer");
    ASSERT_OK(trainer_a.buffer.Publish(1));
    ASSERT_OK(trainer_b.buffer.Publish(1));
    ASSERT_OK(trainer_b.buffer.AwaitPublished().status());
  }
  Member rollout_b(server_b, "rollout");
  ASSERT_OK_AND_ASSIGN(const UpdateResult moved, rollout_b.buffer.Update(Latest()));
  EXPECT_TRUE(moved.moved());
  EXPECT_TRUE(rollout_b.shard.Equals(trainer_b.shard));
}

}  // namespace
}  // namespace th
