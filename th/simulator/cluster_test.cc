// Several worker sessions against a real registry, on a virtual clock: what a group is promised
// holds whoever dies, stops, comes back or restarts.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/simulator/cluster_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

using Ranks = std::vector<SimulatedWorker*>;

auto Moved() {
  return AllOf(Field(&OperationDone::status, IsOk()),
               Field(&OperationDone::outcome, UpdateOutcome::kMoved));
}
auto Done() { return Field(&OperationDone::status, IsOk()); }

VersionSelector Label(const std::string& text) { return VersionLabel::Parse(text).value(); }

class ClusterTest : public ::testing::Test {
 protected:
  // Every rank holds exactly `label`, and nobody ever took a byte of anything else.
  void ExpectHold(const Ranks& ranks, const std::string& label) {
    for (const SimulatedWorker* rank : ranks) {
      EXPECT_TRUE(rank->buffer().Is(label)) << rank->Name();
      EXPECT_EQ(rank->state(), BufferState::kPublished) << rank->Name();
      EXPECT_EQ(rank->session().buffer_version(rank->buffer_id()).label.text(), label);
      EXPECT_THAT(rank->refusals, ::testing::IsEmpty());
    }
  }
  std::vector<CallId> BeginUpdate(const Ranks& ranks) {
    std::vector<CallId> calls;
    for (SimulatedWorker* rank : ranks) calls.push_back(rank->Update());
    return calls;
  }
  bool RunUntilHolds(const SimulatedWorker* node, double fraction) {
    return cluster.RunUntil([&] { return node->held_fraction() >= fraction; });
  }

  ClusterHarness cluster;
};

TEST_F(ClusterTest, ThreeGroupsMoveAtOnceAndRelayToEachOther) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  Ranks rollouts;
  for (const char* name : {"rollout-1", "rollout-2", "rollout-3"}) {
    for (SimulatedWorker* rank : cluster.JoinGroup(name, 2)) rollouts.push_back(rank);
  }
  EXPECT_THAT(cluster.PublishAll(trainer, "step-1"), Each(Done()));
  EXPECT_THAT(cluster.Await(rollouts, BeginUpdate(rollouts)), Each(Moved()));
  ExpectHold(rollouts, "step-1");
  for (const SimulatedWorker* rank : trainer) {
    EXPECT_LE(rank->segments_sent(), kHarnessSegments * 3 / 2) << rank->Name();
  }
}

TEST_F(ClusterTest, NothingPublishedIsNotAvailable) {
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  for (const OperationDone& done : cluster.UpdateAll(rollout)) {
    EXPECT_OK(done.status);
    EXPECT_EQ(done.outcome, UpdateOutcome::kNotAvailable);
    EXPECT_EQ(done.not_available, NotAvailableReason::kNotPublished);
  }
}

TEST_F(ClusterTest, AVersionExistsWhenAllRanksHavePublished) {
  Ranks trainer;
  for (uint32_t rank = 0; rank < 4; ++rank) {  // two shards, held twice
    trainer.push_back(cluster.JoinRank({"trainer", Rank(rank)}, 4, static_cast<int>(rank % 2)));
  }
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  std::vector<CallId> calls;
  for (int rank = 0; rank < 3; ++rank) calls.push_back(cluster.Publish(trainer[rank], "step-1"));
  cluster.Run(absl::Milliseconds(100));
  EXPECT_THAT(cluster.UpdateAll(rollout),
              Each(Field(&OperationDone::outcome, UpdateOutcome::kNotAvailable)));
  EXPECT_TRUE(trainer[0]->done.empty());
  calls.push_back(cluster.Publish(trainer[3], "step-1"));
  EXPECT_THAT(cluster.Await(trainer, calls), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, RanksOfOtherGroupSizesMatchByShard) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  Ranks rollout;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    rollout.push_back(
        cluster.JoinRank({"rollout-1", Rank(rank)}, 4, static_cast<int>((rank + 1) % 2)));
  }
  cluster.PublishAll(trainer, "step-1");
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, ASecondUpdateIsThereAlready) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(rollout);
  EXPECT_THAT(cluster.UpdateAll(rollout),
              Each(Field(&OperationDone::outcome, UpdateOutcome::kAlreadyThere)));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, TrainingStepsFollowEachOther) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  for (const char* label : {"step-1", "step-2", "step-3"}) {
    EXPECT_THAT(cluster.PublishAll(trainer, label), Each(Done()));
    EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
    ExpectHold(rollout, label);
    EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
    for (const SimulatedWorker* rank : trainer) EXPECT_EQ(rank->state(), BufferState::kWritable);
  }
}

TEST_F(ClusterTest, UnpublishLetsReadersFinishWithinItsDrain) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  const absl::Time before = cluster.now();
  const auto unpublished = cluster.UnpublishAll(trainer);
  EXPECT_THAT(unpublished, Each(Done()));
  EXPECT_LT(cluster.now() - before, absl::Seconds(5));
  EXPECT_EQ(unpublished[0].readers_cut, 0u);
  EXPECT_THAT(cluster.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, AStoppedReaderDoesNotHoldUpUnpublish) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  rollout[0]->Stop();
  const absl::Time before = cluster.now();
  const auto unpublished = cluster.UnpublishAll(trainer);
  EXPECT_THAT(unpublished, Each(Done()));
  EXPECT_EQ(unpublished[0].readers_cut, 1u);
  EXPECT_LE(cluster.now() - before, absl::Seconds(1));
}

TEST_F(ClusterTest, ALateJoinerIsFilledByRolloutsAlone) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks early = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(early);
  cluster.UnpublishAll(trainer);
  const uint64_t sent = trainer[0]->segments_sent();
  const Ranks late = cluster.JoinGroup("rollout-2", 2);
  EXPECT_THAT(cluster.UpdateAll(late), Each(Moved()));
  ExpectHold(late, "step-1");
  EXPECT_EQ(trainer[0]->segments_sent(), sent);
  EXPECT_EQ(late[0]->segments_from().count("rollout-1/0"), 1u);
}

// ---- death and silence of workers

TEST_F(ClusterTest, AReaderOutlivesItsRelay) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks relay = cluster.JoinGroup("rollout-1", 1);
  const Ranks reader = cluster.JoinGroup("rollout-2", 1);
  cluster.PublishAll(trainer, "step-1");
  BeginUpdate(relay);
  ASSERT_TRUE(RunUntilHolds(relay[0], 0.2));
  const std::vector<CallId> updating = BeginUpdate(reader);
  ASSERT_TRUE(RunUntilHolds(reader[0], 0.2));
  ASSERT_GT(reader[0]->segments_from().count("rollout-1/0"), 0u) << "nothing was relayed";
  relay[0]->Kill();
  EXPECT_THAT(cluster.Await(reader, updating), Each(Moved()));
  ExpectHold(reader, "step-1");
}

TEST_F(ClusterTest, AStoppedSourceCostsItsReaderLessThanASecond) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks other = cluster.JoinGroup("rollout-1", 1);
  const Ranks reader = cluster.JoinGroup("rollout-2", 1);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(other);
  const absl::Time before = cluster.now();
  const std::vector<CallId> updating = BeginUpdate(reader);
  ASSERT_TRUE(RunUntilHolds(reader[0], 0.3));
  const bool from_other = reader[0]->segments_from().count("rollout-1/0") > 0;
  (from_other ? other[0] : trainer[0])->Stop();
  EXPECT_THAT(cluster.Await(reader, updating), Each(Moved()));
  ExpectHold(reader, "step-1");
  const absl::Duration undisturbed = kHarnessSegments * (kHarnessSegmentTime + 2 * kHarnessLatency);
  EXPECT_LT(cluster.now() - before, undisturbed + absl::Seconds(1));
  EXPECT_EQ(reader[0]->sources_lost(), 1u);
}

TEST_F(ClusterTest, ADeadRankEndsTheUpdateOfItsGroupByName) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[1], 0.5));
  rollout[0]->Kill();
  const auto done = cluster.Await({rollout[1]}, {updating[1]});
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("UPDATE_FAILED run=r1 model=qwen3"),
                                             HasSubstr("rollout-1/0"))));
  EXPECT_TRUE(done[0].buffer_undefined);
  EXPECT_EQ(rollout[1]->state(), BufferState::kUndefined);
}

TEST_F(ClusterTest, AKilledRankRejoinsAndItsGroupMovesWithoutMovingTheSurvivorsBytesAgain) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.5));
  rollout[0]->Kill();
  cluster.Run(absl::Milliseconds(10));
  const Ranks again = {cluster.JoinRank({"rollout-1", Rank(0)}, 2), rollout[1]};
  ASSERT_TRUE(again[0]->session().joined());
  const auto done = cluster.Await({rollout[1]}, {updating[1]});
  EXPECT_THAT(done[0].status, StatusIs(absl::StatusCode::kAborted, HasSubstr("rollout-1/0")));
  EXPECT_THAT(cluster.UpdateAll(again), Each(Moved()));
  ExpectHold(again, "step-1");
  uint64_t survivor_segments = 0;
  for (const auto& [source, segments] : rollout[1]->segments_from()) survivor_segments += segments;
  EXPECT_LE(survivor_segments, kHarnessSegments + 1);
}

TEST_F(ClusterTest, AWorkerThatWasStoppedBeyondItsLeaseIsToldToJoinAgain) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  cluster.PublishAll(trainer, "step-1");
  trainer[0]->Stop();
  cluster.Run(absl::Seconds(8));
  trainer[0]->Continue();
  ASSERT_TRUE(cluster.RunUntil([&] { return trainer[0]->ended().has_value(); }));
  EXPECT_THAT(trainer[0]->ended()->status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("join again")));
  EXPECT_EQ(trainer[0]->state(), BufferState::kWritable);
}

TEST_F(ClusterTest, AShortStopGoesUnnoticed) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 1);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  rollout[0]->Stop();
  cluster.Run(absl::Seconds(2));
  rollout[0]->Continue();
  EXPECT_THAT(cluster.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, ARankAgainstALiveOneIsRefusedByName) {
  cluster.JoinGroup("trainer", 1);
  const SimulatedWorker* second = cluster.JoinRank({"trainer", Rank(0)}, 1);
  ASSERT_TRUE(second->ended().has_value());
  EXPECT_THAT(second->ended()->status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("JOIN_REFUSED"), HasSubstr("w0:1"))));
}

// ---- broken streams and restarts of the server

TEST_F(ClusterTest, ABrokenStreamDoesNotDisturbTheFill) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  rollout[0]->BreakStream();
  trainer[1]->BreakStream();
  EXPECT_THAT(cluster.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
  EXPECT_EQ(rollout[0]->sources_lost() + rollout[1]->sources_lost(), 0u);
  EXPECT_EQ(rollout[0]->segments_from().at("trainer/0"), kHarnessSegments);
}

TEST_F(ClusterTest, ARestartOfTheServerDoesNotDisturbTransfers) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  cluster.KillServer();
  cluster.Run(absl::Milliseconds(100));
  cluster.StartServer();
  EXPECT_THAT(cluster.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
  EXPECT_EQ(rollout[0]->sources_lost() + rollout[1]->sources_lost(), 0u);
  EXPECT_EQ(rollout[0]->session().epoch(), Epoch(2));
}

TEST_F(ClusterTest, ATransferThatEndsWithoutAServerIsGoodWhenItIsBack) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.Run(absl::Milliseconds(100));  // sealed
  const std::vector<CallId> updating = BeginUpdate(rollout);
  ASSERT_TRUE(RunUntilHolds(rollout[0], 0.3));
  cluster.KillServer();
  cluster.Run(absl::Seconds(3));
  EXPECT_TRUE(rollout[0]->done.empty());
  cluster.StartServer();
  EXPECT_THAT(cluster.Await(rollout, updating), Each(Moved()));
  ExpectHold(rollout, "step-1");
}

TEST_F(ClusterTest, NewOperationsWorkSoonAfterARestart) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(rollout);
  cluster.UnpublishAll(trainer);
  cluster.KillServer();
  cluster.Run(absl::Milliseconds(200));
  cluster.StartServer();
  const absl::Time restarted = cluster.now();
  const auto published = cluster.PublishAll(trainer, "step-2");
  EXPECT_THAT(published, Each(Done()));
  EXPECT_EQ(published[0].version.sequence.epoch(), Epoch(2));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  EXPECT_LE(cluster.now() - restarted, absl::Seconds(3));
  ExpectHold(rollout, "step-2");
}

TEST_F(ClusterTest, APublishAcrossARestartIsNamedByTheNewServer) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const CallId first = cluster.Publish(trainer[0], "step-1");
  cluster.Run(absl::Milliseconds(50));
  cluster.KillServer();
  const CallId second = cluster.Publish(trainer[1], "step-1");
  cluster.Run(absl::Milliseconds(300));
  cluster.StartServer();
  const auto done = cluster.Await(trainer, {first, second});
  EXPECT_THAT(done, Each(Done()));
  EXPECT_EQ(done[0].version, done[1].version);
}

TEST_F(ClusterTest, UnpublishWithoutAServerIsShortAndHeardLater) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  const Ranks rollout = cluster.JoinGroup("rollout-1", 2);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(rollout);
  cluster.KillServer();
  cluster.Run(absl::Milliseconds(10));
  const absl::Time before = cluster.now();
  EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  EXPECT_LE(cluster.now() - before, absl::Seconds(1.5));
  cluster.StartServer();
  cluster.Run(absl::Seconds(3));
  EXPECT_THAT(cluster.PublishAll(trainer, "step-2"), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(rollout), Each(Moved()));
  ExpectHold(rollout, "step-2");
}

// One rank has heard that a copy comes first, the other has not, and has no server to ask.
class HalfOffloadedTest : public ClusterTest, public ::testing::WithParamInterface<size_t> {};
TEST_P(HalfOffloadedTest, AnUnpublishThatOneRankEndsWithoutTheServerEndsForAll) {
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  cluster.RunCommandOf(trainer[0], {"keep", SetRetention{.keep_latest = 1}});
  cluster.PublishAll(trainer, "step-1");
  for (SimulatedWorker* rank : trainer) rank->SetOnRetention(OnRetention::kOffload);
  const CallId waits = trainer[0]->Unpublish();
  const CallId drains = trainer[1]->Unpublish();
  cluster.Run(kHarnessLatency / 2);
  trainer[1]->Stop();
  ASSERT_TRUE(cluster.RunUntil([&] { return !trainer[0]->copies().empty(); }));
  cluster.KillServer();
  trainer[1]->Continue();
  EXPECT_THAT(cluster.Await({trainer[1]}, {drains}), Each(Done()));
  SimulatedWorker* first = trainer[GetParam()];
  SimulatedWorker* second = trainer[1 - GetParam()];
  second->Stop();
  cluster.StartServer();
  ASSERT_TRUE(cluster.RunUntil([&] { return first->session().epoch() == Epoch(2); }));
  const absl::Time back = cluster.now();
  second->Continue();
  EXPECT_THAT(cluster.Await({trainer[0]}, {waits}), Each(Done()));
  EXPECT_LE(cluster.now() - back, absl::Seconds(5));
  EXPECT_THAT(cluster.PublishAll(trainer, "step-2"), Each(Done()));
}
INSTANTIATE_TEST_SUITE_P(FirstBack, HalfOffloadedTest, ::testing::Values(0, 1));

TEST_F(ClusterTest, LatestDoesNotGoBackOverARestart) {
  const Ranks trainer = cluster.JoinGroup("trainer", 1);
  const Ranks old = cluster.JoinGroup("rollout-1", 1);
  const Ranks fresh = cluster.JoinGroup("rollout-2", 1);
  cluster.PublishAll(trainer, "step-1");
  cluster.UpdateAll(old);
  cluster.UnpublishAll(trainer);
  cluster.PublishAll(trainer, "step-2");
  cluster.KillServer();
  trainer[0]->Kill();  // the only one that has step-2
  cluster.Run(absl::Milliseconds(100));
  cluster.StartServer();
  cluster.Run(absl::Milliseconds(500));
  const auto done = cluster.UpdateAll(fresh);
  EXPECT_OK(done[0].status);
  EXPECT_EQ(done[0].outcome, UpdateOutcome::kNotAvailable);
  EXPECT_EQ(done[0].not_available, NotAvailableReason::kLost);
}

// ---- roll-back

class ClusterRollBackTest : public ClusterTest {
 protected:
  void SetUp() override {
    trainer = cluster.JoinGroup("trainer", 1);
    keeper = cluster.JoinGroup("rollout-1", 1);
    reader = cluster.JoinGroup("rollout-2", 1);
    cluster.PublishAll(trainer, "step-1");
    cluster.UpdateAll(keeper);
    cluster.UnpublishAll(trainer);
    cluster.PublishAll(trainer, "step-2");
    cluster.UpdateAll(reader);
    ExpectHold(reader, "step-2");
  }
  void RollBackTo(const Ranks& by, const std::string& label) {
    ASSERT_OK(cluster.RunCommandOf(by[0], {"resume-1", RollBack{Label(label)}}).status);
    cluster.Run(absl::Milliseconds(100));
  }

  Ranks trainer, keeper, reader;
};

TEST_F(ClusterRollBackTest, ATrainerThatRollsBackGoesOnAndReadersFollow) {
  RollBackTo(trainer, "step-1");
  EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(reader), Each(Moved()));
  ExpectHold(reader, "step-1");
  EXPECT_THAT(cluster.PublishAll(trainer, "step-2b"), Each(Done()));
  EXPECT_THAT(cluster.UpdateAll(reader), Each(Moved()));
  ExpectHold(reader, "step-2b");
}

TEST_F(ClusterRollBackTest, ATrainerOfThePastIsToldAndCannotGoOn) {
  RollBackTo(keeper, "step-1");
  EXPECT_EQ(trainer[0]->lost_publications.size(), 1u);
  EXPECT_EQ(trainer[0]->state(), BufferState::kWritable);
  EXPECT_THAT(cluster.UnpublishAll(trainer)[0].status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("PUBLICATION_LOST")));
  EXPECT_THAT(cluster.PublishAll(trainer, "step-3")[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("PUBLISH_REFUSED"), HasSubstr("rolled back"))));
  EXPECT_THAT(cluster.UpdateAll(reader), Each(Moved()));
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
  ClusterHarness cluster;
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  std::vector<Ranks> rollouts;
  for (const char* name : {"rollout-1", "rollout-2", "rollout-3"}) {
    rollouts.push_back(cluster.JoinGroup(name, 2));
  }
  Ranks all = trainer;
  for (const Ranks& group : rollouts) all.insert(all.end(), group.begin(), group.end());
  std::vector<std::string> labels;
  for (int step = 1; step <= 4; ++step) {
    labels.push_back("step-" + std::to_string(step));
    EXPECT_THAT(cluster.PublishAll(trainer, labels.back()), Each(Done()));
    std::vector<std::vector<CallId>> calls;
    for (const Ranks& group : rollouts) {
      calls.emplace_back();
      for (SimulatedWorker* rank : group) calls.back().push_back(rank->Update());
    }
    for (int fault = 0; fault < 3; ++fault) {
      cluster.Run(absl::Milliseconds(dice.Roll(200)));
      SimulatedWorker* victim = all[dice.Roll(all.size())];
      switch (dice.Roll(3)) {
        case 0:
          victim->BreakStream();
          break;
        case 1:
          victim->Stop();
          cluster.Run(absl::Milliseconds(dice.Roll(1500)));
          victim->Continue();
          break;
        default:
          cluster.KillServer();
          cluster.Run(absl::Milliseconds(dice.Roll(800)));
          cluster.StartServer();
      }
    }
    for (size_t group = 0; group < rollouts.size(); ++group) {
      const auto done = cluster.Await(rollouts[group], calls[group]);
      EXPECT_THAT(done, Each(Moved())) << "nobody died and nothing was long";
      EXPECT_EQ(done[0].version, done[1].version);
      for (const SimulatedWorker* rank : rollouts[group])
        EXPECT_TRUE(rank->buffer().Is(labels.back()));
    }
    EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
    for (const SimulatedWorker* rank : all) {
      EXPECT_FALSE(rank->ended().has_value()) << rank->ended()->status;
    }
  }
}

// Ranks die too, and come back as new processes: what they were in ends with an error for all, and
// the next try of whoever is there moves.
TEST_P(ChaosTest, WhoeverDiesTheRestGoesOn) {
  Dice dice(GetParam() + 1000);
  ClusterHarness cluster;
  const Ranks trainer = cluster.JoinGroup("trainer", 2);
  std::vector<Ranks> rollouts = {cluster.JoinGroup("rollout-1", 2),
                                 cluster.JoinGroup("rollout-2", 2),
                                 cluster.JoinGroup("rollout-3", 2)};
  for (int step = 1; step <= 3; ++step) {
    const std::string label = "step-" + std::to_string(step);
    EXPECT_THAT(cluster.PublishAll(trainer, label), Each(Done()));
    std::vector<std::pair<SimulatedWorker*, CallId>> calls;
    for (const Ranks& group : rollouts) {
      for (SimulatedWorker* rank : group) calls.emplace_back(rank, rank->Update());
    }
    for (int fault = 0; fault < 2; ++fault) {
      cluster.Run(absl::Milliseconds(dice.Roll(250)));
      Ranks& group = rollouts[dice.Roll(rollouts.size())];
      SimulatedWorker*& victim = group[dice.Roll(group.size())];
      victim->Kill();
      cluster.Run(absl::Milliseconds(dice.Roll(100)));
      if (dice.Roll(3) == 0) {
        cluster.KillServer();
        cluster.Run(absl::Milliseconds(dice.Roll(500)));
        cluster.StartServer();
      }
      victim = cluster.JoinRank(victim->spec().name, 2);
      ASSERT_TRUE(victim->session().joined()) << victim->ended()->status;
    }
    for (const auto& [rank, call] : calls) {
      if (rank->alive()) cluster.Await({rank}, {call});
    }
    for (const Ranks& group : rollouts) {
      std::vector<OperationDone> done;
      for (int attempt = 0; attempt < 3 && (done.empty() || !done[0].status.ok()); ++attempt) {
        done = cluster.UpdateAll(group);
      }
      EXPECT_THAT(done, Each(Done()));
      for (const SimulatedWorker* rank : group) {
        EXPECT_TRUE(rank->buffer().Is(label)) << rank->Name();
        EXPECT_EQ(rank->state(), BufferState::kPublished);
      }
    }
    EXPECT_THAT(cluster.UnpublishAll(trainer), Each(Done()));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace th
