// Sessions against a real registry, on a virtual clock: bytes that arrive wrong, and a trainer
// whose server stays away for long.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_world.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::th::testing::IsOk;

using Ranks = std::vector<WorldNode*>;

auto Moved() {
  return AllOf(Field(&OperationDone::status, IsOk()),
               Field(&OperationDone::outcome, UpdateOutcome::kMoved));
}
auto Done() { return Field(&OperationDone::status, IsOk()); }

class WorldMishapsTest : public ::testing::Test {
 protected:
  void ExpectHold(const Ranks& ranks, const std::string& label) {
    for (const WorldNode* rank : ranks) {
      EXPECT_TRUE(rank->Holds(label)) << rank->name().ToString();
      EXPECT_EQ(rank->torn_segments(), 0);
    }
  }

  World world;
};

// One source is assigned; the segment that it sends wrong comes from the spare holder.
TEST_F(WorldMishapsTest, AFlippedBitIsFetchedFromTheSpareHolderAndTheNextReaderAvoidsTheSuspect) {
  const Ranks first = world.JoinGroup("trainer-a", 1), second = world.JoinGroup("trainer-b", 1);
  world.PublishAll(first, "step-1");
  world.PublishAll(second, "step-1");
  const Ranks reader = world.JoinGroup("rollout-1", 1), next = world.JoinGroup("rollout-2", 1);
  const std::vector<CallId> update = {reader[0]->Update()};
  ASSERT_TRUE(world.RunUntil([&] { return reader[0]->held_fraction() >= 0.1; }));
  WorldNode* const suspect =
      reader[0]->segments_from().begin()->first == "trainer-a/0" ? first[0] : second[0];
  WorldNode* const spare = suspect == first[0] ? second[0] : first[0];
  ASSERT_EQ(world.segments_sent_by(*spare), 0);
  suspect->FlipNext(7);
  EXPECT_THAT(world.Await(reader, update), Each(Moved()));
  EXPECT_EQ(reader[0]->corrupt_segments(), 1);
  EXPECT_GT(reader[0]->segments_from().at(spare->name().ToString()), 0);
  EXPECT_EQ(reader[0]->sources_lost(), 0);
  ExpectHold(reader, "step-1");

  const uint64_t sent = world.segments_sent_by(*suspect);
  EXPECT_THAT(world.UpdateAll(next), Each(Moved()));
  EXPECT_EQ(world.segments_sent_by(*suspect), sent);
}

TEST_F(WorldMishapsTest, AFlippedBitIsFetchedFromTheSameHolderWhenThereIsNoOther) {
  const Ranks trainer = world.JoinGroup("trainer", 1), reader = world.JoinGroup("rollout-1", 1);
  world.PublishAll(trainer, "step-1");
  trainer[0]->FlipNext(7);
  EXPECT_THAT(world.UpdateAll(reader), Each(Moved()));
  EXPECT_EQ(reader[0]->corrupt_segments(), 1);
  EXPECT_EQ(world.segments_sent_by(*trainer[0]), kWorldSegments + 1);
  ExpectHold(reader, "step-1");
}

// Two ranks, whose numbers have to stay alike.
TEST_F(WorldMishapsTest, AThousandStepsWithoutAServerAreHeardOfWhenItIsBack) {
  const Ranks trainer = world.JoinGroup("trainer", 2), rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-0");
  world.UnpublishAll(trainer);
  world.KillServer();
  world.Run(absl::Seconds(2));
  for (int step = 1; step <= 1'000; ++step) {
    for (WorldNode* rank : trainer) rank->Publish(absl::StrCat("step-", step));
    EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
  }
  world.StartServer();
  EXPECT_THAT(world.PublishAll(trainer, "step-1001"), Each(Done()));
  EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1001");
}

}  // namespace
}  // namespace th
