// A source that is slow but not silent, for real: its uplink is capped, the others' are not.
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::th::testing::BackgroundUpdate;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr size_t kBytes = 40'000'000;
constexpr uint64_t kUplink = 20'000'000;
constexpr uint64_t kSlowUplink = 1'000'000;  // forty seconds for the shard

std::map<std::string, uint64_t> BytesFrom(const UpdateResult& result) {
  std::map<std::string, uint64_t> bytes;
  for (const SourceShare& source : result.sources) bytes[source.name] += source.bytes;
  return bytes;
}

// A rank with an uplink of its own: the clients of one process share one for each name of a server.
Worker SlowWorker(const TestServer& server, std::string group, TestShard shard) {
  ClientOptions options = th::testing::Rank(server, std::move(group));
  options.server = absl::StrReplaceAll(options.server, {{"127.0.0.1", "localhost"}});
  options.uplink_bytes_per_second = kSlowUplink;
  options.transports = {"tcp"};  // which the cap holds back
  return Worker::Make(options, std::move(shard));
}

TEST(SlowSourceTest, AReaderLeavesItForOneThatIsFaster) {
  TestServer server;
  Worker trainer = Worker::Make(server, "trainer", TestShard(kBytes), kUplink);
  Worker slow = SlowWorker(server, "slow", TestShard(kBytes));
  Worker reader = Worker::Make(server, "reader", TestShard(kBytes), kUplink);
  trainer.shard.FillWith(5);
  ASSERT_OK(trainer.PublishAndWait(1));
  // The reader is compared with what the trainer gives this one.
  ASSERT_OK(slow.buffer.Update(Latest()).status());

  BackgroundUpdate update(reader);  // a rollout that holds it comes before the trainer
  ASSERT_OK(update.Wait().status());
  EXPECT_TRUE(update.result->moved());
  EXPECT_TRUE(reader.shard.HasContentOf(5));
  EXPECT_GE(update.result->reroutes, 1u);
  auto bytes = BytesFrom(*update.result);
  EXPECT_GT(bytes.count("slow/0"), 0u);
  EXPECT_GT(bytes["trainer/0"], kBytes / 2);
}

}  // namespace
}  // namespace th
