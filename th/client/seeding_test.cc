// A version comes into a site once; what callers there do meanwhile.
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::th::testing::BackgroundUpdate;
using ::th::testing::kPatience;
using ::th::testing::kSlowBytes;
using ::th::testing::kSlowUplink;
using ::th::testing::Rank;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr uint64_t kRoom = uint64_t{64} << 20;

class SeedingTest : public ::testing::Test {
 protected:
  // All share one data plane, whose uplink lets a version take a second and a half.
  Worker Member(const std::string& group, const std::string& site) {
    ClientOptions options = Rank(server_, group);
    options.location.site = site;
    options.uplink_bytes_per_second = kSlowUplink;
    options.transports = {"tcp"};  // which the cap holds back
    options.offload_limit_bytes = kRoom;
    return Worker::Make(options, TestShard(kSlowBytes));
  }

  TestServer server_;
};

TEST_F(SeedingTest, WhileOneBringsItTheOtherGoesOnWithWhatItHas) {
  Worker trainer = Member("trainer", "east");
  Worker first = Member("first", "west");
  Worker second = Member("second", "west");
  second.shard.FillWith(1);
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  BackgroundUpdate seed(first, {.when_seeding = WhenSeeding::kSkip});
  ASSERT_TRUE(seed.under_way.WaitForNotificationWithTimeout(kPatience));

  ASSERT_OK_AND_ASSIGN(const UpdateResult skipped,
                       second.buffer.Update(Latest(), {.when_seeding = WhenSeeding::kSkip}));
  EXPECT_EQ(skipped.outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(skipped.reason, NotAvailableReason::kSeeding);
  EXPECT_TRUE(second.shard.HasContentOf(1));

  ASSERT_OK(seed.Wait().status());
  EXPECT_TRUE(seed.Wait()->moved());
  ASSERT_OK_AND_ASSIGN(const UpdateResult moved,
                       second.buffer.Update(Latest(), {.when_seeding = WhenSeeding::kSkip}));
  ASSERT_TRUE(moved.moved());
  EXPECT_TRUE(second.shard.HasContentOf(2));
  ASSERT_FALSE(moved.sources.empty());
  EXPECT_EQ(moved.sources[0].name, "first/0");
}

TEST_F(SeedingTest, ACopyBringsItIntoHostMemoryAndTheBufferMovesFromThere) {
  Worker trainer = Member("trainer", "east");
  Worker rollout = Member("rollout", "west");
  rollout.shard.FillWith(1);
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(UpdateResult result,
                       rollout.buffer.Update(Latest(), {.when_seeding = WhenSeeding::kCopy}));
  EXPECT_EQ(result.reason, NotAvailableReason::kSeeding);
  EXPECT_TRUE(rollout.shard.HasContentOf(1));
  const absl::Time deadline = absl::Now() + kPatience;
  while (!result.moved() && absl::Now() < deadline) {
    ASSERT_OK_AND_ASSIGN(result,
                         rollout.buffer.Update(Latest(), {.when_seeding = WhenSeeding::kCopy}));
  }
  ASSERT_TRUE(result.moved());
  EXPECT_TRUE(rollout.shard.HasContentOf(2));
  ASSERT_FALSE(result.sources.empty());
  EXPECT_EQ(result.sources[0].name, "rollout/0");  // its own copy
}

TEST_F(SeedingTest, WithoutASiteSkippingIsWaiting) {
  Worker trainer = Member("trainer", "");
  Worker first = Member("first", "");
  trainer.shard.FillWith(2);
  ASSERT_OK(trainer.PublishAndWait(2));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result,
                       first.buffer.Update(Latest(), {.when_seeding = WhenSeeding::kCopy}));
  EXPECT_TRUE(result.moved());
}

}  // namespace
}  // namespace th
