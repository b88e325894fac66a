// Random events over a handful of workers that mostly behave: joins, crashes, lost streams,
// restarts of the server, all verbs, failing sources, roll-backs, nonsense. After every event the
// state must keep its rules (the harness checks them), and what the ranks of a group were told must
// agree. A failure names its seed.
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

constexpr uint32_t kSeeds = 240;
constexpr int kEvents = 300;

// A rank and what it truly has, as its session would know it.
struct Agent {
  TestRank rank;
  bool member = false;  // its process has joined and was not thrown out
  bool online = false;
  std::optional<StartOperation> operation;
  std::optional<VersionInfo> resolved;
  bool ready = false;
  bool done = false;
  std::vector<AssignedSource> sources;
  std::optional<VersionInfo> held;
  bool complete = false;
  bool publisher = false;
  bool committed = false;
  std::optional<FinishedOperation> last_finished;
};

// The answers that the ranks of a group got to one operation.
using OperationName = std::tuple<uint32_t, std::string, uint64_t, uint64_t>;
struct Verdict {
  absl::Status status;
  UpdateOutcome outcome;
  VersionSequence version;
  friend bool operator==(const Verdict&, const Verdict&) = default;
  friend std::ostream& operator<<(std::ostream& os, const Verdict& verdict) {
    return os << verdict.status << " outcome " << static_cast<int>(verdict.outcome) << " version "
              << verdict.version;
  }
};

// Every other fleet has room for so few versions that old ones must make room all the time; every
// fifth one's model is forgotten as soon as nobody uses it.
RegistryLimits LimitsOf(uint32_t seed) {
  RegistryLimits limits;
  if (seed % 5 == 2) limits.forget_after = absl::Seconds(5);
  if (seed % 2 == 1) limits.max_versions_per_model = 3;
  return limits;
}

class Fleet {
 public:
  explicit Fleet(uint32_t seed) : hub_(LimitsOf(seed)), random_(seed) {
    for (const char* group : {"trainer", "rollout-1", "rollout-2"}) {
      for (TestRank& rank : MakeGroup(hub_, group, 2)) agents_.push_back({rank});
    }
    for (uint32_t i = 0; i < 2; ++i) agents_.push_back({TestRank(hub_, "solo", i, 2)});
    // In every third fleet one group hands on what it receives.
    if (seed % 3 == 0) {
      for (size_t i = 4; i < 6; ++i) agents_[i].rank.role = BufferRole::kStreaming;
    }
    for (size_t i = 6; i < agents_.size(); ++i) agents_[i].rank.layout = LayoutNamed("w0");
  }

  void RandomEvent() {
    Agent& agent = agents_[Pick(agents_.size())];
    const uint32_t choice = Pick(100);
    if (!agent.member) {
      JoinAfresh(agent);
    } else if (!agent.online) {
      choice < 60 ? Resume(agent) : choice < 75 ? JoinAfresh(agent) : Pass();
    } else if (choice < 60) {
      Work(agent);
    } else if (choice < 76) {
      Pass();
    } else if (choice < 82) {
      Disconnect(agent);
    } else if (choice < 90) {
      Misbehave(agent);
    } else if (choice < 92) {
      agent.rank.Say(Leave{});
      agent.member = agent.online = false;
    } else if (choice < 93) {
      RollBackSomewhere();
    } else if (choice < 94) {
      LeaveAndHaveTheModelForgotten();
    } else if (choice < 96) {
      RestartServer();
    } else {
      agent.rank.Say(BufferReset{agent.rank.buffer});
      Forget(agent);
    }
    Listen();
  }

  std::string Log() const { return hub_.Log(); }

  // Nobody does anything any more but to say that it lives: every operation must end.
  void RunDry() {
    for (int i = 0; i < 80; ++i) {
      for (Agent& agent : agents_) {
        if (agent.online) agent.rank.Say(Heartbeat{});
      }
      hub_.Advance(absl::Seconds(1));
      Listen();
    }
    for (const Agent& agent : agents_) {
      EXPECT_FALSE(agent.online && agent.operation.has_value())
          << agent.rank.name.ToString() << " still waits for operation " << agent.rank.number.value;
    }
  }

 private:
  uint32_t Pick(size_t below) { return static_cast<uint32_t>(random_() % below); }

  void JoinAfresh(Agent& agent) {
    TestRank fresh = agent.rank;
    fresh.number = OperationNumber();
    fresh.buffer_generation = BufferGeneration(1);
    if (!fresh.Join()) return;
    agent = Agent{fresh, /*member=*/true, /*online=*/true};
    EXPECT_OK(agent.rank.Register());
  }

  void Resume(Agent& agent) {
    AnnouncedBuffer announced = agent.rank.Announced();
    if (agent.held.has_value()) {
      announced.held = HeldVersion{.version = *agent.held,
                                   .complete = agent.complete,
                                   .publisher = agent.publisher,
                                   .group_committed = agent.committed};
      if (!agent.complete) {
        for (const AssignedSource& source : agent.sources) {
          announced.held->sources.push_back(source.buffer);
        }
      }
    }
    announced.last_finished = agent.last_finished;
    const GroupGeneration before = agent.rank.generation;
    if (!agent.rank.Resume({announced})) {
      agent.member = agent.online = false;
      return;
    }
    agent.online = true;
    if (agent.rank.generation != before) return EndOperation(agent, /*renumber=*/true);
    if (!agent.operation.has_value()) return;
    StartOperation again = *agent.operation;
    again.resolved = agent.resolved;
    agent.rank.Say(again);
    if (agent.ready) agent.rank.Say(ReadyToFill{agent.rank.key(), agent.rank.buffer_generation});
    if (agent.done) agent.rank.Done();
  }

  void Disconnect(Agent& agent) {
    agent.rank.Disconnect();
    agent.online = false;
  }

  void Pass() {
    for (Agent& agent : agents_) {
      if (agent.online && Pick(10) > 0) agent.rank.Say(Heartbeat{});
    }
    hub_.Advance(absl::Milliseconds(10 + Pick(1500)));
  }

  void RestartServer() {
    hub_.Restart();
    for (Agent& agent : agents_) agent.online = false;
  }

  void RollBackSomewhere() {
    RunCommand command{.idempotency_key = absl::StrCat("k", random_())};
    command.command =
        RollBack{.to = VersionSequence::Of(Epoch(1 + Pick(hub_.epoch().value)), 1 + Pick(5))};
    hub_.Command(command);
  }

  // The ranks that are offline come back later, to a server that knows nothing of what they held.
  void LeaveAndHaveTheModelForgotten() {
    for (Agent& agent : agents_) {
      if (!agent.online) continue;
      agent.rank.Say(Leave{});
      agent.member = agent.online = false;
    }
    if (Pick(2) == 0) hub_.Advance(RegistryLimits().lease);
    RunCommand command{.idempotency_key = absl::StrCat("k", random_())};
    command.command = th::Forget{};
    hub_.Command(command);
  }

  void Work(Agent& agent) {
    if (!agent.operation.has_value()) return StartSomething(agent);
    TestRank& rank = agent.rank;
    if (agent.operation->kind == OperationKind::kUnpublish) {
      agent.done = true;
      Forget(agent);
      return rank.Done();
    }
    if (agent.operation->kind != OperationKind::kUpdate || !agent.resolved.has_value()) return;
    if (!agent.ready) return GetReady(agent);
    if (agent.done) return;
    const uint32_t choice = Pick(10);
    if (choice < 5 && (agent.complete || !agent.sources.empty())) {
      agent.done = agent.complete = true;
      rank.Done();
    } else if (choice < 8 && !agent.sources.empty()) {
      rank.Report(agent.sources[0], static_cast<SourceFailure>(1 + Pick(6)));
    } else if (choice == 8) {
      Forget(agent);
      rank.Fail(absl::InternalError("no luck"), true);
    } else {
      rank.Say(FillProgress{rank.key(), agent.resolved->sequence, SegmentSet::AllOf(Pick(5))});
    }
  }

  void GetReady(Agent& agent) {
    agent.ready = true;
    const bool has_it = agent.held.has_value() && agent.complete && agent.committed &&
                        agent.held->sequence == agent.resolved->sequence;
    if (has_it) {
      return agent.rank.Say(ReadyToFill{agent.rank.key(), agent.rank.buffer_generation});
    }
    agent.held = agent.resolved;
    agent.complete = agent.publisher = agent.committed = false;
    agent.rank.Ready();
  }

  void StartSomething(Agent& agent) {
    TestRank& rank = agent.rank;
    const bool trainer = rank.name.group == "trainer" || rank.name.group == "solo";
    const bool updates_only = rank.role == BufferRole::kStreaming;
    // All ranks of a group choose alike, by the number of the operation.
    const uint64_t dice = (rank.number.value * 7 + rank.name.group.size()) % 6;
    StartOperation request = rank.UpdateRequest();
    if (trainer && dice < 3) {
      request = rank.PublishRequest(absl::StrCat("step-", rank.number.value / 6));
    } else if ((dice == 3 && !updates_only) || (trainer && dice == 4)) {
      request = rank.UnpublishRequest();
    }
    request.timeout = absl::Seconds(5 + 10 * Pick(4));
    request.group_generation = rank.generation;
    agent.operation = request;
    agent.resolved.reset();
    agent.ready = agent.done = false;
    agent.sources.clear();
    rank.Start(request);
  }

  void Misbehave(Agent& agent) {
    const OperationKey key{BufferId(1 + Pick(2)), OperationNumber(Pick(5))};
    switch (Pick(8)) {
      case 6:  // has lost what it held, or never had it
        Forget(agent);
        agent.rank.Say(RegisterBuffer{agent.rank.Announced()});
        return;
      case 0:
        return agent.rank.Say(ReadyToFill{key, BufferGeneration(Pick(9))});
      case 1:
        return agent.rank.Say(
            SourceFailed{key, AssignmentId(Pick(50)), {agent.rank.worker, BufferId(1)}});
      case 2:
        return agent.rank.Say(FillProgress{key, VersionSequence(Pick(9)), SegmentSet::AllOf(9)});
      case 3:
        return agent.rank.Say(agent.rank.Request());
      case 4:
        return agent.rank.Say(LayoutUpload{LayoutNamed("nobody's")});
      case 5:  // a stream that nobody opened properly
        return hub_.Deliver(hub_.Open(), RankDone{key});
      default:
        return agent.rank.Seal(VersionSequence::Of(hub_.epoch(), Pick(4)), "nonsense");
    }
  }

  static void Forget(Agent& agent) {
    agent.held.reset();
    agent.complete = agent.publisher = agent.committed = false;
    agent.sources.clear();
  }

  static void EndOperation(Agent& agent, bool renumber) {
    agent.operation.reset();
    agent.resolved.reset();
    agent.ready = agent.done = false;
    agent.sources.clear();
    if (!renumber) return;
    agent.rank.number = OperationNumber();
    agent.last_finished.reset();
  }

  void Listen() {
    for (Agent& agent : agents_) {
      for (const ServerMessage& message : std::exchange(hub_.mailbox(agent.rank.connection), {})) {
        std::visit([&](const auto& heard) { Hear(agent, heard); }, message);
      }
    }
  }

  template <typename Other>
  void Hear(Agent&, const Other&) {}
  void Hear(Agent& agent, const Refused&) { agent.member = agent.online = false; }
  void Hear(Agent& agent, const LayoutWanted&) { agent.rank.Say(LayoutUpload{agent.rank.layout}); }
  void Hear(Agent& agent, const GroupChanged& changed) {
    agent.rank.generation = changed.group_generation;
    EndOperation(agent, /*renumber=*/true);
  }
  void Hear(Agent& agent, const AssignSources& assigned) {
    if (assigned.key != agent.rank.key()) return;
    agent.rank.assignment = assigned.assignment;
    agent.sources = assigned.sources;
    for (const AssignedSource& source : assigned.sources) {
      EXPECT_NE(source.buffer, agent.rank.address());
      for (const Agent& other : agents_) {
        EXPECT_FALSE(other.rank.role == BufferRole::kStreaming &&
                     source.buffer == other.rank.address());
      }
    }
  }
  void Hear(Agent& agent, const OperationResolved& resolved) {
    if (!agent.operation.has_value() || resolved.key != agent.operation->key) return;
    const auto [it, first] =
        resolved_.emplace(Name(agent, resolved.key), resolved.version.sequence);
    EXPECT_EQ(it->second, resolved.version.sequence) << "one version a transaction";
    agent.resolved = resolved.version;
  }
  void Hear(Agent& agent, const PublicationRefused& refused) {
    if (agent.held.has_value() && agent.held->sequence == refused.version) Forget(agent);
  }
  void Hear(Agent& agent, const OperationFinished& finished) {
    if (!agent.operation.has_value() || finished.key != agent.operation->key) return;
    const Verdict verdict{finished.status, finished.outcome, finished.version.sequence};
    const auto [it, first] = verdicts_.emplace(Name(agent, finished.key), verdict);
    EXPECT_EQ(it->second, verdict)
        << "one result for all ranks: generation " << agent.rank.generation << " operation "
        << finished.key.number << " at " << agent.rank.name.ToString();
    const bool moved = finished.outcome == UpdateOutcome::kMoved;
    EXPECT_TRUE(!moved || agent.done) << agent.rank.name.ToString() << " moved without its shard";
    if (finished.kind == OperationKind::kPublish && finished.status.ok()) {
      agent.held = finished.version;
      agent.complete = agent.publisher = agent.committed = true;
      if (Pick(4) > 0) {
        // Equal shards have equal sums, now and then not.
        agent.rank.Seal(finished.version.sequence,
                        absl::StrCat(finished.version.label.text(), Pick(20) == 0));
      }
    }
    if (moved) agent.committed = true;
    if (moved && agent.rank.role == BufferRole::kStreaming) Forget(agent);
    if (!finished.status.ok() && agent.ready && !agent.committed) Forget(agent);
    agent.last_finished = FinishedOperation{.number = finished.key.number,
                                            .kind = finished.kind,
                                            .status = finished.status,
                                            .outcome = finished.outcome,
                                            .not_available = finished.not_available,
                                            .version = finished.version};
    EndOperation(agent, /*renumber=*/false);
  }

  OperationName Name(const Agent& agent, const OperationKey& key) const {
    return {hub_.epoch().value, agent.rank.name.group, agent.rank.generation.value,
            key.number.value * 2 + (agent.rank.worker.value >> 32 == hub_.epoch().value)};
  }

  RegistryHarness hub_;
  std::mt19937 random_;
  std::vector<Agent> agents_;
  std::map<OperationName, VersionSequence> resolved_;
  std::map<OperationName, Verdict> verdicts_;
};

class RandomEventsTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(RandomEventsTest, KeepTheRulesAndEndEveryOperation) {
  const uint32_t first = GetParam();
  for (uint32_t seed = first; seed < first + kSeeds / 8; ++seed) {
    Fleet fleet(seed);
    for (int event = 0; event < kEvents; ++event) {
      fleet.RandomEvent();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " event " << event << "\n"
                                                  << fleet.Log();
    }
    fleet.RunDry();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " at the end";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomEventsTest,
                         ::testing::Range(uint32_t{0}, kSeeds, kSeeds / 8));

}  // namespace
}  // namespace th
