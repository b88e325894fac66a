#include "th/simulator/random_runs/random_run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/simulator/catalog_watch.h"
#include "th/simulator/cluster.h"
#include "th/simulator/random_runs/false_message.h"
#include "th/simulator/random_runs/memory_watch.h"
#include "th/simulator/random_runs/simulated_group.h"
#include "th/simulator/server_faults.h"

namespace th {
namespace {

// Room for all that a run could retain.
constexpr uint64_t kOffloadLimitBytes = uint64_t{1} << 40;
constexpr absl::Duration kUsualJitter = absl::Milliseconds(3);
constexpr absl::Duration kSlowJitter = absl::Milliseconds(60);
constexpr absl::Duration kMemoryLook = absl::Milliseconds(100);
constexpr absl::Duration kCatalogLook = absl::Seconds(1);
constexpr absl::Duration kUsualSealing = absl::Milliseconds(30);
constexpr absl::Duration kSlowSealing = absl::Milliseconds(900);
constexpr absl::Duration kLongestStop = absl::Milliseconds(100);
// The time between messages of a worker that says what is not so.
constexpr absl::Duration kBetweenFalseMessages = absl::Milliseconds(60);
// Once all is healed, until the last of them has arrived.
constexpr absl::Duration kLastFalseMessage = absl::Milliseconds(120);
// The pauses of a worker that stutters: longer than its readers bear, and until the next time.
constexpr absl::Duration kStandsStill = absl::Milliseconds(450);
constexpr absl::Duration kGoesOn = absl::Milliseconds(150);
// From a cut to what happens behind it, and how long the server is away then.
// How often somebody looks whether a fill goes on.
constexpr absl::Duration kFillLook = absl::Milliseconds(7);
constexpr absl::Duration kAfterCut = absl::Milliseconds(20);
constexpr absl::Duration kServerAwayBehindCut = absl::Milliseconds(100);
// One run of so many has a group that is grown to 8 ranks or a few more.
constexpr uint64_t kRunsOfALargeGroup = 4;
constexpr uint64_t kLargeGroup = 8, kLargerGroups = 5;
// Groups that can be grown: the trainer, and the rollouts that every run has.
constexpr uint64_t kGroupsThatCanGrow = 3;
constexpr uint64_t kGrowth = 0x67726f777468;  // parts its numbers from those of the run

// A fleet that fits one seed: a trainer, now and then a second publisher, some rollouts, on a few
// hosts in one or two sites.
class RandomRun {
 public:
  // The registry is checked after every `events_per_check` of its events.
  RandomRun(const RandomRunSpec& spec, uint32_t events_per_check);
  RandomRunResult Run();

 private:
  // Uses spec_ and random_ only: the rest is not there yet.
  ClusterSpec DrawCluster(uint32_t events_per_check);
  void DrawFleet();
  void DrawRetention();
  void DrawSeeding();
  void DrawRollout(std::vector<WorkerSpec> ranks);
  void DrawTwin(uint32_t shards);
  void SetRetention(uint32_t keep_latest);
  std::vector<WorkerSpec> DrawRanks(const std::string& group, uint32_t ranks, uint32_t shards);
  // More of them, where it is the group that is grown; from numbers of its own, so that the rest of
  // what is drawn stays.
  void GrowIfDrawn(size_t group, std::vector<WorkerSpec>* ranks, uint32_t shards);
  // Moves them to hosts of one site, drawn for their group.
  void PlaceInOneSite(std::vector<WorkerSpec>* ranks);
  uint64_t bytes_of_shard() const;
  uint64_t DrawRoomForCopies();
  Location DrawLocation();
  Location LocationOf(uint64_t host) const;
  void Schedule(const Fault& fault);
  void Happen(const Fault& fault);
  void CutHostFor(const Fault& fault);
  void Babble(SimulatedWorker* worker, uint64_t messages);
  void StartImpostor(const SimulatedWorker& worker, absl::Duration lasting);
  void RollBackUnheard(const Fault& fault);
  void RegisterAgain(size_t group, size_t rank);
  void RegisterGroupAgain(const Fault& fault);
  void Stutter(SimulatedWorker* worker, absl::Time until);
  void ReplaceBehindServer(const Fault& fault);
  void FreeInFill(const Fault& fault, absl::Time until);
  void LookAtMemory();
  void LookAtCatalog();
  void HealEverything();
  // True when the group lacks what was published before all was healed.
  bool LagsBehind(const SimulatedGroup& group) const;
  bool Recovered() const;
  void LetTwinRest();
  void CheckRecovery();
  void CheckThatCallsEnd();
  RandomRunResult TakeResult();
  SimulatedWorker* WorkerOf(const Fault& fault) const;
  std::string HostOf(const Fault& fault) const;

  const RandomRunSpec spec_;
  SeededRandom random_;
  TransitionCoverage coverage_;
  Cluster cluster_;
  uint32_t sites_ = 1, hosts_ = 1;
  bool groups_have_sites_ = false;  // of their own; else their ranks are anywhere
  SeededRandom growth_;
  std::optional<size_t> grown_;  // a group by its place; none: all are small
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
  MemoryWatch memory_watch_{&cluster_};
  CatalogWatch catalog_watch_{&cluster_};
  ServerFaults server_faults_{&cluster_};
  SimulatedTrainer* trainer_ = nullptr;
  std::vector<const SimulatedRollout*> rollouts_;
  SimulatedGroup* twin_ = nullptr;  // null: there is none
  bool healed_ = false;
  VersionSequence newest_when_healed_;
  RandomRunResult result_;
};

RandomRun::RandomRun(const RandomRunSpec& spec, uint32_t events_per_check)
    : spec_(spec),
      random_(spec.seed),
      cluster_(DrawCluster(events_per_check)),
      growth_(SeededRandom(spec.seed ^ kGrowth).Fork()) {
  if (growth_.OneIn(kRunsOfALargeGroup)) grown_ = growth_.Below(kGroupsThatCanGrow);
  groups_have_sites_ = random_.OneIn(2);
  DrawFleet();
  result_.faults = DrawFaults(&random_, kFaultPeriod);
  // Behind the others, whose places in the schedule stay as they were.
  const std::vector<Fault> later = DrawLaterFaults(spec.seed, kFaultPeriod);
  result_.faults.insert(result_.faults.end(), later.begin(), later.end());
}

ClusterSpec RandomRun::DrawCluster(uint32_t events_per_check) {
  ClusterSpec spec;
  spec.check_registry_every = events_per_check;
  spec.trace = spec_.trace;
  spec.coverage = &coverage_;
  spec.seed = random_.Next();
  // On a slow control path what is said crosses on its way.
  const absl::Duration most = random_.OneIn(6) ? kSlowJitter : kUsualJitter;
  spec.jitter = random_.Between(absl::ZeroDuration(), most);
  // Some sum so slowly that others ask first.
  spec.sealing_time =
      random_.Between(absl::Milliseconds(5), random_.OneIn(4) ? kSlowSealing : kUsualSealing);
  spec.segment_count = 4 + random_.Below(28);
  spec.endpoints = 2;
  spec.stopping_time = kLongestStop;
  if (spec_.seed % 8 == 0)
    spec.lists_no_checksums_every = 1 + static_cast<uint32_t>(spec_.seed / 8 % 2);
  // A shard takes 0.05 to 1 s over an idle link.
  const double bytes = static_cast<double>(spec.segment_count * spec.segment_bytes);
  spec.fabric.host_rate = bytes * static_cast<double>(1 + random_.Below(20));
  spec.fabric.same_host_rate = spec.fabric.host_rate * 8;
  if (random_.OneIn(2)) spec.fabric.site_rate = spec.fabric.host_rate;
  spec.replicator.request_bytes = spec.segment_bytes * (1 + random_.Below(4));
  spec.registry.scheduler.max_sources = random_.OneIn(3) ? 1 : 2;
  return spec;
}

Location RandomRun::DrawLocation() { return LocationOf(random_.Below(hosts_)); }

Location RandomRun::LocationOf(uint64_t host) const {
  Location location;
  location.host = absl::StrCat("h", host);
  location.site = absl::StrCat("site", host % sites_);
  location.rack = absl::StrCat("r", host % 3);
  return location;
}

std::vector<WorkerSpec> RandomRun::DrawRanks(const std::string& group, uint32_t ranks,
                                             uint32_t shards) {
  std::vector<WorkerSpec> specs;
  const uint64_t room = DrawRoomForCopies();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    WorkerSpec spec;
    spec.name = {group, Rank(rank)};
    spec.ranks = ranks;
    spec.shard = static_cast<int>(rank % shards);
    spec.location = DrawLocation();
    spec.offload_limit_bytes = room;
    specs.push_back(std::move(spec));
  }
  if (groups_have_sites_) PlaceInOneSite(&specs);
  return specs;
}

void RandomRun::GrowIfDrawn(size_t group, std::vector<WorkerSpec>* ranks, uint32_t shards) {
  if (grown_ != group) return;
  const uint64_t at_least = kLargeGroup + growth_.Below(kLargerGroups);
  const auto grown = static_cast<uint32_t>((at_least + shards - 1) / shards * shards);
  const size_t drawn = ranks->size();
  while (ranks->size() < grown) {
    WorkerSpec spec = (*ranks)[growth_.Below(drawn)];  // its neighbour's place and memory
    spec.name.rank = Rank(static_cast<uint32_t>(ranks->size()));
    spec.shard = static_cast<int>(ranks->size() % shards);
    ranks->push_back(std::move(spec));
  }
  for (WorkerSpec& spec : *ranks) spec.ranks = static_cast<uint32_t>(ranks->size());
}

uint64_t RandomRun::bytes_of_shard() const {
  return cluster_.spec().segment_count * cluster_.spec().segment_bytes;
}

uint64_t RandomRun::DrawRoomForCopies() {
  switch (random_.Below(8)) {
    case 0:
      return 1;
    case 1:
    case 2:
      return bytes_of_shard();
    case 3:
      return 2 * bytes_of_shard();
    default:
      return kOffloadLimitBytes;
  }
}

void RandomRun::PlaceInOneSite(std::vector<WorkerSpec>* ranks) {
  const uint64_t site = random_.Below(sites_);
  for (WorkerSpec& spec : *ranks) {
    const uint64_t hosts_of_site = (hosts_ - site + sites_ - 1) / sites_;
    spec.location = LocationOf(site + sites_ * random_.Below(hosts_of_site));
  }
}

void RandomRun::DrawFleet() {
  sites_ = random_.OneIn(3) ? 2 : 1;
  hosts_ = static_cast<uint32_t>(3 + random_.Below(6));
  const auto shards = static_cast<uint32_t>(1 + random_.Below(3));
  const auto copies = [&] { return static_cast<uint32_t>(1 + random_.Below(2)); };
  std::vector<WorkerSpec> trainer_ranks = DrawRanks("trainer", shards * copies(), shards);
  GrowIfDrawn(0, &trainer_ranks, shards);
  auto trainer =
      std::make_unique<SimulatedTrainer>(&cluster_, std::move(trainer_ranks), random_.Fork());
  trainer_ = trainer.get();
  groups_.push_back(std::move(trainer));
  const uint64_t rollouts = 2 + random_.Below(3);
  for (uint64_t i = 1; i <= rollouts; ++i) {
    std::vector<WorkerSpec> ranks =
        DrawRanks(absl::StrCat("rollout-", i), shards * copies(), shards);
    GrowIfDrawn(i, &ranks, shards);
    DrawRollout(std::move(ranks));
  }
  DrawTwin(shards);
  DrawRetention();
  DrawSeeding();
}

void RandomRun::DrawRollout(std::vector<WorkerSpec> ranks) {
  const bool stages = random_.OneIn(2), has_memory = !random_.OneIn(6);
  for (WorkerSpec& rank : ranks) rank.staging_limit_bytes = has_memory ? bytes_of_shard() : 1;
  auto rollout = std::make_unique<SimulatedRollout>(&cluster_, std::move(ranks), random_.Fork());
  if (stages) rollout->Stages();
  if (random_.OneIn(2)) rollout->Receives();
  rollouts_.push_back(rollout.get());
  groups_.push_back(std::move(rollout));
}

void RandomRun::DrawTwin(uint32_t shards) {
  if (!random_.OneIn(3)) return;
  groups_.push_back(std::make_unique<SimulatedTwin>(&cluster_, DrawRanks("twin", shards, shards),
                                                    trainer_, random_.Fork()));
  twin_ = groups_.back().get();
}

// Some groups drop what is retained, as some callers do; the policy changes as the run goes on.
void RandomRun::DrawRetention() {
  for (const auto& group : groups_) {
    if (!random_.OneIn(3)) group->SetOnRetention(OnRetention::kOffload);
  }
  if (random_.OneIn(2)) return;
  const uint64_t changes = 1 + random_.Below(3);
  for (uint64_t change = 0; change < changes; ++change) {
    const absl::Duration at = random_.Between(absl::Milliseconds(200), kFaultPeriod);
    cluster_.Post(at,
                  [this, keep = static_cast<uint32_t>(random_.Below(4))] { SetRetention(keep); });
  }
}

void RandomRun::DrawSeeding() {
  for (const auto& group : groups_) {
    group->SetWhenSeeding(static_cast<WhenSeeding>(1 + random_.Below(3)));
  }
}

void RandomRun::SetRetention(uint32_t keep_latest) {
  SimulatedWorker* const by = trainer_->ranks().front();
  if (!by->alive() || by->ended().has_value() || by->stopped()) return;
  RunCommand command;
  command.idempotency_key = absl::StrCat("retention ", random_.Next());
  command.command = th::SetRetention{.keep_latest = keep_latest};
  by->Command(std::move(command));
}

// ---- faults

SimulatedWorker* RandomRun::WorkerOf(const Fault& fault) const {
  std::vector<SimulatedWorker*> workers;
  for (const auto& group : groups_) {
    workers.insert(workers.end(), group->ranks().begin(), group->ranks().end());
  }
  return workers[fault.target % workers.size()];
}

std::string RandomRun::HostOf(const Fault& fault) const {
  return absl::StrCat("h", fault.target % hosts_);
}

void RandomRun::Schedule(const Fault& fault) {
  cluster_.Post(fault.at, [this, fault] { Happen(fault); });
}

void RandomRun::Happen(const Fault& fault) {
  cluster_.Trace([&] { return absl::StrCat("fault: ", fault.ToString()); });
  ++result_.faults_happened;
  SimulatedServer* const server = &cluster_.server();
  SimulatedWorker* const worker = WorkerOf(fault);
  switch (fault.kind) {
    case FaultKind::kKillWorker:
      return worker->Kill();
    case FaultKind::kCrashWorker:
      return worker->Crash();
    case FaultKind::kKillGroup:
      for (SimulatedWorker* rank : groups_[fault.target % groups_.size()]->ranks()) rank->Kill();
      return;
    case FaultKind::kLeave:
      return worker->RunOrHold([worker] { worker->Leave(); });
    case FaultKind::kPreempt:
      return worker->RunOrHold([worker, fault] { worker->Preempt(fault.lasting); });
    case FaultKind::kStopWorker:
      worker->Stop();
      return cluster_.Post(fault.lasting, [worker] { worker->Continue(); });
    case FaultKind::kBreakStream:
      return worker->BreakStream();
    case FaultKind::kCutHost:
      return CutHostFor(fault);
    case FaultKind::kSlowHost:
      cluster_.SlowHost(HostOf(fault), 0.1);
      return cluster_.Post(fault.lasting,
                           [this, host = HostOf(fault)] { cluster_.SlowHost(host, 1); });
    case FaultKind::kFlipBit:
      return worker->FlipNext(SegmentIndex(fault.target % cluster_.spec().segment_count));
    case FaultKind::kRestartServer:
      return server_faults_.Restart(fault.lasting);
    case FaultKind::kStopServer:
      if (!server->alive() || server->stopped()) return;
      server->Stop();
      return cluster_.Post(fault.lasting, [server] { server->Continue(); });
    case FaultKind::kForgeSegment:
      return worker->Forge(SegmentIndex(fault.target % cluster_.spec().segment_count),
                           fault.lasting);
    case FaultKind::kBabble:
      return Babble(worker, 1 + static_cast<uint64_t>(fault.lasting / kBetweenFalseMessages));
    case FaultKind::kImpostor:
      return StartImpostor(*worker, fault.lasting);
    case FaultKind::kRestartBehindCut:
      CutHostFor(fault);
      return cluster_.Post(kAfterCut, [this] { server_faults_.Restart(kServerAwayBehindCut); });
    case FaultKind::kRollBackBehindCut:
      CutHostFor(fault);
      return cluster_.Post(kAfterCut, [this, fault] { RollBackUnheard(fault); });
    case FaultKind::kBreakEndpoint:
      worker->BreakEndpoint();
      return cluster_.Post(fault.lasting, [worker] { worker->MendEndpoint(); });
    case FaultKind::kBreakPath:
      worker->BreakPath();
      return cluster_.Post(fault.lasting, [worker] { worker->MendEndpoint(); });
    case FaultKind::kRegisterAgain:
      return worker->RunOrHold([worker] { worker->RegisterAgain(); });
    case FaultKind::kRegisterGroupAgain:
      return RegisterGroupAgain(fault);
    case FaultKind::kStutter:
      return Stutter(worker, cluster_.now() + fault.lasting);
    case FaultKind::kSlowServer:
      return server_faults_.SlowDown(cluster_.now() + fault.lasting);
    case FaultKind::kSilenceServer:
      return server_faults_.Silence(fault.lasting);
    case FaultKind::kSilenceAndRestartServer:
      server_faults_.Silence(fault.lasting);
      return cluster_.Post(kAfterCut, [this] { server_faults_.Restart(kServerAwayBehindCut); });
    case FaultKind::kReplaceBehindServer:
      return ReplaceBehindServer(fault);
    case FaultKind::kLoseState:
      trainer_->RestartWhereRolledBack();
      return server_faults_.LoseState(fault.lasting, EpochAfterLoss::kHigher);
    case FaultKind::kRestoreState:
      trainer_->RestartWhereRolledBack();
      return server_faults_.RestoreState(fault.lasting, EpochAfterLoss::kHigher);
    case FaultKind::kFreeInFill:
      return FreeInFill(fault, cluster_.now() + fault.lasting);
  }
}

void RandomRun::CutHostFor(const Fault& fault) {
  cluster_.CutHost(HostOf(fault));
  cluster_.Post(fault.lasting, [this, host = HostOf(fault)] { cluster_.HealHost(host); });
}

void RandomRun::Babble(SimulatedWorker* worker, uint64_t messages) {
  if (!worker->alive()) return;
  if (messages == 0 || healed_) return worker->Kill();
  worker->SayFalsely(DrawFalseMessage(&random_, *worker));
  cluster_.Post(kBetweenFalseMessages, [this, worker, messages] { Babble(worker, messages - 1); });
}

void RandomRun::StartImpostor(const SimulatedWorker& worker, absl::Duration lasting) {
  SimulatedWorker* const impostor = cluster_.Start(worker.spec());
  cluster_.Post(lasting, [impostor] { impostor->Kill(); });
}

void RandomRun::RollBackUnheard(const Fault& fault) {
  const uint64_t step = trainer_->APublishedStep(fault.target);
  if (step == 0) return;
  RunCommand command;
  command.idempotency_key = absl::StrCat("controller ", fault.ToString());
  command.command = RollBack{.to = VersionLabel::Parse(absl::StrCat("step-", step)).value()};
  const CommandFinished finished =
      cluster_.server().Command(trainer_->ranks().front()->spec().key, command);
  if (!finished.status.ok()) return;
  cluster_.Post(fault.lasting, [this, step] {
    trainer_->WasRolledBackTo(step);
    for (SimulatedWorker* rank : trainer_->ranks()) rank->Kill();
  });
  server_faults_.Restart(kServerAwayBehindCut);
}

// The process that has the rank by then.
void RandomRun::RegisterAgain(size_t group, size_t rank) {
  SimulatedWorker* const worker = groups_[group]->ranks()[rank];
  if (healed_) return;  // its group does not register it again once it is kept published
  worker->RunOrHold([worker] { worker->RegisterAgain(); });
}

void RandomRun::RegisterGroupAgain(const Fault& fault) {
  const size_t group = fault.target % groups_.size();
  const size_t ranks = groups_[group]->ranks().size();
  for (size_t i = 0; i < ranks; ++i) {
    const size_t rank = (fault.target + i) % ranks;
    cluster_.Post(fault.lasting * static_cast<double>(i) / static_cast<double>(ranks),
                  [this, group, rank] { RegisterAgain(group, rank); });
  }
}

void RandomRun::Stutter(SimulatedWorker* worker, absl::Time until) {
  if (healed_ || cluster_.now() >= until) return;
  worker->Stop();
  cluster_.Post(kStandsStill, [worker] { worker->Continue(); });
  cluster_.Post(kStandsStill + kGoesOn, [this, worker, until] { Stutter(worker, until); });
}

// As a rule it is the large group, where there is one. They die within the time that the server is
// away, and their framework starts others while it is, or after.
void RandomRun::ReplaceBehindServer(const Fault& fault) {
  server_faults_.Restart(fault.lasting);
  const bool large = grown_.has_value() && fault.target % 4 != 0;
  const size_t group = large ? *grown_ : fault.target % groups_.size();
  const size_t ranks = groups_[group]->ranks().size();
  const size_t replaced = 1 + fault.target / 4 % ranks;
  for (size_t i = 0; i < replaced; ++i) {
    const size_t rank = (fault.target + i) % ranks;
    cluster_.Post(fault.lasting * static_cast<double>(i) / static_cast<double>(replaced),
                  [this, group, rank] { groups_[group]->ranks()[rank]->Kill(); });
  }
}

// As soon as some of it is there, and not all.
void RandomRun::FreeInFill(const Fault& fault, absl::Time until) {
  if (healed_ || cluster_.now() >= until) return;
  const size_t group = 1 + fault.target % rollouts_.size();  // behind the trainer
  const size_t rank = fault.target / rollouts_.size() % groups_[group]->ranks().size();
  const SimulatedWorker& worker = *groups_[group]->ranks()[rank];
  if (worker.held_fraction() > 0 && worker.held_fraction() < 1) return RegisterAgain(group, rank);
  cluster_.Post(kFillLook, [this, fault, until] { FreeInFill(fault, until); });
}

void RandomRun::LookAtMemory() {
  memory_watch_.Look();
  cluster_.Post(kMemoryLook, [this] { LookAtMemory(); });
}

void RandomRun::LookAtCatalog() {
  catalog_watch_.Look();
  cluster_.Post(kCatalogLook, [this] { LookAtCatalog(); });
}

void RandomRun::HealEverything() {
  healed_ = true;
  for (uint32_t host = 0; host < hosts_; ++host) {
    cluster_.HealHost(absl::StrCat("h", host));
    cluster_.SlowHost(absl::StrCat("h", host), 1);
  }
  for (const auto& worker : cluster_.workers()) {
    worker->Continue();
    worker->MendEndpoint();
  }
  server_faults_.HealAll();
}

// ---- the end

bool RandomRun::LagsBehind(const SimulatedGroup& group) const {
  return &group != twin_ && group.newest() <= newest_when_healed_;
}

bool RandomRun::Recovered() const {
  return std::none_of(groups_.begin(), groups_.end(),
                      [this](const auto& group) { return LagsBehind(*group); });
}

// A second publisher that goes on could make a label that the new server has forgotten the latest
// version, and take it away again.
void RandomRun::LetTwinRest() {
  if (twin_ == nullptr) return;
  twin_->Rest();
  cluster_.RunUntil(
      [this] {
        return std::none_of(
            twin_->ranks().begin(), twin_->ranks().end(),
            [](const SimulatedWorker* rank) { return rank->alive() && rank->waits_for_calls(); });
      },
      kRecoveryLimit);
}

void RandomRun::CheckRecovery() {
  LetTwinRest();
  cluster_.Run(kLastFalseMessage);  // it could publish what nobody holds, above what is kept
  trainer_->KeepPublished();
  for (const auto& group : groups_) {
    if (group->ranks().front()->spec().offload_limit_bytes < kOffloadLimitBytes) {
      group->DropFromNowOn();
    }
  }
  newest_when_healed_ = trainer_->newest();
  if (cluster_.RunUntil([this] { return Recovered(); }, kRecoveryLimit)) return;
  for (const auto& group : groups_) {
    if (!LagsBehind(*group)) continue;
    cluster_.checker().Violated(
        absl::StrCat("everything works again, but ", group->Name(), " has not moved beyond #",
                     newest_when_healed_.ToString(), " for ", absl::FormatDuration(kRecoveryLimit),
                     ": ", group->Describe()));
  }
}

void RandomRun::CheckThatCallsEnd() {
  for (const auto& group : groups_) group->Rest();
  const auto waiting = [this]() -> const SimulatedWorker* {
    for (const auto& worker : cluster_.workers()) {
      if (worker->alive() && worker->waits_for_calls()) return worker.get();
    }
    return nullptr;
  };
  if (cluster_.RunUntil([&] { return waiting() == nullptr; }, kRecoveryLimit)) return;
  cluster_.checker().Violated(absl::StrCat("a call does not end: ", waiting()->Describe()));
}

RandomRunResult RandomRun::Run() {
  for (size_t i = 0; i < result_.faults.size(); ++i) {
    if (!spec_.without.contains(i)) Schedule(result_.faults[i]);
  }
  for (const auto& group : groups_) group->Begin();
  LookAtMemory();
  LookAtCatalog();
  cluster_.Run(kFaultPeriod);
  HealEverything();
  CheckRecovery();
  cluster_.RunUntil([this] { return cluster_.deliveries() >= kMinEventsPerRun; }, kRecoveryLimit);
  CheckThatCallsEnd();
  cluster_.server().CheckRegistry();
  return TakeResult();
}

RandomRunResult RandomRun::TakeResult() {
  for (const auto& group : groups_) {
    result_.operations_done += group->operations_done();
    result_.operations_failed += group->operations_failed();
  }
  for (const SimulatedRollout* rollout : rollouts_) {
    result_.staged += rollout->staged();
    result_.applied += rollout->applied();
  }
  for (const auto& worker : cluster_.workers()) {
    for (const auto& [source, segments] : worker->segments_from()) result_.segments += segments;
    result_.received += worker->received();
  }
  result_.events = cluster_.deliveries();
  result_.violations = cluster_.checker().violations();
  result_.coverage = coverage_;
  return std::move(result_);
}

}  // namespace

RandomRunResult RunAtRandom(const RandomRunSpec& spec) {
  if (spec.trace == nullptr) {  // else somebody looks for the moment
    RandomRunResult result = RandomRun(spec, kRegistryEventsPerCheck).Run();
    if (result.violations.empty()) return result;
  }
  return RandomRun(spec, /*events_per_check=*/1).Run();
}

}  // namespace th
