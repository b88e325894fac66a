#include "th/simulator/random_runs/simulated_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace th {
namespace {

constexpr absl::Duration kStagger = absl::Milliseconds(15);  // of the ranks of one operation
constexpr absl::Duration kShortestOperation = absl::Seconds(1);
// The slack of an unpublish beyond its drain: a rank that is stopped outlasts it.
constexpr absl::Duration kUnpublishSlack = absl::Seconds(1);
constexpr absl::Duration kLongestOperation = absl::Seconds(20);

constexpr absl::Duration kShortDrain = absl::Seconds(1);
constexpr absl::Duration kNoPatience = absl::Milliseconds(200);
constexpr absl::Duration kLatestCancel = absl::Milliseconds(600);  // after the call
// The longest that a consumer needs for a segment of what it receives.
constexpr absl::Duration kLongestTake = absl::Milliseconds(40);

void Unpublish(SimulatedWorker* rank, absl::Duration drain) {
  rank->Unpublish(drain, drain + kUnpublishSlack);
}

std::string LabelOf(uint64_t step) { return absl::StrCat("step-", step); }

}  // namespace

SimulatedGroup::SimulatedGroup(Cluster* cluster, std::vector<WorkerSpec> ranks, SeededRandom random)
    : cluster_(cluster), specs_(std::move(ranks)), random_(random) {}

void SimulatedGroup::Begin() {
  for (size_t index = 0; index < specs_.size(); ++index) {
    ranks_.push_back(nullptr);
    StartRank(index);
  }
  cluster_->Post(kGroupPoll, [this] { Poll(); });
}

void SimulatedGroup::DropFromNowOn() {
  SetOnRetention(OnRetention::kDrop);
  for (SimulatedWorker* rank : ranks_) rank->SetOnRetention(OnRetention::kDrop);
}

void SimulatedGroup::StartRank(size_t index) {
  ranks_[index] = cluster_->Start(specs_[index]);
  ranks_[index]->SetOnRetention(on_retention_);
  ranks_[index]->SetWhenSeeding(when_seeding_);
  ranks_[index]->on_done = [this, rank = ranks_[index]](const OperationDone& done) {
    Heard(*rank, done);
  };
}

void SimulatedGroup::Heard(const SimulatedWorker& rank, const OperationDone& done) {
  const bool well = done.status.ok() && done.outcome != UpdateOutcome::kNotAvailable;
  ++(done.status.ok() ? operations_done_ : operations_failed_);
  const About about = done.buffer == rank.buffer_id() ? About::kOwn : About::kBeside;
  if (!well || done.kind != latest_kind_ || about != latest_about_) return;
  ++ended_well_;
  if (about == About::kOwn && LastWentWell() && done.kind != OperationKind::kUnpublish)
    newest_ = done.version.sequence;
}

std::string SimulatedGroup::Describe() const {
  std::vector<std::string> lines;
  for (const SimulatedWorker* rank : ranks_) lines.push_back(rank->Describe());
  return absl::StrJoin(lines, "; ");
}

void SimulatedGroup::Poll() {
  cluster_->Post(kGroupPoll, [this] { Poll(); });
  if (resting_ || StartDeadOnesAgain() || cluster_->now() < act_at_) return;
  if (Idle()) {
    Act();
  } else {
    ActEarly();
  }
}

bool SimulatedGroup::Idle() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const SimulatedWorker* rank) {
    return rank->ready() && !rank->stopped() && !rank->waits_for_calls();
  });
}

bool SimulatedGroup::StartDeadOnesAgain() {
  const auto dead = [](const SimulatedWorker* rank) {
    return !rank->alive() || rank->ended().has_value();
  };
  if (std::none_of(ranks_.begin(), ranks_.end(), dead)) return false;
  if (restart_at_ == absl::InfiniteFuture()) {
    restart_at_ = cluster_->now() + random_.Between(absl::Milliseconds(50), absl::Seconds(2));
  }
  if (cluster_->now() < restart_at_) return true;
  restart_at_ = absl::InfiniteFuture();
  for (size_t index = 0; index < ranks_.size(); ++index) {
    if (!restarts_together() && !dead(ranks_[index])) continue;
    ranks_[index]->Kill();
    StartRank(index);
  }
  Restarted();
  return true;
}

void SimulatedGroup::OnEachRank(OperationKind kind,
                                const std::function<void(SimulatedWorker*)>& verb, About about) {
  ended_well_ = 0;
  latest_kind_ = kind;
  latest_about_ = about;
  for (SimulatedWorker* rank : ranks_) {
    rank->Post(random_.Between(absl::ZeroDuration(), kStagger), [rank, verb] {
      if (!rank->ended().has_value()) verb(rank);
    });
  }
  act_at_ = std::max(act_at_, cluster_->now() + kStagger);
}

void SimulatedGroup::UnpublishAll(absl::Duration drain) {
  OnEachRank(OperationKind::kUnpublish, [drain](SimulatedWorker* rank) { Unpublish(rank, drain); });
}

void SimulatedGroup::ResetUndefined() {
  for (SimulatedWorker* rank : ranks_) {
    if (rank->state() == BufferState::kUndefined) rank->Reset();
  }
}

bool SimulatedGroup::AnyIs(BufferState state) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [state](const SimulatedWorker* rank) { return rank->state() == state; });
}

bool SimulatedGroup::AllAre(BufferState state) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [state](const SimulatedWorker* rank) { return rank->state() == state; });
}

void SimulatedGroup::Pause(absl::Duration shortest, absl::Duration longest) {
  act_at_ = cluster_->now() + random_.Between(shortest, longest);
}

// ---- trainers

void SimulatedTrainer::Restarted() {
  latest_was_publish_ = false;
  kept_ = false;
  roll_back_.reset();
  resumes_ = random().OneIn(2);
  has_loaded_ = false;
}

void SimulatedTrainer::WasRolledBackTo(uint64_t step) {
  step_ = step;
  std::erase_if(published_steps_, [&](uint64_t published) { return published > step; });
}

// Computes the next step while the unpublish of the one before has not returned, but its buffer is
// free.
void SimulatedTrainer::ActEarly() {
  const bool free = latest_kind() == OperationKind::kUnpublish && !roll_back_.has_value() &&
                    AllAre(BufferState::kWritable) &&
                    std::all_of(ranks().begin(), ranks().end(), [](const SimulatedWorker* rank) {
                      return rank->ready() && !rank->stopped();
                    });
  if (free && random().OneIn(3)) PublishNextStep();
}

bool SimulatedTrainer::IsRefusedAsRolledBack() const {
  return std::any_of(ranks().begin(), ranks().end(), [](const SimulatedWorker* rank) {
    return !rank->done.empty() &&
           absl::StrContains(rank->done.rbegin()->second.status.message(), "was rolled back since");
  });
}

void SimulatedTrainer::Act() {
  // Also where what was loaded did not help: nobody has it any more.
  if ((restarts_where_rolled_back_ || has_loaded_) && IsRefusedAsRolledBack()) {
    for (SimulatedWorker* rank : ranks()) rank->Kill();
    return;
  }
  if (roll_back_.has_value()) return FinishRollBack();
  ResetUndefined();
  // A rank of it does not know of a roll-back: what is valid is loaded, as the error says.
  if (IsRefusedAsRolledBack()) resumes_ = has_loaded_ = true;
  if (std::exchange(resumes_, false)) {
    return OnEachRank(OperationKind::kUpdate, [](SimulatedWorker* rank) {
      rank->Update(LatestVersion{}, kShortestOperation);
    });
  }
  if (std::exchange(latest_was_publish_, false)) {
    if (LastWentWell()) {
      published_steps_.push_back(step_);
      has_loaded_ = false;
    }
    return Pause(absl::Milliseconds(50), absl::Milliseconds(1200));  // rollouts read
  }
  if (AnyIs(BufferState::kPublished) && kept_ && newest() > keeps_beyond_ && !IsOutbid()) return;
  if (AnyIs(BufferState::kPublished)) {
    return UnpublishAll(random().Between(absl::Milliseconds(100), absl::Seconds(3)));
  }
  const bool may_roll_back = rolls_back_ && !published_steps_.empty() && !keeps_published_;
  if (may_roll_back && random().OneIn(8)) return RollBackSomewhere();
  PublishNextStep();
}

bool SimulatedTrainer::IsOutbid() const {
  const auto& workers = cluster().workers();
  const auto lies = [](const auto& worker) { return worker->says_falsely(); };
  if (std::none_of(workers.begin(), workers.end(), lies)) return false;
  const auto& models = cluster().server().disk().durable.models;
  const auto model = models.find(ranks().front()->spec().key);
  return model != models.end() && newest() < model->second.high_water;
}

std::string SimulatedTrainer::published_label() const {
  const bool settled =
      !latest_was_publish_ && AnyIs(BufferState::kPublished) && !published_steps_.empty();
  return settled && published_steps_.back() == step_ ? LabelOf(step_) : "";
}

void SimulatedTrainer::PublishNextStep() {
  ++step_;
  latest_was_publish_ = true;
  kept_ = keeps_published_;
  content_ = absl::StrCat(Name(), " ", LabelOf(step_), " #", ++contents_);
  const absl::Duration timeout = random().Between(kShortestOperation, kLongestOperation);
  const bool waits = kept_ || !random().OneIn(8);  // for the other ranks, and for readers
  OnEachRank(OperationKind::kPublish,
             [label = LabelOf(step_), content = content_, timeout, waits](SimulatedWorker* rank) {
               rank->Publish(label, content, timeout);
               if (!waits) rank->Unpublish(kNoPatience, kNoPatience);
             });
}

void SimulatedTrainer::RollBackSomewhere() {
  const uint64_t step = published_steps_[random().Below(published_steps_.size())];
  SimulatedWorker* by = ranks()[random().Below(ranks().size())];
  RunCommand command;
  command.idempotency_key = absl::StrCat(Name(), " roll-back ", random().Next());
  command.command = RollBack{.to = VersionLabel::Parse(LabelOf(step)).value()};
  roll_back_ = RollBackUnderWay{by, by->Command(std::move(command)), step};
}

void SimulatedTrainer::FinishRollBack() {
  const RollBackUnderWay ended = *std::exchange(roll_back_, std::nullopt);
  const auto result = ended.by->commands.find(ended.call);
  if (result == ended.by->commands.end() || !result->second.status.ok()) return;
  step_ = ended.to_step;
  std::erase_if(published_steps_, [&](uint64_t step) { return step > step_; });
}

// ---- twins

void SimulatedTwin::Act() {
  Pause(absl::Milliseconds(100), absl::Milliseconds(800));
  if (AnyIs(BufferState::kPublished)) return UnpublishAll(kShortDrain);
  ResetUndefined();
  const std::string label = original_->published_label();
  const std::string content = original_->published_content();
  if (label.empty() || content == last_content_) return;
  last_content_ = content;
  const std::string truly = random().OneIn(3) ? absl::StrCat("a lie about ", content) : content;
  const uint64_t then = random().Below(8);  // as a rule it waits for the end
  OnEachRank(OperationKind::kPublish, [label, content, truly, then](SimulatedWorker* rank) {
    rank->PublishFalsely(label, content, truly);
    if (then == 0) Unpublish(rank, kShortDrain);
    if (then == 1) rank->Update(LatestVersion{}, kShortestOperation);
  });
}

// ---- rollouts

void SimulatedRollout::Act() {
  Pause(absl::ZeroDuration(), absl::Milliseconds(600));  // serves for a while
  if (ActOnStaged()) return;
  if (stages_ && random().OneIn(5)) return Stage();
  if (receives_ && random().OneIn(4)) return Receive();
  if (random().OneIn(10) && AllAre(BufferState::kPublished)) {
    if (random().OneIn(2)) {  // it does not wait for the end of that
      return OnEachRank(OperationKind::kUpdate, [](SimulatedWorker* rank) {
        Unpublish(rank, kShortDrain);
        rank->Update(LatestVersion{}, kShortestOperation);
      });
    }
    return UnpublishAll(kShortDrain);
  }
  if (random().OneIn(12)) {
    for (SimulatedWorker* rank : ranks()) {
      rank->TryRebind();
      if (rank->state() != BufferState::kPublished) rank->Reset();
    }
  }
  Update();
}

void SimulatedRollout::Update() {
  VersionSelector selector = LatestVersion{};
  if (newest() != VersionSequence() && random().OneIn(10)) selector = newest();
  const absl::Duration timeout = random().Between(kShortestOperation, kLongestOperation);
  OnEachRank(OperationKind::kUpdate,
             [selector, timeout](SimulatedWorker* rank) { rank->Update(selector, timeout); });
  MaybeCancel();
}

void SimulatedRollout::MaybeCancel() {
  if (!random().OneIn(8)) return;
  SimulatedWorker* const rank = ranks()[random().Below(ranks().size())];
  rank->Post(random().Between(absl::ZeroDuration(), kLatestCancel), [rank] {
    if (!rank->ended().has_value()) rank->CancelUpdate();
  });
}

// As a rule what all ranks have staged is moved in soon; it may be thrown away, or go stale.
bool SimulatedRollout::ActOnStaged() {
  const Beside latest = std::exchange(latest_, Beside::kNothing);
  if (latest == Beside::kApply && LastWentWell()) ++applied_;
  if (latest == Beside::kStage && LastWentWell()) ++staged_;
  const VersionSequence staged = ranks().front()->staged();
  const bool alike =
      std::all_of(ranks().begin(), ranks().end(),
                  [staged](const SimulatedWorker* rank) { return rank->staged() == staged; });
  if (alike && (staged == VersionSequence() || random().OneIn(3))) return false;
  if (!alike || random().OneIn(8)) {
    for (SimulatedWorker* rank : ranks()) rank->DiscardStaged();
    return false;
  }
  latest_ = Beside::kApply;
  const absl::Duration timeout = random().Between(kShortestOperation, kLongestOperation);
  OnEachRank(OperationKind::kUpdate, [timeout](SimulatedWorker* rank) { rank->Apply(timeout); });
  MaybeCancel();
  return true;
}

void SimulatedRollout::Stage() {
  const absl::Duration timeout = random().Between(kShortestOperation, kLongestOperation);
  const uint64_t then = random().Below(8);  // as a rule it waits for the end
  latest_ = Beside::kStage;
  const auto verb = [timeout, then](SimulatedWorker* rank) {
    rank->Stage(LatestVersion{}, timeout);
    if (then == 0) rank->Update(LatestVersion{}, timeout);
    if (then == 1) rank->DiscardStaged();
  };
  OnEachRank(OperationKind::kUpdate, verb, About::kBeside);
  MaybeCancel();
}

SegmentSet SimulatedRollout::DrawWanted(uint64_t segment_count) {
  if (random().OneIn(2)) return SegmentSet::AllOf(segment_count);
  const uint64_t begin = random().Below(segment_count);
  const uint64_t end = begin + 1 + random().Below(segment_count - begin);
  SegmentSet wanted;
  wanted.Add({SegmentIndex(begin), SegmentIndex(end)});
  wanted.Add(SegmentIndex(random().Below(segment_count)));
  return wanted;
}

ReceiveSpec SimulatedRollout::DrawReceive(uint64_t segment_count) {
  ReceiveSpec spec{.timeout = random().Between(kShortestOperation, kLongestOperation),
                   .wanted = DrawWanted(segment_count),
                   .ring_segments = 1 + random().Below(segment_count),
                   .take_time = random().Between(absl::ZeroDuration(), kLongestTake)};
  if (random().OneIn(8)) spec.fails_after = random().Below(spec.wanted.count());
  return spec;
}

// Each rank takes what it wants of its shard, as its engine can; some find nothing to begin with.
void SimulatedRollout::Receive() {
  const uint64_t segments = cluster().spec().segment_count;
  const ReceiveSpec spec = DrawReceive(segments), other = DrawReceive(segments);
  const SimulatedWorker* const odd = ranks()[random().Below(ranks().size())];
  const uint64_t how = random().Below(8);
  const auto verb = [=](SimulatedWorker* rank) {
    if (how == 0 && rank == odd) return rank->FailReceive();
    rank->Receive(rank == odd ? other : spec);
    if (how == 1) rank->Update(LatestVersion{}, kShortestOperation);
  };
  OnEachRank(OperationKind::kUpdate, verb, About::kBeside);
}

}  // namespace th
