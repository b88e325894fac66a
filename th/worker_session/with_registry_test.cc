// Several worker sessions against a real registry, on a virtual clock: what a group is promised
// holds whoever dies, stops, comes back or restarts.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_world.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

using Ranks = std::vector<WorldNode*>;

auto Moved() {
  return AllOf(Field(&OperationDone::status, IsOk()),
               Field(&OperationDone::outcome, UpdateOutcome::kMoved));
}
auto Done() { return Field(&OperationDone::status, IsOk()); }

VersionSelector Label(const std::string& text) { return VersionLabel::Parse(text).value(); }

class WithRegistryTest : public ::testing::Test {
 protected:
  // Every rank holds exactly `label`, and nobody ever took a byte of anything else.
  void ExpectHold(const Ranks& ranks, const std::string& label) {
    for (const WorldNode* rank : ranks) {
      EXPECT_TRUE(rank->Holds(label)) << rank->name().ToString();
      EXPECT_EQ(rank->state(), BufferState::kPublished) << rank->name().ToString();
      EXPECT_EQ(rank->session.buffer_version(rank->buffer()).label.text(), label);
      EXPECT_EQ(rank->torn_segments(), 0);
      EXPECT_THAT(rank->refusals, ::testing::IsEmpty());
    }
  }
  std::vector<CallId> BeginUpdate(const Ranks& ranks) {
    std::vector<CallId> calls;
    for (WorldNode* rank : ranks) calls.push_back(rank->Update());
    return calls;
  }
  bool RunUntilHolds(const WorldNode* node, double fraction) {
    return world.RunUntil([&] { return node->held_fraction() >= fraction; });
  }

  World world;
};

TEST_F(WithRegistryTest, ThreeGroupsMoveAtOnceAndRelayToEachOther) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  Ranks rollouts;
  for (const char* name : {"rollout-1", "rollout-2", "rollout-3"}) {
    for (WorldNode* rank : world.JoinGroup(name, 2)) rollouts.push_back(rank);
  }
  EXPECT_THAT(world.PublishAll(trainer, "step-1"), Each(Done()));
  EXPECT_THAT(world.Await(rollouts, BeginUpdate(rollouts)), Each(Moved()));
  ExpectHold(rollouts, "step-1");
  for (const WorldNode* rank : trainer) {
    EXPECT_LE(world.segments_sent_by(*rank), kWorldSegments * 3 / 2) << rank->name().ToString();
  }
}

TEST_F(WithRegistryTest, NothingPublishedIsNotAvailable) {
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  for (const OperationDone& done : world.UpdateAll(rollout)) {
    EXPECT_OK(done.status);
    EXPECT_EQ(done.outcome, UpdateOutcome::kNotAvailable);
    EXPECT_EQ(done.not_available, NotAvailableReason::kNotPublished);
  }
}

TEST_F(WithRegistryTest, AVersionExistsWhenAllRanksHavePublished) {
  Ranks trainer;
  for (uint32_t rank = 0; rank < 4; ++rank) {  // two shards, held twice
    trainer.push_back(world.JoinRank({"trainer", Rank(rank)}, 4, static_cast<int>(rank % 2)));
  }
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  std::vector<CallId> calls;
  for (int rank = 0; rank < 3; ++rank) calls.push_back(trainer[rank]->Publish("step-1"));
  world.Run(absl::Milliseconds(100));
  EXPECT_THAT(world.UpdateAll(rollout),
              Each(Field(&OperationDone::outcome, UpdateOutcome::kNotAvailable)));
  EXPECT_TRUE(trainer[0]->done.empty());
  calls.push_back(trainer[3]->Publish("step-1"));
  EXPECT_THAT(world.Await(trainer, calls), Each(Done()));
  EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, RanksOfOtherGroupSizesMatchByShard) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  Ranks rollout;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    rollout.push_back(
        world.JoinRank({"rollout-1", Rank(rank)}, 4, static_cast<int>((rank + 1) % 2)));
  }
  world.PublishAll(trainer, "step-1");
  EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, ASecondUpdateIsThereAlready) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(rollout);
  EXPECT_THAT(world.UpdateAll(rollout),
              Each(Field(&OperationDone::outcome, UpdateOutcome::kAlreadyThere)));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, TrainingStepsFollowEachOther) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  for (const char* label : {"step-1", "step-2", "step-3"}) {
    EXPECT_THAT(world.PublishAll(trainer, label), Each(Done()));
    EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
    ExpectHold(rollout, label);
    EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
    for (const WorldNode* rank : trainer) EXPECT_EQ(rank->state(), BufferState::kWritable);
  }
}

TEST_F(WithRegistryTest, UnpublishLetsReadersFinishWithinItsDrain) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks rollout = world.JoinGroup("rollout-1", 1);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  const absl::Time before = world.now();
  const auto unpublished = world.UnpublishAll(trainer);
  EXPECT_THAT(unpublished, Each(Done()));
  EXPECT_LT(world.now() - before, absl::Seconds(5));
  EXPECT_EQ(unpublished[0].readers_cut, 0u);
  EXPECT_THAT(world.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, AStoppedReaderDoesNotHoldUpUnpublish) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks rollout = world.JoinGroup("rollout-1", 1);
  world.PublishAll(trainer, "step-1");
  BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  world.Stop(rollout[0]);
  const absl::Time before = world.now();
  const auto unpublished = world.UnpublishAll(trainer);
  EXPECT_THAT(unpublished, Each(Done()));
  EXPECT_EQ(unpublished[0].readers_cut, 1u);
  EXPECT_LE(world.now() - before, absl::Seconds(1));
}

TEST_F(WithRegistryTest, ALateJoinerIsFilledByRolloutsAlone) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks early = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(early);
  world.UnpublishAll(trainer);
  const uint64_t sent = world.segments_sent_by(*trainer[0]);
  const Ranks late = world.JoinGroup("rollout-2", 2);
  EXPECT_THAT(world.UpdateAll(late), Each(Moved()));
  ExpectHold(late, "step-1");
  EXPECT_EQ(world.segments_sent_by(*trainer[0]), sent);
  EXPECT_EQ(late[0]->segments_from().count("rollout-1/0"), 1u);
}

// ---- death and silence of workers

TEST_F(WithRegistryTest, AReaderOutlivesItsRelay) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks relay = world.JoinGroup("rollout-1", 1);
  const Ranks reader = world.JoinGroup("rollout-2", 1);
  world.PublishAll(trainer, "step-1");
  BeginUpdate(relay);
  ASSERT_TRUE(RunUntilHolds(relay[0], 0.2));
  const std::vector<CallId> updating = BeginUpdate(reader);
  ASSERT_TRUE(RunUntilHolds(reader[0], 0.2));
  ASSERT_GT(reader[0]->segments_from().count("rollout-1/0"), 0u) << "nothing was relayed";
  world.Kill(relay[0]);
  EXPECT_THAT(world.Await(reader, updating), Each(Moved()));
  ExpectHold(reader, "step-1");
}

TEST_F(WithRegistryTest, AStoppedSourceCostsItsReaderLessThanASecond) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks other = world.JoinGroup("rollout-1", 1);
  const Ranks reader = world.JoinGroup("rollout-2", 1);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(other);
  const absl::Time before = world.now();
  const std::vector<CallId> updating = BeginUpdate(reader);
  ASSERT_TRUE(RunUntilHolds(reader[0], 0.3));
  const bool from_other = reader[0]->segments_from().count("rollout-1/0") > 0;
  world.Stop(from_other ? other[0] : trainer[0]);
  EXPECT_THAT(world.Await(reader, updating), Each(Moved()));
  ExpectHold(reader, "step-1");
  const absl::Duration undisturbed = kWorldSegments * (kWorldSegmentTime + 2 * kWorldLatency);
  EXPECT_LT(world.now() - before, undisturbed + absl::Seconds(1));
  EXPECT_EQ(reader[0]->sources_lost(), 1);
}

TEST_F(WithRegistryTest, ADeadRankEndsTheUpdateOfItsGroupByName) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[1], 0.5));
  world.Kill(rollout[0]);
  const auto done = world.Await({rollout[1]}, {updating[1]});
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("UPDATE_FAILED run=r1 model=qwen3"),
                                             HasSubstr("rollout-1/0"))));
  EXPECT_TRUE(done[0].buffer_undefined);
  EXPECT_EQ(rollout[1]->state(), BufferState::kUndefined);
}

TEST_F(WithRegistryTest, AKilledRankRejoinsAndItsGroupMovesWithoutMovingTheSurvivorsBytesAgain) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  world.Kill(rollout[0]);
  world.Run(absl::Milliseconds(10));
  const Ranks again = {world.JoinRank({"rollout-1", Rank(0)}, 2), rollout[1]};
  ASSERT_TRUE(again[0]->session.joined());
  const auto done = world.Await({rollout[1]}, {updating[1]});
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kAborted, HasSubstr("rollout-1/0")));
  EXPECT_THAT(world.UpdateAll(again), Each(Moved()));
  ExpectHold(again, "step-1");
  int survivor_segments = 0;
  for (const auto& [source, segments] : rollout[1]->segments_from()) survivor_segments += segments;
  EXPECT_LE(survivor_segments, static_cast<int>(kWorldSegments) + 1);
}

TEST_F(WithRegistryTest, AWorkerThatWasStoppedBeyondItsLeaseIsToldToJoinAgain) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  world.PublishAll(trainer, "step-1");
  world.Stop(trainer[0]);
  world.Run(absl::Seconds(8));
  world.Continue(trainer[0]);
  ASSERT_TRUE(world.RunUntil([&] { return trainer[0]->ended.has_value(); }));
  EXPECT_THAT(trainer[0]->ended->status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("join again")));
  EXPECT_EQ(trainer[0]->state(), BufferState::kWritable);
}

TEST_F(WithRegistryTest, AShortStopGoesUnnoticed) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks rollout = world.JoinGroup("rollout-1", 1);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  world.Stop(rollout[0]);
  world.Run(absl::Seconds(2));
  world.Continue(rollout[0]);
  EXPECT_THAT(world.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, ARankAgainstALiveOneIsRefusedByName) {
  world.JoinGroup("trainer", 1);
  const WorldNode* second = world.JoinRank({"trainer", Rank(0)}, 1);
  ASSERT_TRUE(second->ended.has_value());
  EXPECT_THAT(second->ended->status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("JOIN_REFUSED"), HasSubstr("node0:1"))));
}

// ---- broken streams and restarts of the server

TEST_F(WithRegistryTest, ABrokenStreamDoesNotDisturbTheFill) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  world.BreakStream(rollout[0]);
  world.BreakStream(trainer[1]);
  EXPECT_THAT(world.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
  EXPECT_EQ(rollout[0]->sources_lost() + rollout[1]->sources_lost(), 0);
  EXPECT_EQ(rollout[0]->segments_from().at("trainer/0"), static_cast<int>(kWorldSegments));
}

TEST_F(WithRegistryTest, ARestartOfTheServerDoesNotDisturbTransfers) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  world.KillServer();
  world.Run(absl::Milliseconds(100));
  world.StartServer();
  EXPECT_THAT(world.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
  EXPECT_EQ(rollout[0]->sources_lost() + rollout[1]->sources_lost(), 0);
  EXPECT_EQ(rollout[0]->session.epoch(), Epoch(2));
}

TEST_F(WithRegistryTest, ATransferThatEndsWithoutAServerIsGoodWhenItIsBack) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  world.Run(absl::Milliseconds(100));  // sealed
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  world.KillServer();
  world.Run(absl::Seconds(3));
  EXPECT_TRUE(rollout[0]->done.empty());
  world.StartServer();
  EXPECT_THAT(world.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(WithRegistryTest, NewOperationsWorkSoonAfterARestart) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(rollout);
  world.UnpublishAll(trainer);
  world.KillServer();
  world.Run(absl::Milliseconds(200));
  world.StartServer();
  const absl::Time restarted = world.now();
  const auto published = world.PublishAll(trainer, "step-2");
  EXPECT_THAT(published, Each(Done()));
  EXPECT_EQ(published[0].version.sequence.epoch(), Epoch(2));
  EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
  EXPECT_LE(world.now() - restarted, absl::Seconds(3));
  ExpectHold(rollout, "step-2");
}

TEST_F(WithRegistryTest, APublishAcrossARestartIsNamedByTheNewServer) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const CallId first = trainer[0]->Publish("step-1");
  world.Run(absl::Milliseconds(50));
  world.KillServer();
  const CallId second = trainer[1]->Publish("step-1");
  world.Run(absl::Milliseconds(300));
  world.StartServer();
  const auto done = world.Await(trainer, {first, second});
  EXPECT_THAT(done, Each(Done()));
  EXPECT_EQ(done[0].version, done[1].version);
}

TEST_F(WithRegistryTest, UnpublishWithoutAServerIsShortAndHeardLater) {
  const Ranks trainer = world.JoinGroup("trainer", 2);
  const Ranks rollout = world.JoinGroup("rollout-1", 2);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(rollout);
  world.KillServer();
  world.Run(absl::Milliseconds(10));
  const absl::Time before = world.now();
  EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
  EXPECT_LE(world.now() - before, absl::Seconds(1.5));
  world.StartServer();
  world.Run(absl::Seconds(3));
  EXPECT_THAT(world.PublishAll(trainer, "step-2"), Each(Done()));
  EXPECT_THAT(world.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-2");
}

TEST_F(WithRegistryTest, LatestDoesNotGoBackOverARestart) {
  const Ranks trainer = world.JoinGroup("trainer", 1);
  const Ranks old = world.JoinGroup("rollout-1", 1);
  const Ranks fresh = world.JoinGroup("rollout-2", 1);
  world.PublishAll(trainer, "step-1");
  world.UpdateAll(old);
  world.UnpublishAll(trainer);
  world.PublishAll(trainer, "step-2");
  world.KillServer();
  world.Kill(trainer[0]);  // the only one that has step-2
  world.Run(absl::Milliseconds(100));
  world.StartServer();
  world.Run(absl::Milliseconds(500));
  const auto done = world.UpdateAll(fresh);
  EXPECT_OK(done[0].status);
  EXPECT_EQ(done[0].outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(done[0].not_available, NotAvailableReason::kLost);
}

// ---- roll-back

class RollBackTest : public WithRegistryTest {
 protected:
  void SetUp() override {
    trainer = world.JoinGroup("trainer", 1);
    keeper = world.JoinGroup("rollout-1", 1);
    reader = world.JoinGroup("rollout-2", 1);
    world.PublishAll(trainer, "step-1");
    world.UpdateAll(keeper);
    world.UnpublishAll(trainer);
    world.PublishAll(trainer, "step-2");
    world.UpdateAll(reader);
    ExpectHold(reader, "step-2");
  }
  void RollBackTo(const Ranks& by, const std::string& label) {
    ASSERT_OK(world.RunCommandOf(by[0], {"resume-1", RollBack{Label(label)}}).status);
    world.Run(absl::Milliseconds(100));
  }

  Ranks trainer, keeper, reader;
};

TEST_F(RollBackTest, ATrainerThatRollsBackGoesOnAndReadersFollow) {
  RollBackTo(trainer, "step-1");
  EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
  EXPECT_THAT(world.UpdateAll(reader), Each(Moved()));
  ExpectHold(reader, "step-1");
  EXPECT_THAT(world.PublishAll(trainer, "step-2b"), Each(Done()));
  EXPECT_THAT(world.UpdateAll(reader), Each(Moved()));
  ExpectHold(reader, "step-2b");
}

TEST_F(RollBackTest, ATrainerOfThePastIsToldAndCannotGoOn) {
  RollBackTo(keeper, "step-1");
  EXPECT_EQ(trainer[0]->lost_publications.size(), 1u);
  EXPECT_EQ(trainer[0]->state(), BufferState::kWritable);
  EXPECT_THAT(world.UnpublishAll(trainer)[0].status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("PUBLICATION_LOST")));
  EXPECT_THAT(world.PublishAll(trainer, "step-3")[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("PUBLISH_REFUSED"), HasSubstr("rolled back"))));
  EXPECT_THAT(world.UpdateAll(reader), Each(Moved()));
  ExpectHold(reader, "step-1");
}

// ---- anything, in any order

class ChaosTest : public ::testing::TestWithParam<uint64_t> {};

// A small generator, so that a seed names one run for ever.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Roll(uint64_t sides) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % sides;
  }

 private:
  uint64_t state_;
};

TEST_P(ChaosTest, EveryCallEndsAndNothingIsEverTorn) {
  Dice dice(GetParam());
  World world;
  const Ranks trainer = world.JoinGroup("trainer", 2);
  std::vector<Ranks> rollouts;
  for (const char* name : {"rollout-1", "rollout-2", "rollout-3"}) {
    rollouts.push_back(world.JoinGroup(name, 2));
  }
  Ranks all = trainer;
  for (const Ranks& group : rollouts) all.insert(all.end(), group.begin(), group.end());
  std::vector<std::string> labels;
  for (int step = 1; step <= 4; ++step) {
    labels.push_back("step-" + std::to_string(step));
    EXPECT_THAT(world.PublishAll(trainer, labels.back()), Each(Done()));
    std::vector<std::vector<CallId>> calls;
    for (const Ranks& group : rollouts) {
      calls.emplace_back();
      for (WorldNode* rank : group) calls.back().push_back(rank->Update());
    }
    for (int mishap = 0; mishap < 3; ++mishap) {
      world.Run(absl::Milliseconds(dice.Roll(200)));
      WorldNode* victim = all[dice.Roll(all.size())];
      switch (dice.Roll(3)) {
        case 0:
          world.BreakStream(victim);
          break;
        case 1:
          world.Stop(victim);
          world.Run(absl::Milliseconds(dice.Roll(1500)));
          world.Continue(victim);
          break;
        default:
          world.KillServer();
          world.Run(absl::Milliseconds(dice.Roll(800)));
          world.StartServer();
      }
    }
    for (size_t group = 0; group < rollouts.size(); ++group) {
      const auto done = world.Await(rollouts[group], calls[group]);
      EXPECT_THAT(done, Each(Moved())) << "nobody died and nothing was long";
      EXPECT_EQ(done[0].version, done[1].version);
      for (const WorldNode* rank : rollouts[group]) EXPECT_TRUE(rank->Holds(labels.back()));
    }
    EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
    for (const WorldNode* rank : all) {
      EXPECT_EQ(rank->torn_segments(), 0);
      EXPECT_FALSE(rank->ended.has_value()) << rank->ended->status;
    }
  }
}

// Ranks die too, and come back as new processes: what they were in ends with an error for all, and
// the next try of whoever is there moves.
TEST_P(ChaosTest, WhoeverDiesTheRestGoesOn) {
  Dice dice(GetParam() + 1000);
  World world;
  const Ranks trainer = world.JoinGroup("trainer", 2);
  std::vector<Ranks> rollouts = {world.JoinGroup("rollout-1", 2), world.JoinGroup("rollout-2", 2),
                                 world.JoinGroup("rollout-3", 2)};
  for (int step = 1; step <= 3; ++step) {
    const std::string label = "step-" + std::to_string(step);
    EXPECT_THAT(world.PublishAll(trainer, label), Each(Done()));
    std::vector<std::pair<WorldNode*, CallId>> calls;
    for (const Ranks& group : rollouts) {
      for (WorldNode* rank : group) calls.emplace_back(rank, rank->Update());
    }
    for (int mishap = 0; mishap < 2; ++mishap) {
      world.Run(absl::Milliseconds(dice.Roll(250)));
      Ranks& group = rollouts[dice.Roll(rollouts.size())];
      WorldNode*& victim = group[dice.Roll(group.size())];
      world.Kill(victim);
      world.Run(absl::Milliseconds(dice.Roll(100)));
      if (dice.Roll(3) == 0) {
        world.KillServer();
        world.Run(absl::Milliseconds(dice.Roll(500)));
        world.StartServer();
      }
      victim = world.JoinRank(victim->name(), 2);
      ASSERT_TRUE(victim->session.joined()) << victim->ended->status;
    }
    for (const auto& [rank, call] : calls) {
      if (rank->alive) world.Await({rank}, {call});
    }
    for (const Ranks& group : rollouts) {
      std::vector<OperationDone> done;
      for (int attempt = 0; attempt < 3 && (done.empty() || !done[0].status.ok()); ++attempt) {
        done = world.UpdateAll(group);
      }
      EXPECT_THAT(done, Each(Done()));
      for (const WorldNode* rank : group) {
        EXPECT_TRUE(rank->Holds(label)) << rank->name().ToString();
        EXPECT_EQ(rank->state(), BufferState::kPublished);
        EXPECT_EQ(rank->torn_segments(), 0);
      }
    }
    EXPECT_THAT(world.UnpublishAll(trainer), Each(Done()));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace th
