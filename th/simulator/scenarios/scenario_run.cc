#include "th/simulator/scenarios/scenario_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"
#include "th/simulator/scenarios/scenario_group.h"
#include "th/simulator/seeded_random.h"

namespace th {
namespace {

// The binaries ask for so much at once: PipelineReplicator's request, in bytes of the link.
constexpr uint64_t kRequestBytes = uint64_t{4} << 20;
// The registry's invariants are checked after every event of a small fleet; one check looks at
// every rank, so of a larger one only after some events.
constexpr uint32_t kRanksCheckedAtEveryEvent = 32;

bool Broadcasts(ScenarioPolicy policy) {
  return policy == ScenarioPolicy::kBroadcast || policy == ScenarioPolicy::kSnapshotBroadcast;
}

SchedulerPolicy SourcesOf(ScenarioPolicy policy) {
  switch (policy) {
    case ScenarioPolicy::kNearest:
      return SchedulerPolicy::kNearest;
    case ScenarioPolicy::kDirect:
      return SchedulerPolicy::kDirect;
    case ScenarioPolicy::kRandom:
      return SchedulerPolicy::kRandom;
    case ScenarioPolicy::kChain:
    case ScenarioPolicy::kBroadcast:
    case ScenarioPolicy::kSnapshotBroadcast:
      return SchedulerPolicy::kChain;
  }
  return SchedulerPolicy::kNearest;
}

ClusterSpec ClusterOf(const Scenario& scenario, ScenarioPolicy policy,
                      const ScenarioRunOptions& options) {
  ClusterSpec spec;
  spec.seed = scenario.seed;
  spec.fabric = scenario.fabric;
  spec.jitter = scenario.jitter;
  spec.server_site = scenario.server_site;
  spec.segment_count = scenario.segments;
  spec.wire_bytes_per_segment = scenario.segment_bytes;
  spec.sealing_time =
      absl::Seconds(static_cast<double>(scenario.shard_bytes) / scenario.checksum_rate);
  spec.registry.scheduler = scenario.scheduler;
  spec.registry.scheduler.policy = SourcesOf(policy);
  const uint64_t segments_a_request = std::max<uint64_t>(1, kRequestBytes / scenario.segment_bytes);
  spec.replicator.request_bytes = segments_a_request * spec.segment_bytes;
  uint64_t ranks = 0;
  for (const ScenarioFamily& family : scenario.families)
    ranks += family.ranks * family.groups.size();
  spec.check_registry_every = static_cast<uint32_t>(1 + ranks / kRanksCheckedAtEveryEvent);
  spec.trace = options.trace;
  return spec;
}

ScenarioPlaces PlacesOf(const Scenario& scenario) {
  ScenarioPlaces places;
  for (const ScenarioFamily& family : scenario.families) {
    for (size_t group = 0; group < family.groups.size(); ++group) {
      for (uint32_t rank = 0; rank < family.ranks; ++rank) {
        places[RankName{family.groups[group], Rank(rank)}.ToString()] = family.places[group][rank];
      }
    }
  }
  return places;
}

class ScenarioRun {
 public:
  ScenarioRun(const Scenario& scenario, ScenarioPolicy policy, const ScenarioRunOptions& options)
      : scenario_(scenario),
        policy_(policy),
        cluster_(ClusterOf(scenario, policy, options)),
        places_(PlacesOf(scenario)),
        random_(scenario.seed) {}
  ScenarioResult Run();

 private:
  struct Reader {
    std::unique_ptr<ScenarioGroup> group;
    const ScenarioUpdates* updates = nullptr;  // null: only when it joins or is told to
    bool wanted = false;                       // to be called again after the call that goes on
    bool in_round = false;                     // of a broadcast that goes on
    bool works = false;  // has weights, its own or a version: what is staged stands beside them
    absl::Time began;
    absl::Time stalled_since;  // of the call that goes on
  };

  void MakeGroups();
  // Work that the run must not end before.
  void PostWork(absl::Duration delay, std::function<void()> work);
  bool Over() const;

  void PublishNext();
  void Publish();
  void HandlePublished(const ScenarioGroup::Outcome& outcome);
  void Unpublish();
  void BeginRound();
  void EndRoundIfAll();
  void WaitForNextStep(absl::Duration after);
  bool CountsTrainersCalls() const { return !Broadcasts(policy_); }

  void JoinReader(Reader* reader);
  void Update(Reader* reader);
  WhenSeeding WhenSeedingOf(const Reader& reader) const;
  bool Stages(const Reader& reader) const;
  void UpdateInPlace(Reader* reader);
  void Stage(Reader* reader);
  void HandleStaged(Reader* reader, const ScenarioGroup::Outcome& outcome);
  void Apply(Reader* reader);
  void HandleUpdated(Reader* reader, const ScenarioGroup::Outcome& outcome);
  void CountMove(const Reader& reader, const std::string& label);
  void LeaveRound(Reader* reader);
  void Poll(Reader* reader);

  void Schedule(const ScenarioEvent& event, absl::Duration at);
  void Happen(const ScenarioEvent& event);
  void JoinSome(const ScenarioEvent& event);
  void HappenToGroups(const ScenarioEvent& event);
  void ReplaceSomebody(const ScenarioEvent& event);
  void HappenToNetwork(const ScenarioEvent& event);
  void FillResult();

  const Scenario& scenario_;
  const ScenarioPolicy policy_;
  Cluster cluster_;
  const ScenarioPlaces places_;
  SeededRandom random_;
  std::unique_ptr<ScenarioGroup> trainer_;
  std::vector<Reader> readers_;
  uint64_t work_ = 0;  // posted and not done
  uint32_t step_ = 0;
  bool trained_ = false;     // all steps are published, and their rounds over
  bool round_open_ = false;  // a broadcast goes on
  bool due_ = false;         // the next step waits for the end of the round
  absl::Time next_step_at_;
  ScenarioResult result_;
};

void ScenarioRun::MakeGroups() {
  for (const ScenarioFamily& family : scenario_.families) {
    for (size_t number = 0; number < family.groups.size(); ++number) {
      auto group =
          std::make_unique<ScenarioGroup>(&cluster_, &scenario_, &family, number, &places_);
      if (family.name == scenario_.training.family) {
        trainer_ = std::move(group);
        continue;
      }
      Reader& reader = readers_.emplace_back();
      reader.group = std::move(group);
      for (const ScenarioUpdates& updates : scenario_.updates) {
        if (updates.family == family.name) reader.updates = &updates;
      }
    }
  }
}

void ScenarioRun::PostWork(absl::Duration delay, std::function<void()> work) {
  ++work_;
  cluster_.Post(delay, [this, work = std::move(work)] {
    --work_;
    work();
  });
}

bool ScenarioRun::Over() const {
  if (!trained_ || work_ > 0 || trainer_->calling()) return false;
  return std::none_of(readers_.begin(), readers_.end(), [](const Reader& reader) {
    return reader.group->calling() || reader.group->joining() ||
           (reader.updates != nullptr && !reader.updates->after_publish);
  });
}

// ---- the trainer

void ScenarioRun::PublishNext() {
  ++step_;
  if (policy_ != ScenarioPolicy::kSnapshotBroadcast) return Publish();
  trainer_->BeginStall(StallCause::kCopy);
  const double rate = scenario_.copy_rate.value_or(1);
  const auto copy = absl::Seconds(static_cast<double>(scenario_.shard_bytes) / rate);
  next_step_at_ = cluster_.now() + copy + scenario_.training.step;
  PostWork(copy, [this] {
    trainer_->EndStall();
    Publish();
  });
}

void ScenarioRun::Publish() {
  if (!trainer_->CanCall()) {
    trained_ = true;  // it is dead, and nobody starts it again
    return;
  }
  if (policy_ != ScenarioPolicy::kSnapshotBroadcast) {
    next_step_at_ = cluster_.now() + scenario_.training.step;
  }
  if (policy_ == ScenarioPolicy::kBroadcast) trainer_->BeginStall(StallCause::kMembers);
  const std::string label = absl::StrCat("step-", step_);
  trainer_->Call(
      StallCause::kGroup, CountsTrainersCalls(),
      [&](SimulatedWorker* rank) { rank->Publish(label, label, scenario_.end); },
      [this](const ScenarioGroup::Outcome& outcome) { HandlePublished(outcome); });
}

void ScenarioRun::HandlePublished(const ScenarioGroup::Outcome& outcome) {
  if (!outcome.well) {
    trainer_->EndStall();
    trained_ = true;
    return;
  }
  VersionResult& version = result_.versions.emplace_back();
  version.label = outcome.label;
  version.published = cluster_.now() - absl::UnixEpoch();
  if (Broadcasts(policy_)) return BeginRound();
  for (Reader& reader : readers_) {
    if (reader.updates == nullptr || !reader.updates->after_publish) continue;
    PostWork(reader.group->DelayOf(*reader.updates), [this, reader = &reader] { Update(reader); });
  }
  WaitForNextStep(next_step_at_ - scenario_.training.write - cluster_.now());
}

void ScenarioRun::WaitForNextStep(absl::Duration after) {
  if (step_ >= scenario_.training.steps) {
    trained_ = true;
    return;
  }
  PostWork(std::max(after, absl::ZeroDuration()), [this] {
    if (!round_open_) return Unpublish();
    due_ = true;
    trainer_->BeginStall(StallCause::kMembers);
  });
}

void ScenarioRun::Unpublish() {
  if (!trainer_->CanCall()) {
    trained_ = true;
    return;
  }
  // Only TensorHub's readers find another source when theirs goes away.
  const absl::Duration drain =
      policy_ == ScenarioPolicy::kNearest ? scenario_.training.drain : scenario_.end;
  const bool copied = policy_ == ScenarioPolicy::kSnapshotBroadcast;
  trainer_->Call(
      StallCause::kDrain, CountsTrainersCalls(),
      [drain](SimulatedWorker* rank) { rank->Unpublish(drain); },
      [this, copied](const ScenarioGroup::Outcome&) {
        // A snapshot's owner has written all the time.
        const absl::Duration write = copied ? absl::ZeroDuration() : scenario_.training.write;
        PostWork(write, [this] { PublishNext(); });
      });
}

// ---- broadcasts

void ScenarioRun::BeginRound() {
  round_open_ = true;
  for (Reader& reader : readers_) {
    const bool member = reader.updates != nullptr && reader.group->CanCall();
    if (!member) continue;
    reader.in_round = true;
    reader.group->WaitForMembers();
    PostWork(reader.group->DelayOf(*reader.updates), [this, reader = &reader] { Update(reader); });
  }
  if (policy_ == ScenarioPolicy::kSnapshotBroadcast) {
    WaitForNextStep(next_step_at_ - cluster_.now());
  }
  EndRoundIfAll();
}

void ScenarioRun::EndRoundIfAll() {
  if (!round_open_) return;
  for (const Reader& reader : readers_) {
    if (reader.in_round) return;
  }
  round_open_ = false;
  for (Reader& reader : readers_) reader.group->EndStall();
  if (policy_ == ScenarioPolicy::kBroadcast) {
    trainer_->EndStall();
    return WaitForNextStep(scenario_.training.step - scenario_.training.write);
  }
  if (!std::exchange(due_, false)) return;
  trainer_->EndStall();
  Unpublish();
}

void ScenarioRun::LeaveRound(Reader* reader) {
  if (std::exchange(reader->in_round, false)) EndRoundIfAll();
}

// ---- readers

void ScenarioRun::JoinReader(Reader* reader) {
  reader->group->Join([this, reader] {
    const bool from_the_start = cluster_.now() < absl::UnixEpoch() + scenario_.training.first;
    reader->works = from_the_start;
    if (!from_the_start) Update(reader);
  });
}

void ScenarioRun::Update(Reader* reader) {
  if (Broadcasts(policy_) && !reader->in_round) return;  // the next broadcast has it
  reader->wanted = !reader->group->CanCall();
  if (reader->wanted) {
    if (!reader->group->calling()) LeaveRound(reader);  // dead: the others do not wait
    return;
  }
  reader->began = cluster_.now();
  return Stages(*reader) ? Stage(reader) : UpdateInPlace(reader);
}

// Policies of others know no seeds.
WhenSeeding ScenarioRun::WhenSeedingOf(const Reader& reader) const {
  const bool seeds = policy_ == ScenarioPolicy::kNearest && reader.updates != nullptr;
  return seeds ? reader.updates->when_seeding : WhenSeeding::kWait;
}

// A group that has nothing to work with gains nothing by a copy.
bool ScenarioRun::Stages(const Reader& reader) const {
  return policy_ == ScenarioPolicy::kNearest && reader.group->family().stages && reader.works;
}

void ScenarioRun::UpdateInPlace(Reader* reader) {
  reader->stalled_since = cluster_.now();
  reader->group->Call(
      StallCause::kServer, /*counts=*/true,
      [this, when_seeding = WhenSeedingOf(*reader)](SimulatedWorker* rank) {
        rank->SetWhenSeeding(when_seeding);
        rank->Update(LatestVersion{}, scenario_.end);
      },
      [this, reader](const ScenarioGroup::Outcome& outcome) { HandleUpdated(reader, outcome); });
}

// The group works on meanwhile: its ranks' clocks stand still.
void ScenarioRun::Stage(Reader* reader) {
  reader->group->Call(
      StallCause::kServer, /*counts=*/false,
      [this, when_seeding = WhenSeedingOf(*reader)](SimulatedWorker* rank) {
        rank->SetWhenSeeding(when_seeding);
        rank->Stage(LatestVersion{}, scenario_.end);
      },
      [this, reader](const ScenarioGroup::Outcome& outcome) { HandleStaged(reader, outcome); });
}

void ScenarioRun::HandleStaged(Reader* reader, const ScenarioGroup::Outcome& outcome) {
  const bool staged = outcome.well && outcome.available && outcome.moved;
  if (!staged) return HandleUpdated(reader, outcome);
  if (reader->group->CanCall()) return Apply(reader);
  HandleUpdated(reader, {.well = false});  // a rank has died meanwhile
}

void ScenarioRun::Apply(Reader* reader) {
  reader->stalled_since = cluster_.now();
  reader->group->Call(
      StallCause::kServer, /*counts=*/true,
      [this](SimulatedWorker* rank) { rank->Apply(scenario_.end); },
      [this, reader](const ScenarioGroup::Outcome& outcome) { HandleUpdated(reader, outcome); });
}

void ScenarioRun::HandleUpdated(Reader* reader, const ScenarioGroup::Outcome& outcome) {
  if (!outcome.well) {
    ++result_.updates_failed;
    if (reader->group->CanCall() && !Broadcasts(policy_)) reader->wanted = true;
  } else if (!outcome.available) {
    ++result_.updates_not_available;
    if (outcome.seeding && reader->updates->after_publish) {
      PostWork(reader->updates->retry, [this, reader] { Update(reader); });
    }
  } else if (outcome.moved) {
    reader->works = true;
    CountMove(*reader, outcome.label);
  }
  LeaveRound(reader);
  if (!std::exchange(reader->wanted, false)) return;
  PostWork(outcome.well ? absl::ZeroDuration() : kScenarioRetry,
           [this, reader] { Update(reader); });
}

void ScenarioRun::CountMove(const Reader& reader, const std::string& label) {
  const absl::Duration now = cluster_.now() - absl::UnixEpoch();
  const absl::Duration began = reader.began - absl::UnixEpoch();
  result_.reads.push_back(
      {reader.group->name(), label, began, now, cluster_.now() - reader.stalled_since});
  for (VersionResult& version : result_.versions) {
    if (version.label != label) continue;
    ++version.groups;
    version.last_reader = now - version.published;
    version.slowest_update = std::max(version.slowest_update, now - began);
  }
}

void ScenarioRun::Poll(Reader* reader) {
  cluster_.Post(reader->updates->every, [this, reader] {
    if (reader->group->CanCall()) Update(reader);
    Poll(reader);
  });
}

// ---- events

void ScenarioRun::Schedule(const ScenarioEvent& event, absl::Duration at) {
  if (at > scenario_.end || (event.every.has_value() && at > event.until)) return;
  PostWork(at - (cluster_.now() - absl::UnixEpoch()), [this, &event, at] {
    Happen(event);
    if (event.every.has_value()) Schedule(event, at + *event.every);
  });
}

void ScenarioRun::Happen(const ScenarioEvent& event) {
  using Kind = ScenarioEvent::Kind;
  switch (event.kind) {
    case Kind::kJoin:
      return JoinSome(event);
    case Kind::kReplace:
      return ReplaceSomebody(event);
    case Kind::kCutHost:
    case Kind::kSlowHost:
    case Kind::kSlowSiteLink:
      return HappenToNetwork(event);
    default:
      return HappenToGroups(event);
  }
}

void ScenarioRun::JoinSome(const ScenarioEvent& event) {
  uint32_t left = event.groups;
  for (Reader& reader : readers_) {
    if (left == 0) return;
    if (reader.group->joined() || reader.group->family().name != event.target) continue;
    --left;
    JoinReader(&reader);
  }
}

void ScenarioRun::HappenToGroups(const ScenarioEvent& event) {
  using Kind = ScenarioEvent::Kind;
  const std::optional<uint32_t> rank = event.rank;
  const auto meant = [&](const ScenarioGroup& group) {
    return group.name() == event.target || group.family().name == event.target;
  };
  const auto act = [&](ScenarioGroup* group) {
    if (event.kind == Kind::kLeave) group->Leave(rank);
    if (event.kind == Kind::kPreempt) group->Preempt(rank, event.lasting);
    if (event.kind == Kind::kKill) group->Kill(rank);
    if (event.kind == Kind::kCrash) group->Crash(rank);
    if (event.kind == Kind::kStop) group->Stop(rank, event.lasting);
  };
  if (meant(*trainer_)) return act(trainer_.get());
  for (Reader& reader : readers_) {
    if (!meant(*reader.group) || !reader.group->joined()) continue;
    if (event.kind == Kind::kUpdate) {
      Update(&reader);
    } else {
      act(reader.group.get());
    }
  }
}

void ScenarioRun::ReplaceSomebody(const ScenarioEvent& event) {
  std::vector<Reader*> candidates;
  for (Reader& reader : readers_) {
    const bool whole = reader.group->calling() || reader.group->CanCall();
    if (reader.group->family().name == event.target && whole) candidates.push_back(&reader);
  }
  if (candidates.empty()) return;
  Reader* const replaced = candidates[random_.Below(candidates.size())];
  replaced->group->Kill(std::nullopt);
  PostWork(event.lasting, [this, replaced] { JoinReader(replaced); });
}

void ScenarioRun::HappenToNetwork(const ScenarioEvent& event) {
  const std::string& target = event.target;
  std::function<void()> mend;
  if (event.kind == ScenarioEvent::Kind::kCutHost) {
    if (event.lasting <= absl::ZeroDuration()) return;
    cluster_.CutHost(target);
    mend = [this, target] { cluster_.HealHost(target); };
  } else if (event.kind == ScenarioEvent::Kind::kSlowHost) {
    cluster_.SlowHost(target, event.factor, event.side);
    mend = [this, target, side = event.side] { cluster_.SlowHost(target, 1, side); };
  } else {
    cluster_.SlowSiteLink(target, event.other_site, event.factor);
    mend = [this, target, to = event.other_site] { cluster_.SlowSiteLink(target, to, 1); };
  }
  if (event.lasting > absl::ZeroDuration()) PostWork(event.lasting, std::move(mend));
}

// ---- the whole

ScenarioResult ScenarioRun::Run() {
  MakeGroups();
  trainer_->Join([this] {
    const absl::Time first = absl::UnixEpoch() + scenario_.training.first;
    PostWork(std::max(first - cluster_.now(), absl::ZeroDuration()), [this] { PublishNext(); });
  });
  for (Reader& reader : readers_) {
    if (!reader.group->family().joins_later) JoinReader(&reader);
    if (reader.updates != nullptr && !reader.updates->after_publish && !Broadcasts(policy_)) {
      Poll(&reader);
    }
  }
  for (const ScenarioEvent& event : scenario_.events) Schedule(event, event.at);
  cluster_.RunUntil([this] { return Over(); }, scenario_.end);
  FillResult();
  return std::move(result_);
}

void ScenarioRun::FillResult() {
  result_.scenario = scenario_.name;
  result_.policy = policy_;
  result_.seed = scenario_.seed;
  result_.ended = cluster_.now() - absl::UnixEpoch();
  result_.replica_bytes = scenario_.shard_bytes * scenario_.shards;
  result_.events = cluster_.deliveries();
  result_.violations = cluster_.checker().violations();
  trainer_->AppendResults(&result_);
  for (const Reader& reader : readers_) reader.group->AppendResults(&result_);
  const FlowNetwork& network = cluster_.network();
  for (uint32_t i = 0; i < network.link_count(); ++i) {
    const LinkId link(i);
    if (network.bytes_over(link) == 0) continue;
    result_.links.push_back({network.name(link), network.bytes_over(link), network.rate(link)});
  }
  std::stable_sort(
      result_.links.begin(), result_.links.end(), [](const LinkResult& a, const LinkResult& b) {
        return static_cast<double>(a.bytes) * b.rate > static_cast<double>(b.bytes) * a.rate;
      });
}

}  // namespace

absl::StatusOr<ScenarioResult> RunScenario(const Scenario& scenario, ScenarioPolicy policy,
                                           const ScenarioRunOptions& options) {
  if (policy == ScenarioPolicy::kSnapshotBroadcast && !scenario.copy_rate.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(scenario.name, ": the policy '", ScenarioPolicyName(policy),
                     "' needs 'copy', the rate of a rank's copy of its weights, in 'weights'"));
  }
  return ScenarioRun(scenario, policy, options).Run();
}

}  // namespace th
